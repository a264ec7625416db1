"""Flipping of one label into another (Xie et al. Sec. 6.1.3): ones become zeros."""

import numpy as np

from research.poisoning.attack import ATTACKS, Attack, Images, Labels

SOURCE, TARGET = 1, 0


@ATTACKS.register("one-label")
class OneLabel(Attack):
    """Records of label 1 are named 0; all others stay as they are."""

    def poison(
        self, x: Images, y: Labels, number: int, classes: int
    ) -> tuple[Images, Labels]:
        """The same records."""
        del number, classes
        return x, np.where(y == SOURCE, TARGET, y)

    def goal(self, x: Images, y: Labels, classes: int) -> tuple[Images, Labels]:
        """Records of the source label, with the target's."""
        del classes
        source = y == SOURCE
        return x[source], np.full(int(source.sum()), TARGET)
