"""Label flipping, plain and with updates scaled by γ (Xie et al. Sec. 6.1)."""

import numpy as np

from precad.experiments.poisoning.attack import ATTACKS, Attack, Images, Labels, Reals, Scene

GAMMA = 10.0


@ATTACKS.register("label-flipping")
class LabelFlipping(Attack):
    """Every label becomes the next one."""

    def poison(self, x: Images, y: Labels, number: int, classes: int) -> tuple[Images, Labels]:
        """The next label for each record."""
        del number
        return x, (y + 1) % classes

    def goal(self, x: Images, y: Labels, classes: int) -> tuple[Images, Labels]:
        """All records, with the next label."""
        return x, (y + 1) % classes


@ATTACKS.register("scaled-label-flipping")
class ScaledLabelFlipping(LabelFlipping):
    """The same with updates γ times as long, as far as the bound lets them.

    Args:
        gamma: γ.
    """

    def __init__(self, gamma: float = GAMMA) -> None:
        self._gamma = gamma

    def submit(self, honest: Reals, scene: Scene) -> Reals:
        """γ times the updates."""
        del scene
        return np.asarray(self._gamma * honest)
