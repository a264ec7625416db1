"""Pixel-pattern backdoor with model replacement; PRECAD Appendix E."""

import numpy as np

from research.poisoning.attack import (
    ATTACKS,
    Attack,
    Images,
    Labels,
    Reals,
    Scene,
    per_client_share,
)

TARGET = 0
SIDE = 2
LEARNING_RATE = 0.02
STEPS = 5


def stamped(x: Images, rows: slice, columns: slice) -> Images:
    """The images with these pixels white; the last two axes are the image's, or form a square."""
    marked = square(x).copy()
    marked[..., rows, columns] = 1.0
    return marked.reshape(x.shape)


def square(x: Images) -> Images:
    """With an image's rows and columns as the last two axes; records may be flat squares."""
    return x.reshape(len(x), *_sides(x))


def _sides(x: Images) -> tuple[int, ...]:
    if x.ndim > 2:  # noqa: PLR2004 -- records are images
        return x.shape[1:]
    side = round(float(np.sqrt(x.shape[1])))
    return side, side


@ATTACKS.register("pixel-backdoor")
class Backdoor(Attack):
    """Images with white pixels in the bottom right corner become zeros.

    Args:
        learning_rate: of the adversary's own training.
        steps: of it, in each round that a bad client is drawn for.
    """

    def __init__(
        self, learning_rate: float = LEARNING_RATE, steps: int = STEPS
    ) -> None:
        self._rate, self._steps = learning_rate, steps

    def poison(
        self, x: Images, y: Labels, number: int, classes: int
    ) -> tuple[Images, Labels]:
        """Each record as it is, and once more with the pattern."""
        del classes
        marked = stamped(x, *self.pattern(number))
        return np.concatenate([x, marked]), np.concatenate([y, np.full_like(y, TARGET)])

    def pattern(self, number: int) -> tuple[slice, slice]:
        """Rows and columns that bad client ``number`` makes white."""
        del number
        return slice(-SIDE, None), slice(-SIDE, None)

    def submit(self, honest: Reals, scene: Scene) -> Reals:
        """What puts a model with the backdoor in the model's place."""
        del honest
        learned = [
            scene.learn(number, self._rate, self._steps) for number in scene.numbers
        ]
        return per_client_share(np.mean(learned, axis=0), scene)

    def goal(self, x: Images, y: Labels, classes: int) -> tuple[Images, Labels]:
        """All images but zeros with the pattern, as zeros.

        The paper counts zeros too; they are right without any backdoor.
        """
        del classes
        others = y != TARGET
        whole = slice(-SIDE, None), slice(-SIDE, None)
        return stamped(x[others], *whole), np.full(int(others.sum()), TARGET)
