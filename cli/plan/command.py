"""`precad plan`: which σ, C, p, q, T, R, η and f give privacy, robustness and a usable model."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from precad.cli.options import PATH, json_option, print_json, task_file_option, task_numbers
from precad.common.errors import Misconfiguration

if TYPE_CHECKING:
    from precad.accounting.planning import Robustness
    from precad.accounting.search import Choices, Progress

_OF_TASK = ("dimension", "delta")
_FIXED_BY_TASK = (
    "record_rate",
    "client_rate",
    "rounds",
    "record_clip",
    "learning_rate",
    "noise_multiplier",
    "client_clip",
)


@click.command()
@click.option(
    "--records",
    required=True,
    help="m: records of each owner, like 10x6000, 6000,6000,500 or 3x500,1200,6x40; or "
    "one size for all --clients.",
)
@click.option(
    "--epsilon", type=float, required=True, help="ε of a record against one curious server."
)
@task_file_option
@click.option("--clients", type=int, help="n: owners, where --records gives one size for all.")
@click.option("--dimension", type=int, help="d: parameters of the model.")
@click.option("--delta", type=float, help="δ: above 0 and below 1, like 1e-5.")
@click.option(
    "--malicious", type=int, help="K: owners that may submit anything; at least 1. See ROBUSTNESS."
)
@click.option(
    "--no-robustness",
    is_flag=True,
    help="No statement about what a whole owner can do: the client clip is loose.",
)
@click.option(
    "--change",
    type=click.Choice(["replacements", "additions"]),
    default="replacements",
    help="What the K do: honest ones turn bad, or bad ones join.",
)
@click.option(
    "--loss", type=float, default=0.2, help="L: expected loss on one record without attackers."
)
@click.option(
    "--tolerated-loss",
    type=float,
    default=0.5,
    help="The loss that the K may cause at most, above L.",
)
@click.option(
    "--loss-bound", type=float, default=1.0, help="B: the largest value that the loss takes."
)
@click.option(
    "--record-rate",
    type=float,
    multiple=True,
    help="p to try; repeat it. Default: six from .01 to .5.",
)
@click.option(
    "--client-rate",
    type=float,
    multiple=True,
    help="q to try; repeat it. Default: .1, .2, .5 and 1.",
)
@click.option(
    "--rounds", type=int, multiple=True, help="T to try; repeat it. Default: six from 20 to 1000."
)
@click.option(
    "--record-clip",
    type=float,
    multiple=True,
    help="R to try; repeat it. Default: parts of the gradient norm.",
)
@click.option(
    "--learning-rate", type=float, help="η, if it is fixed. Default: the best forecast's."
)
@click.option(
    "--noise-multiplier", type=float, help="σ, if it is fixed. Default: the least that ε allows."
)
@click.option(
    "--client-clip",
    type=float,
    help="C, if it is fixed. Default: what robustness allows, or ample.",
)
@click.option(
    "--gradient-norm",
    type=float,
    default=9.0,
    help="G: typical norm of one record's gradient at the start; 9 for MNIST's pixels.",
)
@click.option(
    "--model",
    type=click.Choice(["logistic", "mlp"]),
    help="What the forecast is for. Default: the task's, else logistic.",
)
@click.option("--plot", type=PATH, help="Write the trade-offs as a PNG file here.")
@json_option
def plan(
    records: str,
    epsilon: float,
    task: Path | None,
    clients: int | None,
    dimension: int | None,
    delta: float | None,
    malicious: int | None,
    no_robustness: bool,
    change: Literal["replacements", "additions"],
    loss: float,
    tolerated_loss: float,
    loss_bound: float,
    record_rate: tuple[float, ...],
    client_rate: tuple[float, ...],
    rounds: tuple[int, ...],
    record_clip: tuple[float, ...],
    learning_rate: float | None,
    noise_multiplier: float | None,
    client_clip: float | None,
    gradient_norm: float,
    model: Literal["logistic", "mlp"] | None,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Search settings that give the privacy, robustness and accuracy you want.

    It says σ (noise), C and R (clips), p and q (sampling), T (rounds), η
    (step) and f (bits) to put into a task. Each setting shown is a task that
    was made, so no server refuses it. Everything is PLANNED: precad ledger and
    precad certify say what a run gave.

    PRIVACY sets σ: the least for which a record has (ε, δ) against one
    curious server, exactly, over as many participations as all but one owner
    in 1,000 will have.

    ROBUSTNESS sets C against σ. With K malicious owners the expected loss
    stays below B·Φ(Φ⁻¹(L/B) + 2Kμ) if they replace honest ones, with Kμ if
    they join. It costs accuracy, with few owners all of it: choose --malicious
    K, or --no-robustness. With neither you see the best without robustness,
    and what K = 1 would cost. μ is the central limit theorem's: for planning.

    ACCURACY is forecast from real trainings on MNIST: what keeps it down is
    too short a way (few rounds, small η, tight C), noise, or overshooting.
    Use it to order settings; on your data the numbers differ. Of settings
    that are about as good, the one with the least uploads is chosen.

    With --task you also see how that task's own setting fares.

    For example:

    \b
        precad plan --records 10x6000 --dimension 7850 \\
          --epsilon 3 --delta 1e-5
        precad plan --records 2x6000,500 --dimension 7850 --epsilon 3 \\
          --delta 1e-5 --no-robustness --rounds 50 --rounds 200
        precad plan --task task.toml --records 600 --epsilon 2 \\
          --malicious 1 --plot plan.png
    """  # noqa: D301 -- click reads the control character
    given = locals()
    # NumPy and SciPy load here, so that `precad --help` doesn't wait for them.
    from precad.accounting import planning, search  # noqa: PLC0415
    from precad.accounting.forecast import Architecture  # noqa: PLC0415
    from precad.cli.plan import show  # noqa: PLC0415

    if plot is not None:
        _check_writable(plot)
    values = given | task_numbers(given, _OF_TASK, ())
    loaded = _task(given)
    if model is None and loaded is not None:
        model = "logistic" if loaded.model.architecture == "logistic" else "mlp"
    wanted = planning.Wanted(
        records=_sizes(records, clients, loaded.enrolment.clients if loaded else None),
        epsilon=epsilon,
        delta=values["delta"],
        robust=malicious is not None,
        robustness=_robustness(given),
        gradient_norm=gradient_norm,
        architecture=Architecture.DEEP if model == "mlp" else Architecture.LINEAR,
    )
    template = (
        search.template_of(values["dimension"], values["delta"])
        if loaded is None
        else loaded.model_dump(mode="json")
    )
    with _progress(as_json) as progress:
        made = search.plan(
            wanted,
            _choices(given),
            template,
            other=not no_robustness,
            given=loaded,
            progress=progress,
        )
        if plot is not None:
            from precad.cli.plan.plot import draw  # noqa: PLC0415

            draw(made, plot)
        statements = show.statements(made)
    if as_json:
        print_json(show.document(made, statements, plot), indent=2)
    else:
        show.show(made, statements, plot)


