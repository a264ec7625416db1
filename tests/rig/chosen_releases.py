"""Whoever cuts links, with every release in view: which versions have another one?

The best that it can do, by a dynamic programme over the privacy loss so far.
"""

from collections.abc import Callable

import numpy as np

from precad.common.arrays import Floats

Admits = Callable[[int, int, int], bool]
"""Whether, with so many versions and further releases charged, the newest version has
one more release (1) or a next version its first (0)."""


def delta_of_the_best_choice(
    admits: Admits, *, rate: float, noise: float, epsilon: float, rounds: int
) -> float:
    """The largest δ at ``epsilon``, a record against none, on plain grids.

    It chooses after a version's first release, knowing all losses so far, whether the
    version has a second one. A percent or two above the truth, as ``admits`` that
    never admits a further release shows.
    """
    seen = np.linspace(-6 * noise, 1 + 6 * noise, 40)

    def density(at: float) -> Floats:
        centred = np.exp(-(seen**2) / (2 * noise**2))
        found: Floats = np.exp(-((seen - at) ** 2) / (2 * noise**2)) / centred.sum()
        return found

    without, moved = density(0.0), density(1.0)
    once = (1 - rate) * without + rate * moved
    never_twice = np.outer(without, without)
    twice = (1 - rate) * never_twice + rate * np.outer(moved, moved)
    loss_once, loss_twice = np.log(once / without), np.log(twice / never_twice)
    losses = np.linspace(-4.0, epsilon + 14, 900)
    over: Floats = np.maximum(0.0, 1 - np.exp(epsilon - losses))
    known: dict[tuple[int, int], Floats] = {}

    def value(versions: int, further: int) -> Floats:
        """What is reached from each loss so far; [losses]."""
        if (versions, further) not in known:
            best = over
            if versions < rounds and admits(versions, further, 0):
                known_after = value(versions + 1, further)
                after = np.interp(losses[:, None] + loss_once, losses, known_after)
                if admits(versions + 1, further, 1):
                    again = value(versions + 1, further + 1)
                    shown = [
                        np.interp(losses[:, None] + loss_twice[i], losses, again)
                        @ (twice[i] / once[i])
                        for i in range(len(seen))
                    ]
                    after = np.maximum(after, np.stack(shown, axis=1))
                best = np.maximum(best, after @ once)
            known[versions, further] = best
        return known[versions, further]

    return float(np.interp(0.0, losses, value(0, 0)))
