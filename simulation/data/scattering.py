"""Wavelet scattering, a transform of images by a fixed rule.

Bruna and Mallat, "Invariant Scattering Convolution Networks", TPAMI 2013: averages of an image, of
the moduli of its wavelet coefficients, and of the moduli of those moduli's. Morlet wavelets as in
its Sec. 2.1, with the bandwidths of Kymatio (Andreux et al., JMLR 2020), which is the oracle that
these were compared with. Each image has its own; ``scattering_features`` has what is made of them.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from precad.common.errors import Misconfiguration

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
    if images.ndim != _IMAGE_AXES or images.shape[1] != 1 or images.shape[2] != images.shape[3]:
        raise Misconfiguration("images", list(images.shape), "give square grey ones, [n, 1, s, s]")
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
