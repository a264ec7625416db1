"""A simulation on the terminal: progress, and a table at its end."""

from collections.abc import Mapping
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from precad.experiments.simulation import SimulatedRound, SimulatedTraining

SHOWN_ROUNDS = 10
PLAIN_EVERY = 10


class Display:
    """Progress. On a terminal it redraws; elsewhere it prints a line now and then."""

    def __init__(self, console: Console, rounds: int) -> None:
        self._console, self._rounds = console, rounds
        self._progress = Progress(
            TextColumn("[bold]simulated round"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[said]}"),
            console=console,
            transient=True,
        )
        self._bar = self._progress.add_task("rounds", total=rounds, said="")

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._progress.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        if self._console.is_terminal:
            self._progress.stop()

    def round(self, played: SimulatedRound) -> None:
        """Show a finished round."""
        said = f"accepted {played.accepted} of {played.cohort}"
        if played.accuracy is not None:
            said = f"accuracy {played.accuracy:.1%}, {said}"
        self._progress.update(self._bar, completed=played.number, said=said)
        if not self._console.is_terminal and (
            played.number % PLAIN_EVERY == 0 or played.number in (1, self._rounds)
        ):
            self._console.print(
                f"simulated round {played.number:>3}/{self._rounds}: {said}", highlight=False
            )


def conclude(console: Console, training: SimulatedTraining, files: list[str]) -> None:
    """The last rounds in a table, and the simulation in a sentence."""
    table = Table(box=None, pad_edge=False, header_style="bold", title="simulated, not protected")
    headings = ("round", "accuracy", "accepted", "not counted", "ε server", "ε clients", "seconds")
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "not counted" else "right")
    rows = training.table()
    for played, row in list(zip(training.rounds, rows, strict=True))[-SHOWN_ROUNDS:]:
        table.add_row(*_cells(played, row))
    console.print(table)
    seconds = sum(played.seconds for played in training.rounds)
    counted = sum(played.accepted for played in training.rounds)
    said = str(training)
    text = (
        f"{said[0].upper()}{said[1:]}.\n{counted} updates counted in {seconds:.1f} s; seed "
        f"{training.seed}, {training.path} path."
    )
    if files:
        text += f"\nFiles: {', '.join(files)}"
    console.print(text, highlight=False, soft_wrap=True)


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
