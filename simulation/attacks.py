"""Attacks by name, for the command line.

Any other is a function of ten lines: docs/simulate.md, "An attack of your own".
"""

from functools import partial

import numpy as np

from precad.common.encode import clip_update
from precad.common.errors import Misconfiguration
from precad.simulation.attack_vectors import Forgery, forged_update
from precad.simulation.view import Attack, Matrix, View


def flip(updates: Matrix, view: View) -> Matrix:
    """Against the cohort: minus the mean of its honest updates, as long as the bound allows."""
    mean = np.concatenate([view.others, updates]).mean(axis=0)
    length = float(np.linalg.norm(mean))
    if length == 0:
        return updates
    longest = np.rint(-mean / length * 2 * view.task.bound).astype(np.int64)
    row = clip_update(longest, view.task.bound, view.task.fractional_bits)
    return np.tile(row, (len(updates), 1))


def forge(kind: Forgery, updates: Matrix, view: View) -> Matrix:
    """What bad clients of the demo submit; rejected, always."""
    return np.array([forged_update(kind, view.task, update) for update in updates])


NAMED: dict[str, Attack] = {
    "flip": flip,
    **{kind.value: partial(forge, kind) for kind in Forgery},
}


def named(name: str) -> Attack:
    """The attack of this name.

    Raises:
        Misconfiguration: there is none.
    """
    if name not in NAMED:
        raise Misconfiguration("attack", name, f"use one of {', '.join(NAMED)}, or a function")
    return NAMED[name]
