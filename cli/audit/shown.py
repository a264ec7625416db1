"""What an audit says: before it trains what to expect, and afterwards what was learnt."""

from collections.abc import Iterable
from typing import TextIO

from precad.audit.builds import Build
from precad.audit.power import Power
from precad.audit.verdict import Statement, Verdict
from precad.common.terminal.text import Table, say


def say_plan(out: TextIO, statement: Statement, power: Power, build: Build) -> None:
    """The stated ε, what a sound build should give, and how likely a broken one is caught."""
    of = "a training" if statement.rounds > 1 else "a round"
    say(
        out,
        f"{statement.name}: ε = {statement.epsilon:.2f} of {of} is stated. A sound build should "
        f"give about {power.expected:.2f}, half the noise {power.expected_of_half:.2f}.",
    )
    if build is not Build.SOUND:
        say(out, f"{build.value} is caught so in {power.caught:.0%} of {power.trials} trials.")


def show(out: TextIO, found: Iterable[Verdict]) -> None:
    """A row a statement, and a sentence for each that is refuted."""
    verdicts = tuple(found)
    table = Table("who looks", ">coins", ">right guesses", ">ε at least", ">ε stated", "")
    for verdict in verdicts:
        guesses = verdict.guesses
        table.add(
            verdict.statement.name,
            str(guesses.canaries),
            f"{guesses.correct} of {guesses.made}",
            f"{verdict.by_family:.2f}",
            f"{verdict.epsilon:.2f}",
            "REFUTED" if verdict.refuted else "not refuted",
        )
    table.show(out)
    for verdict in verdicts:
        if verdict.refuted:
            say(
                out,
                f"audit failed: {verdict.statement.name} stated ε = {verdict.epsilon:.4f}; what "
                f"was learnt needs at least {verdict.by_family:.4f}",
            )
