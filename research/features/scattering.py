"""Scattering coefficients as a linear model takes them best: whitened by public digits.

That a linear model on scattering's coefficients is the best that is known with little
privacy to spend is Tramèr and Boneh's, "Differentially Private Learning Needs Better
Features (or Much More Data)", ICLR 2021. Their data normalisation, Sec. 4, takes means
and variances of the private records and pays for them. Here all that is learned of data
is learned of public ones: scikit-learn's 1,797 digits with their labels, drawn over and
over (``public_digits``). From these come each channel's deviation, the mean, the
principal directions that are kept, and the covariance of digits of the same class, by
which features are whitened as in linear discriminant analysis: what makes two digits of
a class differ counts less, so that the same noise hides less of the rest. Here half of
that, a power of -1/4 of the covariance in place of -1/2, did best.

A record's features are its own: nothing private but the record goes into them, so they
cost no privacy, and owners that compute them apart get the same up to rounding.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh

from precad.common.errors import Misconfiguration
from research.features.public_digits import drawn_digits

_BANDWIDTH = 0.8
"""Standard deviation of the finest wavelet's envelope, in pixels."""
_FREQUENCY = 0.75 * np.pi
"""Of the finest wavelet, in radians a pixel."""
_SLANT = 4.0
"""Over ``directions``: how much shorter an envelope is along its wave than across."""
_IMAGE_AXES = 4
_CHUNK = 500
"""Images at a time."""

_Real = NDArray[np.float32]
_Spectrum = NDArray[Any]
"""In complex64, which NumPy's declarations of its transforms don't say."""


