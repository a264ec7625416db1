"""`python -m research`: what the papers measured, run again on this project's own arithmetic."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from precad.cli.main import PATH, ErrorsInOneLine, print_json
from precad.common.errors import Misconfiguration
from precad.common.terminal import AlignedTable, Bar, say
from research.audits.command import audit
from research.questions.command import questions

if TYPE_CHECKING:
    from research.registry import Registry
    from research.study import Experiment, Result, Scale


@click.group(cls=ErrorsInOneLine, context_settings={"show_default": True})
def experiments() -> None:
    """The papers' experiments: their claims, and what is measured here.

    All of it is simulated, in this process, on public data. Results are kept as JSON
    after each cell (one training, or one part of one), so that a run that was broken
    off goes on.
    """


RESULTS = Path("experiment-results")

name_argument = click.argument("name", help="As `python -m research list` has it.")
at_scale_option = click.option(
    "--scale",
    default="small",
    help="small: minutes, on digits; paper: the paper's own settings.",
)
folder_option = click.option(
    "--data", type=PATH, help="Folder with data sets' files; none is downloaded."
)
output_option = click.option(
    "--output", type=PATH, default=RESULTS, help="Folder of results."
)
device_option = click.option(
    "--device", default="cpu", help="Where torch computes: cpu, cuda."
)
json_option = click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="One JSON document on stdout, nothing else.",
)
plugins_option = click.option(
    "--plugin",
    type=PATH,
    multiple=True,
    help="A Python file of your own that registers parts; repeat it.",
)


@experiments.command(name="list")
@plugins_option
@json_option
def list_experiments(plugin: tuple[Path, ...], as_json: bool) -> None:
    """All experiments, by name: the paper, the figure and what it claims."""
    found = _experiments(plugin)
    if as_json:
        print_json(
            [
                {
                    "name": name,
                    "paper": one.paper,
                    "figure": one.figure,
                    "claim": one.claim,
                }
                for name, one in found.items()
            ],
            indent=2,
        )
        return
    table = AlignedTable("name", "paper", "figure", "claim")
    for name, one in found.items():
        table.add(name, one.paper, one.figure, one.claim)
    table.show()


@experiments.command()
@name_argument
@at_scale_option
@folder_option
@output_option
@device_option
@plugins_option
@click.option(
    "--estimate/--no-estimate",
    default=True,
    help="Try the first cell for some seconds, if none was measured.",
)
@json_option
def show(
    name: str,
    scale: str,
    data: Path | None,
    output: Path,
    device: str,
    plugin: tuple[Path, ...],
    estimate: bool,
    as_json: bool,
) -> None:
    """What an experiment does, its settings, how long it takes, and its results so far."""
    from research.study.estimate import Estimate  # noqa: PLC0415
    from research.study.kept import Kept  # noqa: PLC0415

    one, size = _experiments(plugin)[name], _scale(scale)
    cells = one.all_cells(size)
    kept = Kept(output, name, size)
    results = kept.of(cells)

    def hours() -> float | None:
        return Estimate(name, size, output, data, device).hours if estimate else None

    if as_json:
        print_json(
            {
                **_described(name, one, size),
                "cells": len(cells),
                "measured": len(results),
                "hours_left": hours(),
            },
            indent=2,
        )
        return
    click.echo(
        f"{name}: {one.paper}, {one.figure}\n\nThe paper: {one.claim}\n\nHere:"
        f" {one.does}\n"
    )
    for key, value in one.settings[size].items():
        click.echo(f"  {key:20} {'–' if value is None else value}")
    click.echo(f"\n{len(results)} of {len(cells)} cells are measured.")
    # It takes some seconds an algorithm, and there is something to read by now.
    if left := hours():
        click.echo(f"About {_duration(left)} left on one process.")
    _table(one, results)


@experiments.command()
@name_argument
@at_scale_option
@folder_option
@output_option
@device_option
@click.option(
    "--workers", type=click.IntRange(min=1), default=1, help="Processes at a time."
)
@click.option(
    "--backend",
    default="loky",
    help="joblib's: loky, this machine; ray or dask, a cluster.",
)
@plugins_option
@click.option(
    "--only",
    multiple=True,
    metavar="SETTING=VALUE",
    help=(
        "Cells that have this setting alone, such as algorithm=precad or seed=0;"
        " repeat it."
    ),
)
@click.option(
    "--plot/--no-plot", default=True, help="Draw what was measured, beside the results."
)
@json_option
def run(
    name: str,
    scale: str,
    data: Path | None,
    output: Path,
    device: str,
    workers: int,
    backend: str,
    plugin: tuple[Path, ...],
    only: tuple[str, ...],
    plot: bool,
    as_json: bool,
) -> None:
    """Measure the cells that the results lack, then print and draw all.

    python -m research run precad-fig3 --workers 2

    python -m research run precad-fig3 --scale paper --data ~/mnist --only seed=0
    """
    from research.study.estimate import Estimate  # noqa: PLC0415
    from research.study.kept import Kept  # noqa: PLC0415
    from research.study.run import cells_with  # noqa: PLC0415
    from research.study.run import run as play  # noqa: PLC0415

    one, size = _experiments(plugin)[name], _scale(scale)
    out = sys.stderr if as_json else sys.stdout
    chosen = dict(map(_setting, only))
    estimate = Estimate(name, size, output, data, device, chosen)
    missing, total = estimate.missing, len(cells_with(name, size, chosen))
    if missing:
        hours = estimate.hours / workers
        say(
            f"{missing} of {total} cells to measure: about {_duration(hours)}.", out=out
        )
    with Bar("cell", total, out, done=total - missing) as line:

        def on_cell(result: "Result", done: int, of: int) -> None:
            line.at(done)
            estimate.add(result)
            if line.disable:
                left = estimate.hours / workers
                say(
                    f"cell {done}/{of}: {result.seconds:.1f} s, about {_duration(left)}"
                    " left",
                    out=out,
                )

        results = play(
            name,
            size,
            output,
            data=data,
            device=device,
            workers=workers,
            backend=backend,
            plugins=plugin,
            only=chosen,
            on_cell=on_cell,
        )
    written = [str(Kept(output, name, size).path)]
    if plot:
        written.append(str(_plot(one, name, size, output, results)))
    if as_json:
        table = one.table(results)
        rows = [dict(zip(table.headings, row, strict=True)) for row in table.rows]
        print_json(
            {**_described(name, one, size), "table": rows, "files": written}, indent=2
        )
        return
    _table(one, results)
    click.echo(f"\nFiles: {', '.join(written)}")


def _experiments(plugins: tuple[Path, ...]) -> "Registry[Experiment]":
    from research.registry import load_plugins  # noqa: PLC0415
    from research.study import EXPERIMENTS  # noqa: PLC0415

    load_plugins(plugins)
    return EXPERIMENTS


def _scale(name: str) -> "Scale":
    from research.study import Scale  # noqa: PLC0415

    if name not in list(Scale):
        raise Misconfiguration("--scale", name, f"use one of {', '.join(Scale)}")
    return Scale(name)


def _setting(text: str) -> tuple[str, Any]:
    """Name and value; what isn't JSON is text.

    Raises:
        Misconfiguration: it has no name or no value.
    """
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise Misconfiguration("--only", text, "give a setting and its value: seed=0")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def _described(name: str, one: "Experiment", scale: "Scale") -> dict[str, Any]:
    return {
        "name": name,
        "paper": one.paper,
        "figure": one.figure,
        "claim": one.claim,
        "does": one.does,
        "scale": str(scale),
        "settings": dict(one.settings[scale]),
    }


def _duration(hours: float) -> str:
    if hours >= 1:
        return f"{hours:.1f} hours"
    return f"{hours * 60:.0f} minutes" if hours * 60 >= 1 else f"{hours * 3600:.0f} s"


def _table(one: "Experiment", results: "list[Result]") -> None:
    if not results:
        return
    found = one.table(results)
    table = AlignedTable(*found.headings)
    for row in found.rows:
        table.add(*row)
    click.echo("")
    table.show()


def _plot(
    one: "Experiment", name: str, scale: "Scale", folder: Path, results: "list[Result]"
) -> Path:
    # A second to import. A Figure alone needs no display and keeps no global state.
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(9, 5), layout="constrained")
    one.plot(results, figure)
    settings = one.settings[scale]
    figure.suptitle(
        f"SIMULATED: {one.paper} {one.figure}, {settings.get('data', '')}, {scale}"
    )
    path = folder / f"{name}-{scale}.png"
    figure.savefig(path, dpi=100)
    return path


experiments.add_command(audit)
experiments.add_command(questions)

if __name__ == "__main__":
    experiments(prog_name="python -m research")
