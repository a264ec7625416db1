"""`precad simulate`: a task's training in one process, and what is shown of it."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import click

from precad.cli.options import ARGUMENT, AsJson, asks, print_json, writable_picture
from precad.common.errors import Misconfiguration
from precad.common.terminal import Bar, Table, say, upper

if TYPE_CHECKING:
    from precad.simulation import SimulatedRound, SimulatedTraining


SHOWN_ROUNDS = 10
PLAIN_EVERY = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationRequest:
    """What `precad simulate` is asked."""

    task: Annotated[Path, "The task file.", ARGUMENT]
    dataset: Annotated[
        str, "digits or breast-cancer; or one of --data: mnist, fashion-mnist, …"
    ] = "digits"
    data: Annotated[Path | None, "Folder with the data set's files; nothing is downloaded."]
    clients: Annotated[
        int | None, "n: how many owners the records are dealt to.", click.IntRange(min=1)
    ]
    rounds: Annotated[int | None, "T; the task's unless given.", click.IntRange(min=1)]
    model: Annotated[
        str | None, "A model of your own, MODULE:NAME, where the task's isn't built in."
    ]
    attack: Annotated[
        str | None,
        "flip (against the cohort, within the bound), wraparound, oversize, garbage, or "
        "a function of your own, MODULE:NAME.",
    ]
    attackers: Annotated[
        int | None, "How many clients attack; 1 unless given.", click.IntRange(min=1)
    ]
    per_client: Annotated[bool, "A real owner's code for each; slower, exact to the bit."]
    seed: Annotated[
        int | None, "Repeats a simulation; no real run takes one.", click.IntRange(min=0)
    ]
    device: Annotated[str, "Where gradients are computed: cpu, cuda."] = "cpu"
    plot: Annotated[Path | None, "Picture of accuracy and ε by round: .png, .pdf or .svg."]
    save: Annotated[Path | None, "Rounds and summary as JSON."]
    as_json: AsJson


@click.command()
@asks(SimulationRequest)
def simulate(request: SimulationRequest) -> None:
    """Play a task's whole training in one process: no servers, no TLS, no secrecy.

    The same gradients, clips, validation rule, noise, denominator and
    accountants as in a real run, with as many virtual clients as there are
    records. What it prints is simulated, and certifies nothing.

        precad simulate task.toml --clients 1000

        precad simulate task.toml --attack flip --attackers 50 --plot run.png
    """
    if request.plot is not None:
        writable_picture(request.plot)
    if request.save is not None and not request.save.parent.is_dir():
        raise Misconfiguration(
            "--save", str(request.save), "there is no such folder; make it first"
        )
    # Seconds of torch: not before the options are known to be wanted.
    from precad.client.owner_settings import own_model, own_object  # noqa: PLC0415
    from precad.common.task import Task  # noqa: PLC0415
    from precad.simulation import simulate as play  # noqa: PLC0415
    from precad.simulation.datasets import load  # noqa: PLC0415

    out = sys.stderr if request.as_json else sys.stdout
    task = Task.load(request.task)
    records = load(request.dataset, request.data)
    attack: Any = request.attack
    if attack is not None and ":" in attack:
        attack = own_object("--attack", attack)
    rounds = request.rounds or task.training.rounds
    with Bar("simulated round", rounds, out) as shown:
        training = play(
            task,
            records,
            None if request.model is None else own_model(request.model),
            clients=request.clients,
            rounds=request.rounds,
            seed=request.seed,
            path="per-client" if request.per_client else "stacked",
            attack=attack,
            attackers=request.attackers,
            device=request.device,
            on_round=lambda played, _: _show_round(out, shown, played, rounds),
        )
    if request.plot is not None:
        training.plot(request.plot)
    if request.save is not None:
        training.save(request.save)
    conclude(out, training, [str(path) for path in (request.plot, request.save) if path])
    if request.as_json:
        print_json(training.summary())


def _show_round(out: TextIO, shown: Bar, played: "SimulatedRound", rounds: int) -> None:
    """Move the bar; where nothing is redrawn, print a line now and then."""
    text = f"accepted {played.accepted} of {played.cohort}"
    if played.accuracy is not None:
        text = f"accuracy {played.accuracy:.1%}, {text}"
    shown.at(played.number, text)
    if shown.disable and (played.number % PLAIN_EVERY == 0 or played.number in (1, rounds)):
        say(out, f"simulated round {played.number:>3}/{rounds}: {text}")


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
        return "–" if row[name] is None else upper(row[name])

    return [
        str(played.number),
        "–" if played.accuracy is None else f"{played.accuracy:.1%}",
        f"{played.accepted}/{played.cohort}",
        ", ".join(f"{n} {reason}" for reason, n in played.rejected.items()) or "–",
        epsilon("epsilon_server"),
        epsilon("epsilon_clients"),
        f"{played.seconds:.2f}",
    ]
