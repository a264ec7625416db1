"""How blocks share a record's norm: a_j with Σ a_j² = 1.

A sum of block j has noise of standard deviation s·Δ_j/a_j. Its error counts w_j times.
"""

from collections.abc import Sequence
from enum import StrEnum

import numpy as np

from research.questions.block import Floats


class Split(StrEnum):
    """What the shares make least."""

    SQUARES = "squares"
    """Σ (w_j·Δ_j/a_j)²: a_j² ∝ w_j·Δ_j."""
    EQUAL = "equal"
    """The worst w_j·Δ_j/a_j, all being equal then: a_j ∝ w_j·Δ_j."""


def shares_of(
    norms: Sequence[float], weights: Sequence[float], split: Split = Split.SQUARES
) -> Floats:
    """Return the shares a, ``[blocks] float64`` with Σ a² = 1.

    Args:
        norms: Δ of each block, above 0.
        weights: w of each block, above 0: how much its error counts.
        split: What is made least.

    Raises:
        ValueError: a norm or a weight isn't above 0, or their numbers differ.
    """
    needs = np.multiply(norms, weights)
    if len(norms) != len(weights) or not np.all(needs > 0):
        raise ValueError("norms and weights are above 0, one of each for a block")
    squares = needs if split is Split.SQUARES else needs**2
    shares: Floats = np.sqrt(squares / squares.sum())
    return shares
