"""The fixed public denominator of a round's mean (privacy.md; departs from PRECAD eq. (2))."""

import math
from collections.abc import Iterable

from precad.common.errors import Misconfiguration


def fixed_denominator(client_rate: float, enrolled: Iterable[tuple[int, float]]) -> float:
    """q·Σ_i p_i·|D_i| over all enrolled clients.

    It doesn't depend on who took part in a round, so neighbouring data sets share it and an
    absent client or record just contributes zero.

    Args:
        client_rate: q.
        enrolled: ``(|D_i|, p_i)`` of every enrolled client, frozen before round 0. The sum is
            exactly rounded, so their order doesn't matter.

    Raises:
        Misconfiguration: a rate lies outside (0, 1], a size is negative, or all are zero.
    """
    if not 0 < client_rate <= 1:
        raise Misconfiguration("client_rate", client_rate, "q must lie in (0, 1]")
    expected = []
    for records, rate in enrolled:
        if records < 0:
            raise Misconfiguration("records", records, "|D_i| can't be negative")
        if not 0 < rate <= 1:
            raise Misconfiguration("record_rate", rate, "p_i must lie in (0, 1]")
        expected.append(rate * records)
    denominator = client_rate * math.fsum(expected)
    if denominator <= 0:
        raise Misconfiguration("enrolled", expected, "at least one client must hold records")
    return denominator