def scattering(images: _Real, scales: int = 2, directions: int = 8) -> _Real:
    """Scattering coefficients of orders 0, 1 and 2.

    Args:
        images: ``[n, 1, s, s]``, s a multiple of 2^scales.
        scales: J; averages are taken over about 2^J pixels.
        directions: L, of half a turn.

    Returns:
        ``[n, 1 + J·L + L²·J·(J−1)/2, s/2^J, s/2^J]``.

    Raises:
        Misconfiguration: no square grey images that 2^scales divides.
    """
    if (
        images.ndim != _IMAGE_AXES
        or images.shape[1] != 1
        or images.shape[2] != images.shape[3]
    ):
        raise Misconfiguration(
            "images", list(images.shape), "give square grey ones, [n, 1, s, s]"
        )
    side, step = images.shape[2], 2**scales
    if side % step:
        raise Misconfiguration("images", side, f"a side must be a multiple of {step}")
    bank = _Bank(side, scales, directions)
    channels = 1 + scales * directions + directions**2 * scales * (scales - 1) // 2
    found = np.empty((len(images), channels, side // step, side // step), np.float32)
    for start in range(0, len(images), _CHUNK):
        some = images[start : start + _CHUNK, 0].astype(np.float32)
        for channel, averages in enumerate(bank.channels(some)):
            found[start : start + _CHUNK, channel] = averages
    return found


class _Bank:
    """Wavelets of all scales and directions, and the averages, for images of one size."""

    def __init__(self, side: int, scales: int, directions: int) -> None:
        self._scales, self._pad = scales, 2**scales
        whole = side + 2 * self._pad
        self._wavelets = [
            [
                _morlet(whole, scale, np.pi * k / directions, _SLANT / directions)
                for k in range(directions)
            ]
            for scale in range(scales)
        ]
        self._averages = [_averages(side, scales, scale) for scale in range(scales)]

    def channels(self, images: _Real) -> Iterator[_Real]:
        """Order 0, order 1 scale by scale, then order 2, each ``[n, s/2^J, s/2^J]``."""
        room = ((0, 0), (self._pad, self._pad), (self._pad, self._pad))
        padded = np.pad(images, room, mode="symmetric")
        yield self._averaged(padded, 0)
        spectrum = np.fft.fft2(padded)
        second: list[_Real] = []
        for scale, wavelets in enumerate(self._wavelets):
            for wavelet in wavelets:
                moduli = _moduli(spectrum, wavelet, scale)
                yield self._averaged(moduli, scale)
                if scale + 1 < self._scales:
                    second += self._second(np.fft.fft2(moduli), scale)
        yield from second

    def _second(self, spectrum: _Spectrum, scale: int) -> Iterator[_Real]:
        """Moduli of moduli at every coarser scale; finer ones hold next to nothing."""
        for coarser in range(scale + 1, self._scales):
            for wavelet in self._wavelets[coarser]:
                # Of fewer pixels a sum has fewer terms.
                fitting = _folded(wavelet, scale) * np.float32(4**scale)
                moduli = _moduli(spectrum, fitting, coarser - scale)
                yield self._averaged(moduli, coarser)

    def _averaged(self, layer: _Real, scale: int) -> _Real:
        average = self._averages[scale]
        found: NDArray[Any] = average @ layer @ average.T
        return found


def _moduli(spectrum: _Spectrum, wavelet: _Real, coarser: int) -> _Real:
    """|x ∗ ψ| at every 2^coarser-th pixel, from the spectrum of x."""
    found: _Spectrum = np.fft.ifft2(_folded(spectrum * wavelet, coarser))
    moduli: _Real = np.abs(found)
    return moduli


def _folded(spectrum: NDArray[Any], coarser: int) -> NDArray[Any]:
    """The spectrum of every 2^coarser-th pixel."""
    if not coarser:
        return spectrum
    times, side = 2**coarser, spectrum.shape[-1] // 2**coarser
    split = spectrum.reshape(*spectrum.shape[:-2], times, side, times, side)
    folded: NDArray[Any] = split.mean((-4, -2))
    return folded


def _morlet(side: int, scale: int, angle: float, slant: float) -> _Real:
    """The spectrum of a wave under a Gaussian envelope whose sum is zero; real by symmetry."""
    places = (np.arange(side) + side // 2) % side - side // 2
    down, across = np.meshgrid(places, places, indexing="ij")
    along = across * np.cos(angle) + down * np.sin(angle)
    beside = down * np.cos(angle) - across * np.sin(angle)
    width = _BANDWIDTH * 2**scale
    envelope = np.exp(-(along**2 + (slant * beside) ** 2) / (2 * width**2))
    envelope *= slant / (2 * np.pi * width**2)
    wave = envelope * np.exp(1j * _FREQUENCY / 2**scale * along)
    wave -= envelope * (wave.sum() / envelope.sum())
    spectrum: _Real = np.fft.fft2(wave).real.astype(np.float32)
    return spectrum


def _averages(side: int, scales: int, scale: int) -> _Real:
    """Gaussian means around the centres of cells, ``[s/2^J, (s + 2·2^J)/2^scale]``."""
    step = 2**scales
    places = np.arange(-step, side + step, 2**scale)
    centres = (np.arange(side // step) + 0.5) * step - 0.5
    width = _BANDWIDTH * 2 ** (scales - 1)
    weights = np.exp(-((places - centres[:, None]) ** 2) / (2 * width**2))
    weights /= weights.sum(axis=1, keepdims=True)
    found: _Real = weights.astype(np.float32)
    return found


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
_Exact = NDArray[np.float64]


_maps: dict[int, tuple[_Real, _Real]] = {}
"""By the side of images: a minute of work, done once a process."""


def scattering_features(images: _Real) -> _Real:
    """Square roots of all coefficients, mapped by what public digits say, at length ``LENGTH``.

    Args:
        images: ``[n, 1, s, s]``, s a multiple of 4, greys from 0 to 1.

    Returns:
        ``[n, min(1000, k)]`` for k coefficients; 1,000 for images of 28 × 28.

    Raises:
        Misconfiguration: no square grey images that 4 divides.
    """
    # Roots first, of none: what is no image is refused before a minute of work.
    _roots(images[:0])
    side = images.shape[2]
    if side not in _maps:
        _maps[side] = _public_map(side)
    mean, matrix = _maps[side]
    features = np.empty((len(images), matrix.shape[1]), np.float32)
    for start in range(0, len(images), _CHUNK):
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


def _public_map(side: int) -> tuple[_Real, _Real]:
    """The mean ``[k]`` and the matrix ``[k, min(1000, k)]`` that roots are multiplied by."""
    mean, whole, within = _of_public_digits(side)
    spread = np.sqrt(_by_channel(np.diag(whole), side))
    whole /= np.outer(spread, spread)
    within /= np.outer(spread, spread)
    kept = _leading_directions(whole)
    matrix = (kept / spread[:, None]) @ _whitening(kept.T @ within @ kept)
    return mean.astype(np.float32), matrix.astype(np.float32)


def _of_public_digits(side: int) -> tuple[_Exact, _Exact, _Exact]:
    """The roots' mean ``[k]``, their covariance ``[k, k]``, and their covariance within classes."""
    counts = np.zeros(_CLASSES)
    sums: _Exact = np.zeros(())
    products: _Exact = np.zeros(())
    for images, labels in drawn_digits(side):
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
    _, vectors = eigh(
        covariance, subset_by_index=[max(0, size - _DIRECTIONS), size - 1]
    )
    largest = np.abs(vectors).argmax(axis=0)
    found: _Exact = (
        vectors[:, ::-1] * np.sign(vectors[largest, np.arange(vectors.shape[1])])[::-1]
    )
    return found


def _whitening(covariance: _Exact) -> _Exact:
    """(Σ + c·I)^(-1/4), symmetric: eigenvectors' signs and order leave it as it is."""
    values, vectors = eigh(covariance)
    values = np.maximum(values, 0) + _LEAST * values.max()
    found: _Exact = (vectors * values**_POWER) @ vectors.T
    return found
