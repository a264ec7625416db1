"""`precad audit`: canaries in trainings, and what an adversary really learns of them."""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import click

from precad.cli.options import AsJson, json_of, print_json, with_options
from precad.common.errors import Misconfiguration
from precad.common.terminal import Bar, Table, say

if TYPE_CHECKING:
    from precad.audit.verdict import Verdict

REFUTED = 1


@click.command()
@with_options
def audit(
    *,
    canaries: Annotated[int, "m, 20 or more: records that count or not by a fair coin."] = 2000,
    rounds: Annotated[int, "Each with coins of its own; more prove more."] = 4,
    repetitions: Annotated[int, "Trainings, each with canaries of its own; more prove more."] = 1,
    seed: Annotated[int | None, "Repeats an audit."],
    save: Annotated[Path | None, "All that was found, as JSON."],
    as_json: AsJson,
) -> None:
    """Attack trainings as the stated adversaries may, and bound ε from below.

    A consenting owner's canaries are records that count, or count as zero, by
    coin flips. Who sees the models, and a server that takes its own noise off,
    guess the coins. So many right guesses would be rare if the statement held:
    that bounds the true ε from below, with 99.99 % confidence. A bound that
    passes the stated ε refutes the statement; the command then exits with 1.

        precad audit
    """
    if save is not None and not save.parent.is_dir():
        raise Misconfiguration("--save", str(save), "there is no such folder; make it first")
    from precad.audit.canary_training import audit as judged  # noqa: PLC0415
    from precad.audit.canary_training import designed, planned, train  # noqa: PLC0415
    from precad.common import checks  # noqa: PLC0415
    from precad.simulation.rounds import checked_seed  # noqa: PLC0415

    checks.count("canaries", canaries, 20)
    checks.count("repetitions", repetitions, 1)
    checks.count("rounds", rounds, 1)
    first = checked_seed(seed)
    out = sys.stderr if as_json else sys.stdout
    say(out, f"seed {first}")
    made = [designed(canaries, rounds, number) for number in range(first, first + repetitions)]
    plans = planned(made[0], repetitions)
    for statement, power in plans.items():
        say(
            out,
            f"{statement.name}: ε = {statement.epsilon:.2f} of a round is stated. A sound build "
            f"should give about {power.expected:.2f}, half the noise {power.expected_of_half:.2f}.",
        )
    with Bar("trainings", repetitions, sys.stderr) as line:
        played = enumerate(line.track(made, task_id=line.task_ids[0]), first)
        trainings = ((train(each, seed=seed_of), each) for seed_of, each in played)
        found = judged(plans, trainings)
    show(out, found)
    document = {
        "seed": first,
        "repetitions": repetitions,
        "simulated": True,
        "verdicts": [verdict.to_json() for verdict in found],
    }
    if save is not None:
        save.write_text(json_of(document, indent=2) + "\n", encoding="utf-8")
    if as_json:
        print_json(document)
    if any(verdict.refuted for verdict in found):
        sys.exit(REFUTED)


def show(out: TextIO, found: "Iterable[Verdict]") -> None:
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
