"""Prefix sums of a histogram by their square-root factorisation.

The matrix A of prefix sums (ones on and below the diagonal) is C·C for a lower
triangular Toeplitz C, whose coefficients are those of (1 − x)^(−1/2) (Bennett 1977;
Fichtenberger, Henzinger and Upadhyay 2023). A record in bin b adds column b of C, and
the servers' noise z gives prefix sums with the noise C·z: at 1,024 bins 3.1 times a
histogram's of the same σ, where summing the histogram gives 16 times.

Coefficients are rounded to whole units, the same for every record, so what is inverted
is the rounded matrix: rounding then costs no accuracy.

All bins together have the public number of records: what that tells of the noise is
taken off every prefix sum.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.signal import fftconvolve

from research.questions.block import Floats, Integers


def coefficients(bins: int) -> Floats:
    """Return the first so many of (1 − x)^(−1/2): 1, 1/2, 3/8, …; C's first column."""
    k = np.arange(1, bins)
    found: Floats = np.concatenate([[1.0], np.cumprod((2 * k - 1) / (2 * k))])
    return found


@dataclass(frozen=True, kw_only=True)
class PrefixSums:
    """Prefix sums over bins in their order.

    Attributes:
        bins: How many, with those of missing values and of records that don't count,
            which come last.
    """

    bins: int

    @property
    def dimension(self) -> int:
        """A sum for each bin."""
        return self.bins

    @property
    def norm(self) -> float:
        """The first column's norm; the others are shorter."""
        return math.sqrt(float((coefficients(self.bins) ** 2).sum()))

    @property
    def rounded(self) -> int:
        """The first coefficient is whole."""
        return self.bins - 1

    def total(self, codes: Integers, unit: int) -> Integers:
        """Return the integer sum over records, ``[bins] int64``; codes are bins."""
        counts = np.bincount(codes, minlength=self.bins).astype(np.int64)
        column = np.rint(coefficients(self.bins) * unit).astype(np.int64)
        full: Integers = np.convolve(counts, column)
        return full[: self.bins]

    def vectors(self, codes: Integers, unit: int) -> Integers:
        """Return records' own integer vectors, ``[n, bins] int64``: columns of C."""
        column = np.rint(coefficients(self.bins) * unit).astype(np.int64)
        lag = np.arange(self.bins) - codes[:, None]
        vectors: Integers = np.where(lag >= 0, column[np.maximum(lag, 0)], 0)
        return vectors

    def decoder(self, unit: int) -> "PrefixDecoder":
        """Return what makes prefix sums of released sums."""
        return PrefixDecoder(self.bins, unit)


@dataclass(frozen=True)
class PrefixDecoder:
    """Released sums to prefix sums, with their covariance.

    Attributes:
        bins: How many there are.
        unit: u: what 1 was in the integer sums.
        is_total_public: Whether all bins together have a public number of records; a
            group's haven't.
    """

    bins: int
    unit: int
    is_total_public: bool = True

    @cached_property
    def kernel(self) -> Floats:
        """First column of A·C̃⁻¹, C̃ being the rounded matrix over u: ``[bins]``."""
        column = np.rint(coefficients(self.bins) * self.unit) / self.unit
        inverse = np.zeros(self.bins)
        inverse[0] = 1.0
        for k in range(1, self.bins):
            inverse[k] = -column[1 : k + 1] @ inverse[:k][::-1]
        kernel: Floats = np.cumsum(inverse)
        return kernel

    @cached_property
    def free_covariance(self) -> Floats:
        """Covariance of prefix sums at unit noise, no total known: ``[bins, bins]``."""
        lag = np.subtract.outer(np.arange(self.bins), np.arange(self.bins))
        matrix = np.where(lag >= 0, self.kernel[np.maximum(lag, 0)], 0.0)
        covariance: Floats = matrix @ matrix.T
        return covariance

    @cached_property
    def gain(self) -> Floats:
        """How far each prefix sum follows the last one's noise, ``[bins]``."""
        last: Floats = self.free_covariance[:, -1]
        gain: Floats = last / last[-1]
        return gain

    @cached_property
    def covariance(self) -> Floats:
        """Covariance of ``prefixes`` at unit noise: ``[bins, bins]``."""
        free = self.free_covariance
        if not self.is_total_public:
            return free
        known: Floats = free - np.outer(self.gain, free[-1])
        return known

    def prefixes(self, sums: Floats, records: int) -> Floats:
        """Return prefix sums, ``[draws, bins]``; the last is a public total.

        Args:
            sums: Released, ``[draws, bins]``, in the block's scale.
            records: How many records there are, which is public.
        """
        free = fftconvolve(sums, self.kernel[None, :], axes=1)[:, : self.bins]
        if not self.is_total_public:
            return np.asarray(free, dtype=np.float64)
        excess = free[:, -1:] - records
        prefixes: Floats = free - excess * self.gain
        return prefixes


def monotone(prefixes: Floats) -> Floats:
    """Return prefix sums that rise from 0 to the last one: an estimate.

    Halfway between the running maximum and the running minimum from the other end.
    """
    held = np.clip(prefixes, 0, np.maximum(prefixes[:, -1:], 0))
    rising = np.maximum.accumulate(held, axis=1)
    falling = np.minimum.accumulate(held[:, ::-1], axis=1)[:, ::-1]
    middle: Floats = (rising + falling) / 2
    return middle
