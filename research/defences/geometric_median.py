"""RFA (Pillutla, Kakade, Harchaoui 2022): the geometric median by smoothed Weiszfeld steps."""

import numpy as np

from research.defences import DEFENCES, Rows

_STEPS = 100
_SMOOTHING = 1e-6
_CLOSE = 1e-9


@DEFENCES.register("rfa")
def rfa(updates: Rows, bad: int) -> Rows:
    """What has the least sum of distances to all updates, each counted alike."""
    del bad
    middle = updates.mean(axis=0)
    for _ in range(_STEPS):
        distances = np.linalg.norm(updates - middle, axis=1)
        weights = 1 / np.maximum(
            distances, _SMOOTHING * max(1.0, float(distances.max()))
        )
        found = weights @ updates / weights.sum()
        moved = float(np.linalg.norm(found - middle))
        middle = found
        if moved <= _CLOSE * max(1.0, float(np.linalg.norm(middle))):
            break
    return np.asarray(middle)
