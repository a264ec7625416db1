"""The demo on the terminal: live progress for people, and the end in plain words."""

import time
from collections import deque
from collections.abc import Mapping
from typing import Any, Self

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.spinner import Spinner
from rich.table import Column, Table
from rich.text import Text

from precad.cli.demo.outcome import Outcome, RoundRow
from precad.cli.demo.scenario import Scenario

SHOWN_ROUNDS = 8
PLAIN_EVERY = 10
PLAIN_S = 5.0
"""Between lines about one wait, where nothing can be redrawn."""


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
        self._doing = ""
        self._since = self._said = time.monotonic()
        self._spinner = Spinner("dots")
        self._live: Live | None = None

    def say(self, text: str) -> None:
        """A line that stays."""
        self._console.print(text, highlight=False)

    def doing(self, text: str) -> None:
        """What happens now, with the seconds since it began; elsewhere a line now and then."""
        now = time.monotonic()
        if text.split(":", maxsplit=1)[0] != self._doing.split(":")[0]:
            self._since, self._said = now, now - PLAIN_S
        if not self._console.is_terminal and text != self._doing and now - self._said >= PLAIN_S:
            self._said = now
            self.say(text)
        self._doing = text

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            # A new one each time: rich's, started again, wipes the lines above it.
            self._live = Live(
                get_renderable=self._seen,
                console=self._console,
                refresh_per_second=8,
                transient=True,
            )
            self._live.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def round(self, row: RoundRow) -> None:
        """Show a finished round."""
        self._recent.append(row)
        rounds = self._scenario.task.training.rounds
        self._since = time.monotonic()
        self._doing = f"round {min(row.number + 1, rounds)}: owners train, servers add up"
        self._progress.update(self._bar, completed=row.number)
        if not self._console.is_terminal and (row.number % PLAIN_EVERY == 0 or row.number == 1):
            accepted = f"accepted {row.accepted} of {row.cohort}"
            self.say(
                f"round {row.number:>3}/{rounds}: accuracy "
                f"{_percent(row.accuracy)}, {', '.join([accepted, *_reasons(row.rejected)])}, "
                f"ε {row.epsilon_server:.2f} (a server looks) "
                f"{row.epsilon_clients:.2f} (only clients look)"
            )

    def _seen(self) -> Group:
        """Everything that is redrawn."""
        seconds = time.monotonic() - self._since
        self._spinner.update(text=Text(f"{self._doing} ({seconds:.0f} s)", style="dim"))
        shown: list[Any] = [self._progress, _table(self._recent)] if self._recent else []
        return Group(*shown, self._spinner)


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
        f"({len(scenario.dataset.train_y):,} records; {scenario.task.dimension:,} parameters).\n"
        f"R = {privacy.record_clip:g}, C = {privacy.client_clip:g}, σ = "
        f"{privacy.noise_multiplier:g} a server, p = {privacy.record_rate:g}, "
        f"q = {privacy.client_rate:g}, η = {scenario.task.training.learning_rate:g}, "
        f"T = {scenario.task.training.rounds}, δ = {privacy.delta:g}"
    )
    if scenario.bad:
        names = ", ".join(client.name for client in scenario.bad)
        attack = f"{len(scenario.bad)} of them bad: {scenario.attack} ({names})"
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
    malicious = result.get("epsilon_exact_malicious_server")
    if malicious is not None:
        cap = f"any one record, at the cap of {result['version']} rounds"
        bounds.add_row("one malicious server and any other clients", f"{malicious:.2f}", cap)
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
        *([] if "robustness" not in result else ["\n" + result["robustness"]["words"] + "\n"]),
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
