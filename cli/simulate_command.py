"""`precad simulate`: a task's training in one process, and what is shown of it."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TextIO

import click

from precad.cli.options import PATH, json_option, print_json, writable_picture
from precad.common.errors import Misconfiguration
from precad.common.terminal.progress import bar
from precad.common.terminal.text import Table, say

if TYPE_CHECKING:
    from precad.simulation import SimulatedRound, SimulatedTraining


@click.command()
@click.argument("task", type=PATH, help="The task file.")
@click.option(
    "--dataset",
    default="digits",
    help="digits or breast-cancer; or one of --data: mnist, fashion-mnist, …",
)
@click.option("--data", type=PATH, help="Folder with the data set's files; nothing is downloaded.")
@click.option(
    "--clients", type=click.IntRange(min=1), help="n: how many owners the records are dealt to."
)
@click.option("--rounds", type=click.IntRange(min=1), help="T; the task's unless given.")
@click.option("--model", help="A model of your own, MODULE:NAME, where the task's isn't built in.")
@click.option(
    "--attack",
    help="flip (against the cohort, within the bound), wraparound, oversize, garbage, or "
    "a function of your own, MODULE:NAME.",
)
@click.option(
    "--attackers", type=click.IntRange(min=1), help="How many clients attack; 1 unless given."
)
@click.option(
    "--per-client", is_flag=True, help="A real owner's code for each; slower, exact to the bit."
)
@click.option(
    "--seed", type=click.IntRange(min=0), help="Repeats a simulation; no real run takes one."
)
@click.option("--device", default="cpu", help="Where gradients are computed: cpu, cuda.")
@click.option("--plot", type=PATH, help="Picture of accuracy and ε by round: .png, .pdf or .svg.")
@click.option("--save", type=PATH, help="Rounds and summary as JSON.")
@json_option
def simulate(
    task: Path,
    dataset: str,
    data: Path | None,
    clients: int | None,
    rounds: int | None,
    model: str | None,
    attack: str | None,
    attackers: int | None,
    per_client: bool,
    seed: int | None,
    device: str,
    plot: Path | None,
    save: Path | None,
    as_json: bool,
) -> None:
    """Play a task's whole training in one process: no servers, no TLS, no secrecy.

    The same gradients, clips, validation rule, noise, denominator and
    accountants as in a real run, with as many virtual clients as there are
    records. What it prints is simulated, and certifies nothing.

        precad simulate task.toml --clients 1000

        precad simulate task.toml --attack flip --attackers 50 --plot run.png
    """
    for option, path in (("--plot", plot), ("--save", save)):
        if path is not None and option == "--plot":
            writable_picture(path)
        if path is not None and not path.parent.is_dir():
            raise Misconfiguration(option, str(path), "there is no such folder; make it first")
    # Seconds of torch: not before the options are known to be wanted.
    from precad.client.owner_settings import own_model, own_object  # noqa: PLC0415
    from precad.common.task import Task  # noqa: PLC0415
    from precad.simulation import simulate as play  # noqa: PLC0415
    from precad.simulation.datasets import load  # noqa: PLC0415

    out = sys.stderr if as_json else sys.stdout
    read = Task.load(task)
    records = load(dataset, data)
    own = attack is not None and ":" in attack

    def each(played: "SimulatedRound", _: object) -> None:
        display.round(played)

    with Display(out, read.training.rounds if rounds is None else rounds) as display:
        training = play(
            read,
            records,
            None if model is None else own_model(model),
            clients=clients,
            rounds=rounds,
            seed=seed,
            path="per-client" if per_client else "stacked",
            attack=own_object("--attack", attack) if own and attack else attack,
            attackers=attackers,
            device=device,
            on_round=each,
        )
    if plot is not None:
        training.plot(plot)
    if save is not None:
        training.save(save)
    conclude(out, training, [str(path) for path in (plot, save) if path is not None])
    if as_json:
        print_json(training.summary())


SHOWN_ROUNDS = 10
PLAIN_EVERY = 10


class Display:
    """Progress. On a terminal it redraws; elsewhere it prints a line now and then."""

    def __init__(self, out: TextIO, rounds: int) -> None:
        self._out, self._rounds = out, rounds

    def __enter__(self) -> Self:
        self._bar = bar("simulated round", self._rounds, self._out)
        return self

    def __exit__(self, *_exception: object) -> None:
        self._bar.close()

    def round(self, played: "SimulatedRound") -> None:
        """Show a finished round."""
        said = f"accepted {played.accepted} of {played.cohort}"
        if played.accuracy is not None:
            said = f"accuracy {played.accuracy:.1%}, {said}"
        self._bar.update(played.number - self._bar.n)
        self._bar.set_postfix_str(said)
        if self._bar.disable and (
            played.number % PLAIN_EVERY == 0 or played.number in (1, self._rounds)
        ):
            say(self._out, f"simulated round {played.number:>3}/{self._rounds}: {said}")


def conclude(out: TextIO, training: "SimulatedTraining", files: list[str]) -> None:
    """The last rounds in a table, and the simulation in a sentence."""
    numbers = (">ε server", ">ε clients", ">seconds")
    table = Table(
        *(">round", ">accuracy", ">accepted", "not counted"),
        *numbers,
        title="simulated, not protected",
    )
    rows = training.table()
    for played, row in list(zip(training.rounds, rows, strict=True))[-SHOWN_ROUNDS:]:
        table.add(*_cells(played, row))
    table.show(out)
    seconds = sum(played.seconds for played in training.rounds)
    counted = sum(played.accepted for played in training.rounds)
    said = str(training)
    text = (
        f"{said[0].upper()}{said[1:]}.\n{counted} updates counted in {seconds:.1f} s; seed "
        f"{training.seed}, {training.path} path."
    )
    if files:
        text += f"\nFiles: {', '.join(files)}"
    say(out, text)


def _cells(played: "SimulatedRound", row: Mapping[str, Any]) -> list[str]:
    def epsilon(name: str) -> str:
        return "–" if row[name] is None else f"{row[name]:.3f}"

    return [
        str(played.number),
        "–" if played.accuracy is None else f"{played.accuracy:.1%}",
        f"{played.accepted}/{played.cohort}",
        ", ".join(f"{n} {reason}" for reason, n in played.rejected.items()) or "–",
        epsilon("epsilon_server"),
        epsilon("epsilon_clients"),
        f"{played.seconds:.2f}",
    ]
