"""Robust aggregations by name, to compare with; none of them bounds a client as a norm check does.

ByzFL 0.0.11 has some of them and isn't used: its Krum and Multi-Krum count n − f
neighbours where the paper has n − f − 2, its geometric median takes three steps from
zero with a fixed threshold of 0.1, and it has neither Bulyan nor STAT-OPT.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from precad.common.errors import Misconfiguration
from research.registry import Registry

Rows = NDArray[np.float64]
Defence = Callable[[Rows, int], Rows]
"""Updates ``[m, d]`` and how many of them may be bad in; what takes their mean's place,
``[d]``."""
DEFENCES: Registry[Defence] = Registry(
    "defence",
    "research.defences.by_coordinate",
    "research.defences.krum",
    "research.defences.geometric_median",
)


def need(defence: str, updates: int, least: int, bad: int) -> None:
    """Refuse fewer updates than a defence takes.

    Raises:
        Misconfiguration: there are.
    """
    if updates < least:
        raise Misconfiguration(
            "updates",
            updates,
            f"{defence} takes at least {least} where {bad} may be bad",
        )
