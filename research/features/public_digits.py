"""Handwritten digits that everybody has: scikit-learn's, drawn as MNIST's are."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import affine_transform, gaussian_filter, zoom

from precad.simulation.datasets import digits_table

_Real = NDArray[np.float32]

COPIES = 10
"""The first is drawn as it is, the others are changed at random."""
_SEED = 0
"""So that everybody draws the same."""
_GREYS = 16.0
_FINER = 4
"""Pixels of a side are first made this many times as many."""
_DRAWN = 20 / 28
"""Part of a side that a digit takes up, as MNIST's images were made."""
_BLUR = 1.2
"""Standard deviation in finer pixels; hides that there were only 8 × 8."""
_EDGE = 0.45
"""Grey of the blurred digit at which a stroke ends."""
_CONTRAST = 3.0
_ROTATION, _SHEAR, _SCALE, _STROKE = np.deg2rad(15), 0.3, 0.2, 0.2
"""Most that a copy is turned (radians), slanted, stretched each way (as logarithm), and
that the grey of its strokes' ends differs."""


def drawn_digits(side: int) -> Iterator[tuple[_Real, NDArray[np.int64]]]:
    """Each copy of the 1,797 digits with its labels.

    The centre of mass is put in the middle, as in MNIST's images (LeCun et al.,
    "Gradient-Based Learning Applied to Document Recognition", 1998, Sec. III-A).

    Args:
        side: s, in pixels.

    Yields:
        Images ``[1797, 1, s, s]`` with greys from 0 to 1, and labels ``[1797]``.
    """
    table = digits_table()
    finer = zoom(table[:, :-1].reshape(-1, 8, 8) / _GREYS, (1, _FINER, _FINER), order=1)
    blurred = gaussian_filter(finer, (0, _BLUR, _BLUR))
    middles = _centres_of_mass(finer)
    times = finer.shape[1] / (side * _DRAWN)
    chance = np.random.default_rng(_SEED)
    for copy in range(COPIES):
        changes = chance.uniform(-1, 1, (len(finer), 5)) * (copy > 0)
        images = np.empty((len(finer), 1, side, side), np.float32)
        for image, digit, middle, change in zip(
            images, blurred, middles, changes, strict=True
        ):
            image[0] = _drawn(digit, middle, times, change, side)
        yield images, table[:, -1].astype(np.int64)


def _drawn(
    digit: NDArray[np.float64],
    middle: NDArray[np.float64],
    times: float,
    change: NDArray[np.float64],
    side: int,
) -> NDArray[np.float64]:
    """One digit with its ``middle`` in the middle; ``change`` has five numbers from -1 to 1."""
    angle, shear = change[0] * _ROTATION, change[1] * _SHEAR
    turned = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    across, down = times * np.exp(change[2:4] * _SCALE)
    places = turned @ np.array([[1, 0], [shear, 1]]) @ np.diag([down, across])
    begin = middle - places @ np.full(2, (side - 1) / 2)
    grey = affine_transform(digit, places, begin, (side, side), order=1)
    found: NDArray[np.float64] = (grey - _EDGE - change[4] * _STROKE) * _CONTRAST + 0.5
    return np.clip(found, 0, 1)


def _centres_of_mass(images: NDArray[np.float64]) -> NDArray[np.float64]:
    """``[n, 2]``, down and across, in pixels."""
    mass, places = images.sum((1, 2)), np.arange(images.shape[1])
    sums = np.stack([images.sum(2) @ places, images.sum(1) @ places], axis=1)
    found: NDArray[np.float64] = sums / mass[:, None]
    return found
