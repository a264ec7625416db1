"""Model replacement by a plain factor (Xie et al. Sec.

6.1.3): Δ ← γΔ of updates on bad records.
"""

import numpy as np

from research.poisoning.attack import ATTACKS, Attack, Images, Labels, Reals, Scene
from research.poisoning.backdoors import Backdoor
from research.poisoning.distributed_backdoor import DistributedBackdoor
from research.poisoning.label_flipping import LabelFlipping
from research.poisoning.one_label import OneLabel

GAMMA = 100.0
"""As in Xie et al. Table 9."""


class Scaled(Attack):
    """Another attack's records; updates on them γ times as long, as far as the bound lets them.

    Args:
        attack: the other one.
        gamma: γ.
    """

    def __init__(self, attack: Attack, gamma: float) -> None:
        self._attack, self._gamma = attack, gamma

    def poison(
        self, x: Images, y: Labels, number: int, classes: int
    ) -> tuple[Images, Labels]:
        """The other one's."""
        return self._attack.poison(x, y, number, classes)

    def submit(self, honest: Reals, scene: Scene) -> Reals:
        """γ times the updates."""
        del scene
        return np.asarray(self._gamma * honest)

    def goal(self, x: Images, y: Labels, classes: int) -> tuple[Images, Labels] | None:
        """The other one's."""
        return self._attack.goal(x, y, classes)


@ATTACKS.register("scaled-pixel-backdoor")
def pixel_backdoor(gamma: float = GAMMA) -> Attack:
    """Its records, without its own training."""
    return Scaled(Backdoor(), gamma)


@ATTACKS.register("scaled-distributed-backdoor")
def distributed_backdoor(gamma: float = GAMMA) -> Attack:
    """Its records, without its own training."""
    return Scaled(DistributedBackdoor(), gamma)


@ATTACKS.register("scaled-label-flipping")
def label_flipping(gamma: float = GAMMA) -> Attack:
    """Every label becomes the next one, and updates are longer."""
    return Scaled(LabelFlipping(), gamma)


@ATTACKS.register("scaled-one-label")
def one_label(gamma: float = GAMMA) -> Attack:
    """One label becomes another, and updates are longer."""
    return Scaled(OneLabel(), gamma)
