"""The most that owners with a share of the data can add, where bounds follow sizes.

Which of these sets is the worst depends on the coin: one large owner is seldom drawn
and then adds much, many small ones together add less, but always some. So no set is
chosen. The j-th largest bound in any of them is at most ``bounds[j − 1]``, and all
bounds of one together are at most ``total``: the shift of every set is at most that of
owners with these bounds, cut off at that total. Without a coin this is the total alone.
"""

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from precad.accounting.events import SampledGaussian
from precad.common import checks
from precad.common.errors import Misconfiguration


@dataclass(frozen=True, slots=True)
class WorstOwners:
    """Bounds on any set of owners that holds at most a share of all records."""

    bounds: tuple[float, ...]
    """The largest j-th bound of any such set; as many as its owners may be."""
    total: float
    """The most that all bounds of such a set are together. Of a knapsack whose last
    item may be taken in part, so it is at least the true one."""

    @classmethod
    def of_share(
        cls,
        clips: Sequence[float],
        records: Sequence[int],
        share: float,
    ) -> "WorstOwners":
        """Return the bounds for a ``share`` of all records.

        Args:
            clips: C_i/C of each owner.
            records: How many each holds, in the same order.
            share: Of all records, what such a set may hold, in [0, 1].

        Raises Misconfiguration: it isn't a share, or no owner holds so little.
        """
        checks.rate("data_share", share)
        # Products of floats may end just below a whole number of records.
        room = math.floor(share * sum(records) * (1 + 1e-12))
        owners = [
            (clip, held)
            for clip, held in zip(clips, records, strict=True)
            if held <= room
        ]
        owners.sort(reverse=True)
        bounds = []
        # The most of the owners so far that fit together: those with the fewest records.
        largest_first: list[int] = []
        used = 0
        for clip, held in owners:
            heapq.heappush(largest_first, -held)
            used += held
            if used > room:
                used += heapq.heappop(largest_first)
            if len(largest_first) > len(bounds):
                bounds.append(clip)
        if not bounds:
            remedy = "every owner holds more: give a larger share"
            raise Misconfiguration("data_share", share, remedy)
        total = 0.0
        for clip, held in sorted(owners, key=lambda owner: owner[1] / owner[0]):
            taken = min(room, held)
            total += clip * taken / held
            room -= taken
        return cls(tuple(bounds), total)

    def event(self, of_any: SampledGaussian, absent: int = 0) -> SampledGaussian:
        """Return rounds in which groups are such owners, beside ``absent`` of any size.

        ``of_any`` are the rounds as an owner with the bound C meets them.
        """
        return replace(
            of_any,
            group_bounds=(1.0,) * absent + self.bounds,
            group_total=absent + self.total,
        )
