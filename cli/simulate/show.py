"""A simulation on the terminal: progress, and a table at its end."""

from collections.abc import Mapping
from typing import Any, Self, TextIO

from precad.common.terminal.progress import bar
from precad.common.terminal.text import Table, say
from precad.simulation import SimulatedRound, SimulatedTraining

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

    def round(self, played: SimulatedRound) -> None:
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


def conclude(out: TextIO, training: SimulatedTraining, files: list[str]) -> None:
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


def _cells(played: SimulatedRound, row: Mapping[str, Any]) -> list[str]:
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
