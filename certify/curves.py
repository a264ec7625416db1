"""Dominating curves: what a score can become after one fixed change of the data.

For any score in [0, 1] (a probability, a vote, a bounded loss over its bound) whose expectation
is p on the clean data, the expectation p' after the change obeys ``lower(p) ≤ p' ≤ upper(p)``.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from precad.common.errors import Misconfiguration

Floats: TypeAlias = npt.NDArray[np.float64]
Integers: TypeAlias = npt.NDArray[np.int64]
Booleans: TypeAlias = npt.NDArray[np.bool_]

_LEAST_SCORE = 1e-12


def probabilities(field: str, values: npt.ArrayLike) -> Floats:
    """``values`` as a float64 array of the same shape, each in [0, 1].

    Raises Misconfiguration: an entry is NaN or outside [0, 1].
    """
    array = np.asarray(values, dtype=np.float64)
    if np.isnan(array).any():
        raise Misconfiguration(field, "NaN", "leave out points without a score, or mend the model")
    if array.size and not (array.min() >= 0 and array.max() <= 1):
        wrong = float(array.min() if array.min() < 0 else array.max())
        raise Misconfiguration(field, wrong, "scores and probabilities lie in [0, 1]; rescale them")
    return array


class Curves(ABC):
    """Bounds on a score after one fixed change of the data, vectorised over the clean score."""

    refined = False
    """Whether the same bounds on the complement event, of score 1 − p, sharpen these."""

    @abstractmethod
    def _upper(self, p: Floats) -> Floats:
        """The plain upper bound; what is outside [0, 1] is cut off."""

    @abstractmethod
    def _lower(self, p: Floats) -> Floats:
        """The plain lower bound; what is outside [0, 1] is cut off."""

    def upper(self, p: npt.ArrayLike) -> Floats:
        """The most that a score of p can become; same shape as ``p``, in [p, 1].

        Refined: what the complement must keep where that says more.
        """
        p = probabilities("score", p)
        bound = self._upper(p)
        if self.refined:
            # 1 − p loses the digits of a smaller p, and would say too much.
            least = np.where(p > 0, np.maximum(p, _LEAST_SCORE), 0.0)
            bound = np.minimum(bound, 1 - self._lower(1 - least))
        return np.clip(bound, 0, 1)

    def lower(self, p: npt.ArrayLike) -> Floats:
        """The least that a score of p can become; same shape as ``p``, in [0, p].

        Refined: what the complement can't take where that says more.
        """
        p = probabilities("score", p)
        bound = self._lower(p)
        return np.clip(np.maximum(bound, 1 - self._upper(1 - p)) if self.refined else bound, 0, 1)

    def separates(self, p_a: npt.ArrayLike, p_b: npt.ArrayLike) -> Booleans:
        """Whether A stays strictly ahead of B: ``lower(p_a) > upper(p_b)`` (Liu Thm 10)."""
        return np.asarray(self.lower(p_a) > self.upper(p_b))


class Identity(Curves):
    """Nothing changed: p' = p."""

    def _upper(self, p: Floats) -> Floats:
        return p

    _lower = _upper


@dataclass(frozen=True, slots=True)
class Best(Curves):
    """The tightest of several sound curves, point by point."""

    members: tuple[Curves, ...]

    def _upper(self, p: Floats) -> Floats:
        return np.asarray(np.min([curve.upper(p) for curve in self.members], axis=0))

    def _lower(self, p: Floats) -> Floats:
        return np.asarray(np.max([curve.lower(p) for curve in self.members], axis=0))


@dataclass(frozen=True, slots=True)
class Moved(Curves):
    """Bounds after one change, moved by what comes on top of it: D → D' → D''."""

    first: Curves
    up: Callable[[Floats], Floats]
    down: Callable[[Floats], Floats]

    def _upper(self, p: Floats) -> Floats:
        return self.up(self.first.upper(p))

    def _lower(self, p: Floats) -> Floats:
        return self.down(self.first.lower(p))
