"""What privacy a training has cost and may still cost, against each adversary; for metrics."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from precad.accounting.adversaries import Adversary, Run
from precad.accounting.events import AccountantName, ReleaseCounts
from precad.accounting.guarantees import guarantees
from precad.aggregator.rounds.privacy_cap import participations_left
from precad.common.errors import Misconfiguration
from precad.common.identifiers import ClientId
from precad.common.task import Task

_Again = tuple[tuple[int, int], ...]
"""Versions that were released 1 + m times, by m ≥ 1, in order."""
_Most = dict[_Again, int]
"""T_i of the owner with most, by the repeats that it shares with others."""


@dataclass(frozen=True, slots=True)
class Epsilon:
    """Exact, at the task's δ and rates, of the owner with most."""

    spent: float
    """Infinite where the accountant has no bound."""
    left: float | None
    """How much more it may become until the task is over, with its owner in every round that the
    limit leaves it. None where that has no bound."""


class Epsilons:
    """ε by adversary; computed anew when a charge or a release has come: a tenth of a second.

    Args:
        task: gives σ, the rates, δ, T and the limit.
    """

    def __init__(self, task: Task) -> None:
        self._task = task
        self._known: tuple[int, _Most] | None = None
        self._found: dict[Adversary, Epsilon] = {}
        # The end is mostly the same from round to round.
        self._against = lru_cache(16)(self._compute_against)

    def by_adversary(
        self,
        released: int,
        taken: Mapping[ClientId, int],
        again: Mapping[ClientId, Mapping[int, int]],
    ) -> Mapping[Adversary, Epsilon]:
        """What the charges so far come to.

        Args:
            released: how many versions are.
            taken: T_i, versions that each client was charged for.
            again: of them, those with further releases: versions by m ≥ 1.
        """
        most: _Most = {}
        for client, count in taken.items():
            # ε grows with the count: of owners with the same repeats the one with most is enough.
            repeats = tuple(sorted(again.get(client, {}).items()))
            most[repeats] = max(most.get(repeats, 0), count)
        if self._known != (released, most):
            self._found = dict(self._compute(released, most or {(): 0}))
            self._known = released, most
        return self._found

    def _compute(self, released: int, most: _Most) -> Iterator[tuple[Adversary, Epsilon]]:
        now = [self._against(released, count, again) for again, count in most.items()]
        end = [self._at_the_end(released, count, again) for again, count in most.items()]
        for adversary in Adversary:
            spent = max(each[adversary] for each in now)
            left = max(each[adversary] for each in end) - spent
            yield adversary, Epsilon(spent, max(0.0, left) if math.isfinite(left) else None)

    def _at_the_end(self, released: int, count: int, again: _Again) -> Mapping[Adversary, float]:
        task = self._task
        rounds = task.training.rounds
        # A version that is charged and not released yet is among both.
        total = max(count, min(count + rounds - released, rounds))
        try:
            more = participations_left(task, task.privacy.record_rate, count, dict(again))
        except Misconfiguration:
            return dict.fromkeys(Adversary, math.inf)
        return self._against(rounds, total if more is None else min(total, count + more), again)

    def _compute_against(self, rounds: int, count: int, again: _Again) -> Mapping[Adversary, float]:
        by_m = Counter(dict(again))
        by_m[0] = count - by_m.total()
        counts: ReleaseCounts = +by_m
        # Charges count that no release followed, too: a share may have left.
        run = Run.of(self._task, rounds=max(rounds, count), counts=counts)
        exact = (AccountantName.EXACT,)
        stated = guarantees(run, self._task.privacy.delta, accountants=exact)
        return {each.adversary: each.epsilon for each in stated}