def _task(given: dict[str, Any]) -> Any:
    """The task that is given, alone."""
    if given["task"] is None:
        return None
    for name in _FIXED_BY_TASK:
        if given[name] not in {None, ()}:
            option = "--" + name.replace("_", "-")
            raise Misconfiguration(
                name, given[name], f"the task says it: leave {option} out, or --task"
            )
    from precad.common.task import Task  # noqa: PLC0415

    return Task.load(given["task"])


def _sizes(records: str, clients: int | None, of_task: int | None) -> tuple[int, ...]:
    """Sizes of all owners."""
    from precad.accounting.sizes import MOST_OWNERS, owners_sizes  # noqa: PLC0415
    from precad.common import checks  # noqa: PLC0415

    sizes = owners_sizes(records)
    if clients is not None and of_task is not None:
        raise Misconfiguration("clients", clients, "the task says it: leave --clients out")
    if not records.replace("_", "").strip().isdecimal():
        if clients not in {None, len(sizes)}:
            raise Misconfiguration(
                "clients",
                clients,
                f"--records counts {len(sizes):,} owners itself: leave --clients out",
            )
        return sizes
    owners = clients if of_task is None else of_task
    if owners is None:
        raise Misconfiguration(
            "clients",
            None,
            f"give --clients, or how many owners in --records, like 10x{sizes[0]}",
        )
    if checks.count("clients", owners, 1) > MOST_OWNERS:
        raise Misconfiguration("clients", owners, f"a task takes at most {MOST_OWNERS:,}")
    return sizes * owners


def _robustness(given: dict[str, Any]) -> "Robustness":
    from precad.accounting.planning import Change, Robustness  # noqa: PLC0415

    malicious = given["malicious"]
    if malicious is not None and given["no_robustness"]:
        raise Misconfiguration("malicious", malicious, "leave it out, or --no-robustness")
    if malicious == 0:
        raise Misconfiguration("malicious", 0, "give at least 1, or --no-robustness")
    return Robustness(
        malicious=1 if malicious is None else malicious,
        loss=given["loss"],
        tolerated_loss=given["tolerated_loss"],
        loss_bound=given["loss_bound"],
        change=Change(given["change"]),
    )


def _choices(given: dict[str, Any]) -> "Choices":
    from precad.accounting.search import Choices  # noqa: PLC0415

    lists = {
        "record_rates": "record_rate",
        "client_rates": "client_rate",
        "rounds": "rounds",
        "record_clips": "record_clip",
    }
    tried = {name: tuple(given[option]) for name, option in lists.items() if given[option]}
    return Choices(
        **tried,
        learning_rate=given["learning_rate"],
        noise_multiplier=given["noise_multiplier"],
        client_clip=given["client_clip"],
    )


def _check_writable(plot: Path) -> None:
    """Before a search that takes seconds, not after it."""
    new = not plot.exists()
    try:
        plot.open("ab").close()
    except OSError as error:
        raise Misconfiguration(
            "plot",
            str(plot),
            f"can't be written ({error.strerror}): name a file in a folder that exists and that "
            "you may write to",
        ) from None
    if new:
        plot.unlink()


@contextmanager
def _progress(silent: bool) -> "Iterator[Progress]":
    """A bar on standard error, where that is a terminal."""
    if silent:
        yield lambda _done, _all: None
        return
    from precad.common.terminal.progress import bar  # noqa: PLC0415

    with bar("trying settings", 1, sys.stderr) as line:

        def trying(done: int, steps: int) -> None:
            line.total = steps
            line.update(done - line.n)

        yield trying
