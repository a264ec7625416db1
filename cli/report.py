"""`precad report`: what was trained, guaranteed and enforced, in one file; the page's pictures."""

import io
import os
import sys
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal

import click

from precad.cli import report_facts as facts
from precad.cli.main import ARGUMENT, command, json_of, print_json
from precad.common.errors import Misconfiguration
from precad.common.terminal import upper


@command()
def report(
    *,
    run: Annotated[
        tuple[str, ...],
        "A finished run's folder; or each server's state folder, or its database's URL.",
        ARGUMENT,
        {"metavar": "RUN..."},
    ],
    out: Annotated[Path | None, "The file; report.html or report.json by default.", "--out", "-o"],
    form: Annotated[Literal["html", "json"], "html, or json.", "--format"] = "html",
    schema: Annotated[bool, "Print the JSON document's schema and end."],
) -> None:
    """One document of a training for an auditor: self-contained, prints well.

    Who trained what on how many records; what is guaranteed to a patient, to an organisation and
    against bad participants, in words, numbers and plots; accuracy and ε by round; submissions and
    rejections; what was enforced, both servers' ledgers recomputed and compared; what is not
    guaranteed. Nothing in it says how often a single owner took part.

    \b
        precad report demo-run
        precad report /srv/a/state /srv/b/state --out training.html
        precad report demo-run --format json --out report.json

    Exit 1 where a ledger isn't sound or the two differ; the document is written all the same.
    """  # noqa: D301 -- click reads the control character
    if schema:
        print_json(facts.Report.model_json_schema(), indent=2)
        return
    if not run:
        remedy = "give a finished run's folder, or both servers' state folders"
        raise Misconfiguration("RUN", "none", remedy)
    path = Path(f"report.{form}") if out is None else out
    if not path.parent.is_dir() or path.is_dir() or not os.access(path.parent, os.W_OK):
        raise Misconfiguration("--out", str(path), "can't be written; give a file in a folder")
    from precad.cli.report_sources import gather  # noqa: PLC0415 -- databases, accountants

    found = gather(run)
    text = page(found) if form == "html" else json_of(found.model_dump(mode="json"), indent=2)
    path.write_text(text if text.endswith("\n") else f"{text}\n", encoding="utf-8")
    for line in facts.summary(found):
        click.echo(line, err=True)
    click.echo(path)
    broken = [f"{ledger.server}: {what}" for ledger in found.ledgers for what in ledger.findings]
    broken += found.differences or []
    for finding in broken:
        click.echo(f"precad report: {finding}", err=True)
    if broken:
        sys.exit(1)


# --- the page ----------------------------------------------------------------------------------

# Stand-ins that no plot has otherwise; each becomes a colour of the page.
INK, FIRST, SECOND, THIRD = "#010203", "#010204", "#010205", "#010206"
_COLOURS = {
    INK: "currentColor",
    FIRST: "var(--first)",
    SECOND: "var(--second)",
    THIRD: "var(--third)",
}
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 11,
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "grid.alpha": 0.15,
    "axes.grid": True,
    "legend.frameon": False,
    "lines.linewidth": 2,
}


def accuracy_by_round(report: facts.Report) -> str | None:
    """Accuracy over rounds; None where it wasn't measured."""
    shown = [(row.round, 100 * row.accuracy) for row in report.rounds if row.accuracy is not None]
    if not shown:
        return None

    def draw(axes: Any) -> None:
        axes.plot(*zip(*shown, strict=True), color=FIRST, marker=".")
        axes.set(ylim=(0, 100), xlabel="round", ylabel="right answers, %")

    return _svg("accuracy", draw)


def epsilon_by_round(report: facts.Report) -> str:
    """ε of a record over rounds, against one server and against other owners."""
    rows = [each for each in report.rounds if each.epsilon_server is not None]
    limit = next((each.limit for each in report.guarantees if each.limit is not None), None)

    def draw(axes: Any) -> None:
        at = [each.round for each in rows]
        server, models = zip(*((r.epsilon_server, r.epsilon_models) for r in rows), strict=True)
        axes.plot(at, server, color=SECOND, label="one server looks")
        axes.plot(at, models, color=FIRST, linestyle="--", label="other owners only")
        if limit is not None:
            axes.axhline(limit, color=THIRD, linestyle=":", label="limit")
        axes.set(ylim=(0, None), xlabel="round", ylabel="ε of a record")
        axes.legend()

    return _svg("epsilon", draw)


def error_by_attackers(found: facts.Robustness) -> str | None:
    """Between what the expected error lies, by attackers; None where nothing is excluded."""
    if found.silent_from == found.bounds[0].attackers:
        return None

    def draw(axes: Any) -> None:
        at = [0, *(each.attackers for each in found.bounds)]
        low = [100 * found.error, *(100 * each.lower for each in found.bounds)]
        high = [100 * found.error, *(100 * each.upper for each in found.bounds)]
        axes.fill_between(at, low, high, color=SECOND, alpha=0.25, step=None)
        axes.plot(at, high, color=SECOND, marker=".", label="at most")
        axes.plot(at, low, color=FIRST, marker=".", linestyle="--", label="at least")
        axes.set(ylim=(0, 100), xlim=(0, None), ylabel="expected wrong answers, %")
        axes.set_xlabel(f"bad {found.unit}")
        axes.legend()

    return _svg(f"bounds-{found.unit}", draw)


def _svg(name: str, draw: Callable[[Any], None]) -> str:
    """One plot; the same for the same facts."""
    # A second to import. A Figure alone needs no display and keeps no global state.
    from matplotlib import rc_context  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415
    from matplotlib.ticker import MaxNLocator  # noqa: PLC0415

    with rc_context(_STYLE | {"svg.hashsalt": name}):
        figure = Figure(figsize=(6.4, 3.2), layout="constrained")
        axes = figure.subplots()
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        draw(axes)
        out = io.StringIO()
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(out, format="svg", transparent=True, metadata=nothing)
    text = out.getvalue()
    text = text[text.index("<svg") :]
    # Several plots stand in one page: their identifiers must differ.
    for mark in ('id="', "url(#", 'xlink:href="#'):
        text = text.replace(mark, f"{mark}{name}-")
    for colour, page in _COLOURS.items():
        text = text.replace(colour, page)
    return text


def page(report: facts.Report) -> str:
    """The file's text."""
    from jinja2 import Environment, StrictUndefined  # noqa: PLC0415 -- of an extra

    template = files("precad.cli").joinpath("report_page.html").read_text(encoding="utf-8")
    # What comes from a task or a database is text, never markup.
    environment = Environment(autoescape=True, undefined=StrictUndefined)
    environment.trim_blocks = environment.lstrip_blocks = True
    return environment.from_string(template).render(
        report=report,
        guarantees=[(each, facts.guarantee_sentence(each)) for each in report.guarantees],
        robustness=[(each, error_by_attackers(each)) for each in report.robustness],
        accuracy_plot=accuracy_by_round(report),
        epsilon_plot=epsilon_by_round(report),
        least=facts.least,
        most=facts.most,
        upper=upper,
        sound=not report.differences and not any(each.findings for each in report.ledgers),
    )
