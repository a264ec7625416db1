"""`python -m research audit`: trainings attacked as the stated adversaries may."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, TextIO

import click

from precad.cli.main import AsJson, command, print_json, require_writable
from precad.common.terminal import AlignedTable, Bar, json_of, say
from research.audits.verdict import AuditVerdict

_ONE_OR_MORE = click.IntRange(min=1)
_TWENTY_OR_MORE = click.IntRange(min=20)
REFUTED = 1
"""Exit status: an audit refutes a stated ε."""


@command()
def audit(
    *,
    canaries: Annotated[
        int, "m: records that count or not by a fair coin.", _TWENTY_OR_MORE
    ] = 2000,
    rounds: Annotated[
        int, "Each with coins of its own; more prove more.", _ONE_OR_MORE
    ] = 4,
    repetitions: Annotated[
        int, "Trainings, each with own canaries; more prove more.", _ONE_OR_MORE
    ] = 1,
    seed: Annotated[int | None, "Repeats an audit."],
    save: Annotated[Path | None, "All that was found, as JSON."],
    as_json: AsJson,
) -> None:
    """Attack trainings as the stated adversaries may, and bound ε from below.

    A consenting owner's canaries are records that count, or count as zero, by coin
    flips. Who sees the models, and a server that takes its own noise off, guess the
    coins. So many right guesses would be rare if the statement held: that bounds the
    true ε from below, with 99.99 % confidence. A bound that passes the stated ε refutes
    the statement; the command then exits with 1.

        python -m research audit
    """
    require_writable("--save", save)
    # Torch takes seconds to import.
    from precad.simulation.rounds import checked_seed  # noqa: PLC0415
    from research.audits import canary_training as auditing  # noqa: PLC0415

    first_seed = checked_seed(seed)
    out = sys.stderr if as_json else sys.stdout
    say(f"seed {first_seed}", out=out)
    seeds = range(first_seed, first_seed + repetitions)
    designs = [auditing.designed(canaries, rounds, number) for number in seeds]
    plans = auditing.planned(designs[0], repetitions)
    for statement, power in plans.items():
        say(
            f"{statement.name}: ε = {statement.epsilon:.2f} of a round is stated. A"
            f" sound build should give about {power.expected:.2f}, half the noise"
            f" {power.expected_of_half:.2f}.",
            out=out,
        )
    with Bar("trainings", repetitions, sys.stderr) as bar:
        tracked = bar.track(designs, task_id=bar.task_ids[0])
        trainings = (
            (auditing.train(design, seed=number), design)
            for number, design in enumerate(tracked, first_seed)
        )
        verdicts = auditing.audit(plans, trainings)
    _show(out, verdicts)
    document = {
        "seed": first_seed,
        "repetitions": repetitions,
        "simulated": True,
        "verdicts": [verdict.to_json() for verdict in verdicts],
    }
    if save is not None:
        save.write_text(json_of(document, indent=2) + "\n", encoding="utf-8")
    if as_json:
        print_json(document)
    if any(verdict.refuted for verdict in verdicts):
        sys.exit(REFUTED)


def _show(out: TextIO, verdicts: Sequence[AuditVerdict]) -> None:
    """Show an audit's verdicts: a table, and a line for each statement refuted."""
    table = AlignedTable(
        "who looks",
        ">coins",
        ">right guesses",
        ">ε at least",
        ">ε stated",
        "",
    )
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
            stated = f"{verdict.statement.name} stated ε = {verdict.epsilon:.4f}"
            learnt = f"what was learnt needs at least {verdict.by_family:.4f}"
            say(f"audit failed: {stated}; {learnt}", out=out)
