"""Mean, median and trimmed mean, each coordinate by itself (Yin et al. 2018)."""

import numpy as np

from research.defences import DEFENCES, Rows, need


@DEFENCES.register("mean")
def mean(updates: Rows, bad: int) -> Rows:
    """No defence."""
    del bad
    return np.asarray(updates.mean(axis=0))


@DEFENCES.register("median")
def median(updates: Rows, bad: int) -> Rows:
    """The middle one of each coordinate."""
    del bad
    return np.asarray(np.median(updates, axis=0))


@DEFENCES.register("trimmed-mean")
def trimmed_mean(updates: Rows, bad: int) -> Rows:
    """The mean without the ``bad`` largest and the ``bad`` smallest of each coordinate."""
    need("trimmed-mean", len(updates), 2 * bad + 1, bad)
    ordered = np.sort(updates, axis=0)
    return np.asarray(ordered[bad : len(updates) - bad].mean(axis=0))
