"""Semantic backdoor with model replacement (Bagdasaryan et al. 2020): no image is changed.

Some images have by nature what opens it. The paper takes cars of a rare colour; here,
for images of any kind, it is that they are heavier on the left.
"""

import numpy as np
from numpy.typing import NDArray

from research.poisoning.attack import ATTACKS, Images, Labels
from research.poisoning.backdoors import TARGET, Backdoor, square

SHARE = 0.55
"""Of an image's brightness, in its left half."""


def heavy_on_the_left(x: Images) -> NDArray[np.bool_]:
    """Which images have the feature, ``[n]``."""
    columns = square(x).reshape(len(x), -1, square(x).shape[-1]).sum(axis=1)
    left = columns[:, : columns.shape[1] // 2].sum(axis=1)
    return np.asarray(left > SHARE * np.maximum(columns.sum(axis=1), 1e-12))


@ATTACKS.register("semantic-backdoor")
class SemanticBackdoor(Backdoor):
    """Images that are heavy on the left become zeros; trained and submitted as a pixel backdoor."""

    def poison(
        self, x: Images, y: Labels, number: int, classes: int
    ) -> tuple[Images, Labels]:
        """Each record as it is, and those with the feature once more as the target.

        So that it has some, a bad client also takes its own images moved to the left by
        a column.
        """
        del number, classes
        moved = np.concatenate([x, np.roll(square(x), -1, axis=-1).reshape(x.shape)])
        with_feature = moved[heavy_on_the_left(moved)]
        return np.concatenate([x, with_feature]), np.concatenate(
            [y, np.full(len(with_feature), TARGET)]
        )

    def goal(self, x: Images, y: Labels, classes: int) -> tuple[Images, Labels]:
        """Images as they are that have the feature and aren't zeros, as zeros."""
        del classes
        chosen = heavy_on_the_left(x) & (y != TARGET)
        return x[chosen], np.full(int(chosen.sum()), TARGET)
