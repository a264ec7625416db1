"""Scattering coefficients as a linear model takes them best: whitened by public digits.

That a linear model on scattering's coefficients is the best that is known with little privacy to
spend is Tramèr and Boneh's, "Differentially Private Learning Needs Better Features (or Much More
Data)", ICLR 2021. Their data normalisation, Sec. 4, takes means and variances of the private
records and pays for them. Here all that is learned of data is learned of public ones:
scikit-learn's 1,797 digits with their labels, drawn over and over (``public_digits``). From these
come each channel's deviation, the mean, the principal directions that are kept, and the covariance
of digits of the same class, by which features are whitened as in linear discriminant analysis: what
makes two digits of a class differ counts less, so that the same noise hides less of the rest.
Here half of that, a power of -1/4 of the covariance in place of -1/2, did best.

A record's features are its own: nothing private but the record goes into them, so they cost no
privacy, and owners that compute them apart get the same up to rounding.
"""

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh

from precad.common.terminal.progress import Told, nobody
from precad.simulation.data.public_digits import COPIES, drawn_digits
from precad.simulation.data.scattering import scattering

LENGTH = 20.0
"""L2 norm of a record's features."""
_DIRECTIONS = 1000
"""Most that are kept."""
_POWER = -0.25
_LEAST = 1e-3
"""Added to the covariance's eigenvalues, as a part of the largest."""
_FLAT = 1e-5
"""Least length that an image's features are divided by."""
_CLASSES = 10
_CHUNK = 500
"""Images at a time."""

_Real = NDArray[np.float32]
_Exact = NDArray[np.float64]


_maps: dict[int, tuple[_Real, _Real]] = {}
"""By the side of images: a minute of work, done once a process."""


def scattering_features(images: _Real, told: Told = nobody) -> _Real:
    """Square roots of all coefficients, mapped by what public digits say, at length ``LENGTH``.

    Args:
        images: ``[n, 1, s, s]``, s a multiple of 4, greys from 0 to 1.
        told: how far it is; the first time the public digits come before the images.

    Returns:
        ``[n, min(1000, k)]`` for k coefficients; 1,000 for images of 28 × 28.

    Raises:
        Misconfiguration: no square grey images that 4 divides.
    """
    # Roots first, of none: what is no image is refused before a minute of work.
    _roots(images[:0])
    side = images.shape[2]
    if side not in _maps:
        _maps[side] = _public_map(side, told)
    mean, matrix = _maps[side]
    features = np.empty((len(images), matrix.shape[1]), np.float32)
    for start in range(0, len(images), _CHUNK):
        told("images", start, len(images))
        some = slice(start, start + _CHUNK)
        features[some] = (_roots(images[some]) - mean) @ matrix
    norms = np.linalg.norm(features, axis=1, keepdims=True)
    features *= LENGTH / np.maximum(norms, _FLAT)
    return features


def _roots(images: _Real) -> _Real:
    """Square roots of coefficients, ``[n, k]``, a channel's beside one another."""
    found = scattering(images)
    channels, cells = found.shape[1], found.shape[2] * found.shape[3]
    return np.sqrt(found, out=found).reshape(len(found), channels * cells)


def _public_map(side: int, told: Told) -> tuple[_Real, _Real]:
    """The mean ``[k]`` and the matrix ``[k, min(1000, k)]`` that roots are multiplied by."""
    mean, whole, within = _of_public_digits(side, told)
    told("principal directions", 0, 1)
    spread = np.sqrt(_by_channel(np.diag(whole), side))
    whole /= np.outer(spread, spread)
    within /= np.outer(spread, spread)
    kept = _leading_directions(whole)
    matrix = (kept / spread[:, None]) @ _whitening(kept.T @ within @ kept)
    return mean.astype(np.float32), matrix.astype(np.float32)


def _of_public_digits(side: int, told: Told) -> tuple[_Exact, _Exact, _Exact]:
    """The roots' mean ``[k]``, their covariance ``[k, k]``, and their covariance within classes."""
    counts = np.zeros(_CLASSES)
    sums: _Exact = np.zeros(())
    products: _Exact = np.zeros(())
    for number, (images, labels) in enumerate(drawn_digits(side)):
        told("copies of public digits", number, COPIES)
        roots = _roots(images).astype(np.float64)
        of_class = np.eye(_CLASSES)[labels]
        counts += of_class.sum(axis=0)
        sums = sums + of_class.T @ roots
        products = products + roots.T @ roots
    products = products / counts.sum()
    mean: _Exact = sums.sum(axis=0) / counts.sum()
    means_of_classes = sums / counts[:, None]
    between = means_of_classes.T @ (sums / counts.sum())
    return mean, products - np.outer(mean, mean), products - between


def _by_channel(variances: _Exact, side: int) -> _Exact:
    """Each replaced by the mean over its channel's cells."""
    cells = (side // 4) ** 2
    return np.repeat(variances.reshape(-1, cells).mean(axis=1), cells)


def _leading_directions(covariance: _Exact) -> _Exact:
    """Eigenvectors of the largest eigenvalues, ``[k, min(1000, k)]``.

    An eigenvector's sign is the library's whim: here its largest entry is positive.
    """
    size = len(covariance)
    _, vectors = eigh(covariance, subset_by_index=[max(0, size - _DIRECTIONS), size - 1])
    largest = np.abs(vectors).argmax(axis=0)
    found: _Exact = vectors[:, ::-1] * np.sign(vectors[largest, np.arange(vectors.shape[1])])[::-1]
    return found


def _whitening(covariance: _Exact) -> _Exact:
    """(Σ + c·I)^(-1/4), symmetric: eigenvectors' signs and order leave it as it is."""
    values, vectors = eigh(covariance)
    values = np.maximum(values, 0) + _LEAST * values.max()
    found: _Exact = (vectors * values**_POWER) @ vectors.T
    return found
