"""A whole audit: trainings with canaries, guesses fixed beforehand, one verdict a statement."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from precad.audit.builds import Build
from precad.audit.canaries import Canaries
from precad.audit.designed import Designed
from precad.audit.one_run import Guesses
from precad.audit.power import Power, guess, pooled
from precad.audit.simulated import Audited, statements, views
from precad.audit.verdict import Statement, Verdict, judge

SIGNIFICANCE = 1e-4
"""Of a whole audit: a sound system fails one in ten thousand, at most."""


@dataclass(frozen=True, slots=True)
class Repetition:
    """One training and what it was made of."""

    trained: Audited
    shares: dict[str, Any]
    canaries: Canaries


def planned(
    made: Designed,
    repetitions: int,
    significance: float = SIGNIFICANCE,
    build: Build = Build.SOUND,
) -> dict[Statement, Power]:
    """How many coins will be guessed for each statement, and what to expect of it.

    Args:
        made: the task and its canaries, or others as many.
        repetitions: how many trainings.
        significance: of the whole audit, which the statements share.
        build: what will run; the number of guesses doesn't depend on it.
    """
    coins = made.canaries.coins
    both = statements(made.task, len(coins))
    each = significance / len(both)
    return {
        statement: statement.plan(coins.size, each, repetitions, build, made.crowding)
        for statement in both
    }


def audit(
    plans: dict[Statement, Power],
    repetitions: Iterable[Repetition],
    significance: float = SIGNIFICANCE,
    on_repetition: Callable[[int], object] = lambda _: None,
) -> tuple[Verdict, ...]:
    """Score every training and judge them together.

    Args:
        plans: see ``planned``.
        repetitions: trainings of the planned task.
        significance: as planned.
        on_repetition: told after each how many are done.

    Raises:
        Misconfiguration: a training doesn't fit the plan.
    """
    made: dict[Statement, list[tuple[Guesses, Guesses]]] = {statement: [] for statement in plans}
    for number, one in enumerate(repetitions, 1):
        for statement, found in views(one.trained, one.shares, one.canaries).items():
            coins = one.canaries.coins.ravel()
            as_stated, as_broken = (scores.ravel() for scores in found)
            made[statement].append(
                (
                    guess(as_stated, coins, plans[statement].guesses),
                    guess(as_broken, coins, len(coins)),
                )
            )
        on_repetition(number)
    each = significance / len(plans)
    return tuple(
        judge(
            statement,
            power,
            [pooled([ways[number] for ways in made[statement]]) for number in range(2)],
            each,
        )
        for statement, power in plans.items()
    )
