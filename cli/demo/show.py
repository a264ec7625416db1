"""The demo on the terminal: live progress for people, and the end in plain words."""

from collections import deque
from collections.abc import Mapping
from typing import Any, Self

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Column, Table

from precad.cli.demo.outcome import Outcome, RoundRow
from precad.cli.demo.scenario import Scenario

SHOWN_ROUNDS = 8
PLAIN_EVERY = 10


class Display:
    """Progress of a run. On a terminal it redraws; elsewhere it prints a line now and then."""

    def __init__(self, console: Console, scenario: Scenario) -> None:
        self._console = console
        self._scenario = scenario
        self._recent: deque[RoundRow] = deque(maxlen=SHOWN_ROUNDS)
        self._progress = Progress(
            TextColumn("[bold]round"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
        )
        self._bar = self._progress.add_task("rounds", total=scenario.task.training.rounds)
        self._live = Live(console=console, refresh_per_second=8, transient=True)

    def say(self, text: str) -> None:
        """A line about what happens now."""
        self._console.print(text, highlight=False)

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        if self._console.is_terminal:
            self._live.stop()

    def round(self, row: RoundRow) -> None:
        """Show a finished round."""
        self._recent.append(row)
        self._progress.update(self._bar, completed=row.number)
        if self._console.is_terminal:
            self._live.update(Group(self._progress, _table(self._recent)))
        elif row.number % PLAIN_EVERY == 0 or row.number == 1:
            accepted = f"accepted {row.accepted} of {row.cohort}"
            self.say(
                f"round {row.number:>3}/{self._scenario.task.training.rounds}: accuracy "
                f"{_percent(row.accuracy)}, {', '.join([accepted, *_reasons(row.rejected)])}, "
                f"ε {row.epsilon_server:.2f} (a server looks) "
                f"{row.epsilon_clients:.2f} (only clients look)"
            )


def _table(rows: deque[RoundRow]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("round", "accuracy", "accepted", "rejected", "ε server", "ε clients"):
        table.add_column(heading, justify="left" if heading == "rejected" else "right")
    for row in rows:
        table.add_row(
            str(row.number),
            _percent(row.accuracy),
            f"{row.accepted}/{row.cohort}",
            ", ".join(_reasons(row.rejected)) or "–",
            f"{row.epsilon_server:.3f}",
            f"{row.epsilon_clients:.3f}",
        )
    return table


def announce(console: Console, scenario: Scenario) -> None:
    """What is about to run."""
    privacy = scenario.task.privacy
    text = (
        f"[bold]precad demo[/bold]: {len(scenario.data)} data owners, two servers and a dealer, "
        f"each its own process, train [bold]{scenario.model}[/bold] on "
        f"[bold]{scenario.dataset.name}[/bold] "
        f"({len(scenario.dataset.train_y)} records; {scenario.task.dimension} parameters).\n"
        f"R = {privacy.record_clip:g}, C = {privacy.client_clip:g}, σ = "
        f"{privacy.noise_multiplier:g} a server, p = {privacy.record_rate:g}, "
        f"q = {privacy.client_rate:g}, η = {scenario.task.training.learning_rate:g}, "
        f"T = {scenario.task.training.rounds}, δ = {privacy.delta:g}"
    )
    if scenario.bad:
        names = ", ".join(client.name for client in scenario.bad)
        attack = f"{len(scenario.bad)} of them attack: {scenario.attack} ({names})"
        text += f"\n[yellow]{attack}[/yellow]"
    console.print(text, highlight=False)


def conclude(console: Console, outcome: Outcome, result: dict[str, Any], files: list[str]) -> None:
    """The run in plain words."""
    scenario = outcome.scenario
    equal = result["model_digest_a"] == result["model_digest_b"]
    rejected = ", ".join(_reasons(result["rejected"]))
    columns = ("who looks", Column("ε exact", justify="right"), "what is protected")
    bounds = Table(*columns, box=None, pad_edge=False, header_style="bold")
    server, clients = result["epsilon_exact_server"], result["epsilon_exact_clients"]
    level = result["epsilon_exact_client_level"]
    whole = "a whole data owner (bounds what a bad one can do)"
    bounds.add_row("one curious server and any other clients", f"{server:.2f}", "any one record")
    bounds.add_row("other clients only", f"{clients:.2f}", "any one record")
    seen = "anyone who sees the models; servers honest"
    bounds.add_row(seen, "none" if level is None else f"{level:.1f}", whole)
    held_out = len(scenario.dataset.test_y)
    lines: list[Any] = [
        (
            f"The model gets [bold]{result['accuracy']:.1%}[/bold] of {held_out} held-out records "
            f"right after {result['version']} rounds and {result['seconds']:.0f} s. No server "
            "ever saw an update.\n"
            f"Both servers hold the same model: {'yes' if equal else '[red]NO[/red]'} "
            f"({result['model_digest_a'][:16]}…).\n"
            f"{result['accepted']} submissions counted; "
            f"{f'rejected or absent: {rejected}' if rejected else 'none was rejected'}. "
            f"Honest ones rejected: {result['honest_rejected']}.\n\n"
            f"Guaranteed, as (ε, δ = {result['delta']:g})-differential privacy (zero-out):"
        ),
        bounds,
        (
            f"The paper's central-limit formula says {result['epsilon_clt_server']:.2f} for the "
            "first line: an approximation, not a guarantee.\nThe accuracy is measured on public "
            "data; it carries no privacy guarantee of its own.\n\n"
            f"Files: {', '.join(files)}"
        ),
    ]
    console.print(Panel(Group(*lines), title="done", title_align="left"), highlight=False)


def _reasons(rejected: Mapping[str, int]) -> list[str]:
    return [f"{n} {reason}" for reason, n in rejected.items()]


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{share:.1%}"
