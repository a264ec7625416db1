"""What a certifier accepts: each check names the field, the value and the remedy."""

import math
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from precad.common.errors import Misconfiguration

Floats: TypeAlias = npt.NDArray[np.float64]
Integers: TypeAlias = npt.NDArray[np.int64]
Booleans: TypeAlias = npt.NDArray[np.bool_]


_LARGEST = 2**53
"""Counts and other whole numbers beyond it aren't floats any more."""


def _is_number(value: object) -> bool:
    """A float, or an integer that is one; from a file, it may be anything."""
    if isinstance(value, int | np.integer):
        return abs(int(value)) <= _LARGEST
    return isinstance(value, float | np.floating)


def positive(field: str, value: float) -> float:
    """``value`` as a finite float above zero.

    Raises:
        Misconfiguration: it isn't one.
    """
    if not (_is_number(value) and math.isfinite(value) and value > 0):
        raise Misconfiguration(field, value, "give a finite number above 0")
    return float(value)


def rate(field: str, value: float) -> float:
    """``value`` as a probability in [0, 1].

    Raises:
        Misconfiguration: it isn't one.
    """
    if not (_is_number(value) and 0 <= value <= 1):
        raise Misconfiguration(field, value, "a rate is a probability: give a number in [0, 1]")
    return float(value)


def inside_unit_interval(field: str, value: float) -> float:
    """``value`` strictly between 0 and 1, as a confidence or a δ must be.

    Raises:
        Misconfiguration: it isn't.
    """
    if not (_is_number(value) and 0 < value < 1):
        raise Misconfiguration(field, value, "give a number strictly between 0 and 1")
    return float(value)


def count(field: str, value: int, least: int = 0) -> int:
    """``value`` as an integer of at least ``least``.

    Raises:
        Misconfiguration: it isn't one.
    """
    if isinstance(value, bool) or not _is_number(value) or value % 1 != 0 or value < least:
        raise Misconfiguration(field, value, f"give a whole number of at least {least}")
    return int(value)


def probabilities(field: str, values: npt.ArrayLike) -> Floats:
    """``values`` as a float64 array of the same shape, each in [0, 1].

    Raises:
        Misconfiguration: an entry is NaN or outside [0, 1].
    """
    array = np.asarray(values, dtype=np.float64)
    if np.isnan(array).any():
        raise Misconfiguration(field, "NaN", "leave out points without a score, or mend the model")
    if array.size and not (array.min() >= 0 and array.max() <= 1):
        wrong = float(array.min() if array.min() < 0 else array.max())
        raise Misconfiguration(field, wrong, "scores and probabilities lie in [0, 1]; rescale them")
    return array
