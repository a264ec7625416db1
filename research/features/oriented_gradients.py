"""Histograms of oriented gradients: features by a fixed rule, which cost no privacy.

Dalal and Triggs, "Histograms of Oriented Gradients for Human Detection", CVPR 2005, in
a simple form. Each image becomes its own features; no mean or scale of a data set goes
in.
"""

import numpy as np
from numpy.typing import NDArray

from precad.common.errors import Misconfiguration

LENGTH = 4.0
"""L2 norm of a record's features: the larger, the fewer rounds, until clips take it
back."""
_SMALL = 8
_IMAGE_AXES = 4


def oriented_gradients(
    images: NDArray[np.float32], directions: int = 8
) -> NDArray[np.float32]:
    """How much of an image's edges runs in which direction, cell by cell.

    The gradient of the grey values at each pixel, its length counted under the two nearest
    directions, averaged over cells; square roots, then the whole at length ``LENGTH``.

    Args:
        images: ``[n, 1, s, s]``; cells have 4 × 4 pixels, or 2 × 2 where s is at most
            8.
        directions: of a full turn.

    Returns:
        ``[n, cells · cells · directions]``; zeros for an image of one grey.

    Raises:
        Misconfiguration: no square grey images that cells fill.
    """
    if (
        images.ndim != _IMAGE_AXES
        or images.shape[1] != 1
        or images.shape[2] != images.shape[3]
    ):
        raise Misconfiguration(
            "images", list(images.shape), "give square grey ones, [n, 1, s, s]"
        )
    count, _, side, _ = images.shape
    cell = 2 if side <= _SMALL else 4
    if side % cell:
        raise Misconfiguration("images", side, f"a side must be a multiple of {cell}")
    down, across = np.gradient(images[:, 0], axis=(1, 2))
    length, angle = np.hypot(down, across), np.arctan2(down, across)
    place = angle / (2 * np.pi) * directions % directions
    lower, part = np.floor(place) % directions, place % 1
    layers = [
        length * ((lower == k) * (1 - part) + ((lower + 1) % directions == k) * part)
        for k in range(directions)
    ]
    split = (count, directions, side // cell, cell, side // cell, cell)
    features = np.sqrt(np.stack(layers, 1).reshape(split).mean((3, 5))).reshape(
        count, -1
    )
    norms = np.linalg.norm(features, axis=1, keepdims=True)
    found: NDArray[np.float32] = (LENGTH * features / np.maximum(norms, 1e-6)).astype(
        np.float32
    )
    return found
