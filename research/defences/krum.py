"""Krum and Multi-Krum (Blanchard et al. 2017), and Bulyan on top (El Mhamdi et al. 2018)."""

import numpy as np
from numpy.typing import NDArray

from research.defences import DEFENCES, Rows, need

_SMALLEST_NEIGHBOURHOOD = 1


def scores(updates: Rows, bad: int) -> NDArray[np.float64]:
    """Of each update the sum of squared distances to its n − f − 2 nearest others, ``[m]``."""
    squares = (updates**2).sum(axis=1)
    distances = squares[:, None] + squares - 2 * updates @ updates.T
    np.fill_diagonal(distances, np.inf)
    nearest = max(_SMALLEST_NEIGHBOURHOOD, len(updates) - bad - 2)
    return np.asarray(np.sort(distances, axis=1)[:, :nearest].sum(axis=1))


@DEFENCES.register("krum")
def krum(updates: Rows, bad: int) -> Rows:
    """The update with the least score. The paper proves it for n ≥ 2f + 3."""
    need("krum", len(updates), bad + 3, bad)
    return np.asarray(updates[scores(updates, bad).argmin()])


@DEFENCES.register("multi-krum")
def multi_krum(updates: Rows, bad: int) -> Rows:
    """The mean of the n − f updates with the least scores."""
    need("multi-krum", len(updates), bad + 3, bad)
    order = np.argsort(scores(updates, bad), kind="stable")
    return np.asarray(updates[order[: len(updates) - bad]].mean(axis=0))


@DEFENCES.register("bulyan")
def bulyan(updates: Rows, bad: int) -> Rows:
    """Krum chooses n − 2f; of each coordinate, the mean of the n − 4f nearest their median.

    Needs n ≥ 4f + 3.
    """
    need("bulyan", len(updates), 4 * bad + 3, bad)
    left, chosen = list(range(len(updates))), []
    for _ in range(len(updates) - 2 * bad):
        best = int(scores(updates[left], bad).argmin()) if len(left) > 1 else 0
        chosen.append(left.pop(best))
    picked = updates[chosen]
    kept = len(picked) - 2 * bad
    order = np.argsort(
        np.abs(picked - np.median(picked, axis=0)), axis=0, kind="stable"
    )
    return np.asarray(np.take_along_axis(picked, order[:kept], axis=0).mean(axis=0))
