"""The most that owners with a share of the data can add, where bounds follow sizes.

Which of these sets is the worst depends on the coin: one large owner is seldom drawn
and then adds much, many small ones together add less, but always some. So no set is
chosen. The j-th largest bound of any of them is at most that of the j owners that fit
with the largest least bound, and all bounds of a set together are at most those of a
knapsack whose last item is taken in part. The shift of every set is at most that of
owners with these bounds, cut off at that total; without a coin, the total alone.
"""

import heapq
import math
from collections.abc import Sequence
from dataclasses import replace

from precad.accounting import SampledGaussian
from precad.common import Misconfiguration, checks


def of_worst_owners(
    of_any: SampledGaussian,
    bounds: Sequence[float],
    records: Sequence[int],
    share: float,
) -> SampledGaussian:
    """Return rounds whose groups are owners that hold a share of all records.

    There are as many ``group_bounds`` as such owners may be. Raises Misconfiguration:
    ``share`` isn't one, nobody knows who holds how much, or no owner holds so little.

    Args:
        of_any: The rounds, as an owner with the bound C meets them.
        bounds: C_i/C of each owner.
        records: How many each holds, in the same order.
        share: Of all records, what the owners of a group may hold.
    """
    # Products of floats may end just below a whole number of records.
    room = math.floor(checks.rate("data_share", share) * sum(records) * (1 + 1e-12))
    owners = [owner for owner in zip(bounds, records, strict=True) if owner[1] <= room]
    if not owners:
        raise Misconfiguration(
            "data_share",
            share,
            "no run or option says who holds how much, or every owner holds more",
        )
    largest: list[float] = []
    # The most of the owners so far that fit together: those with the fewest records.
    fitting: list[int] = []
    used = 0
    for bound, held in sorted(owners, reverse=True):
        heapq.heappush(fitting, -held)
        used += held
        if used > room:
            used += heapq.heappop(fitting)
        if len(fitting) > len(largest):
            largest.append(bound)
    total = 0.0
    for bound, held in sorted(owners, key=lambda owner: owner[1] / owner[0]):
        taken = min(room, held)
        total += bound * taken / held
        room -= taken
    return replace(of_any, group_bounds=tuple(largest), group_total=total)
