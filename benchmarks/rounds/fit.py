"""How a time grows with a size."""

from collections.abc import Mapping
from itertools import pairwise

import numpy as np


def exponent(times: Mapping[int, float]) -> float | None:
    """The b of the power law time = a·size^b that is nearest in the logarithms.

    Args:
        times: positive, by size.

    Returns:
        b, or None for fewer than two sizes.
    """
    if len(times) < 2:
        return None
    sizes, taken = np.log(list(times)), np.log(list(times.values()))
    return float(np.polyfit(sizes, taken, 1)[0])


def steps(times: Mapping[int, float]) -> dict[str, float]:
    """The exponent from each size to the next: fixed costs show in the first ones."""
    sizes = sorted(times)
    return {
        f"{a} to {b}": float(np.log(times[b] / times[a]) / np.log(b / a))
        for a, b in pairwise(sizes)
    }
