"""Quantiles and the box plot, from prefix sums: the rank's test at each tried bin.

The q-quantile is in the first bin whose prefix sum P reaches q·N, N being the values
that are there. A bin t stands unless one of two one-sided tests rejects it:

- the rank is reached at t: then every P from t on is at least q·N, and so is the mean
  of any few of them;
- it isn't reached before t: then every P before t is below q·N, and so is any mean.

Each mean is Gaussian with a known deviation, so a test errs in 2.5 % at most. Means
over several bins are far less rough than single prefix sums, which matters, since what
is printed is an interval: it reaches from the first to the last bin that stands, and
roughness alone lets a bin far out stand (half widths of 11 in place of 4 days). They
say less where the bins have many records. So each bin's mean takes up the most bins,
in powers of two, that seem to have no more records than half a deviation of P.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from research.questions.block import Floats
from research.questions.interval import Interval
from research.questions.prefix_sums import PrefixDecoder, monotone

BOX_PLOT = (0.05, 0.25, 0.5, 0.75, 0.95)
"""Whiskers at 5 and 95 %: the least and the greatest value are one record's own."""
WIDTHS = (1, 2, 4, 8, 16, 32, 64)
"""How many bins a mean may take up."""
RECORDS_OF_A_MEAN = 0.5
"""Deviations of a prefix sum: so many records its bins seem to have at most."""

_Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class _Mean:
    """Means of prefix sums over some bins to a bin's right, or to its left.

    Attributes:
        weights: ``[values, values]``: a row is a bin's mean.
        first: First bin of each mean, ``[values]``.
        last: Its last bin, ``[values]``.
        prefixes: Their covariance at unit noise, ``[values, values]``.
    """

    weights: Floats
    first: npt.NDArray[np.intp]
    last: npt.NDArray[np.intp]
    prefixes: Floats

    @cached_property
    def moments(self) -> tuple[Floats, Floats, float]:
        """Variance of each mean, its covariance with N, and N's variance."""
        carried = self.weights @ self.prefixes
        own = np.einsum("ij,ij->i", carried, self.weights)
        return own, carried[:, -1], float(self.prefixes[-1, -1])

    def deviations(self, q: float) -> Floats:
        """Return the deviation of each mean less q·N at unit noise, ``[values]``."""
        own, both, last = self.moments
        return np.sqrt(np.maximum(own - 2 * q * both + q**2 * last, 0))


@dataclass(frozen=True, kw_only=True)
class Quantiles:
    """Of a column's prefix sums.

    Attributes:
        decoder: Of the released sums.
        edges: Inner edges of the column's bins, ``[values − 1]``; the bin after the
            values' is that of missing ones.
        ends: What the outer bins' outer edges are shown as.
    """

    decoder: PrefixDecoder
    edges: Floats
    ends: tuple[float, float]

    @property
    def values(self) -> int:
        """How many bins have values."""
        return self.edges.size + 1

    @cached_property
    def bounds(self) -> Floats:
        """Edges with the outer ones, ``[values + 1]``."""
        low, high = self.ends
        bounds: Floats = np.concatenate([[low], self.edges, [high]])
        return bounds

    @cached_property
    def _covariance(self) -> Floats:
        covariance: Floats = self.decoder.covariance[: self.values, : self.values]
        return covariance

    def _means(self, side: int) -> Iterator[_Mean]:
        """Yield means of each width: of bins from k on (1), or of those before k (−1)."""
        bins = np.arange(self.values)
        for width in WIDTHS:
            if side > 0:
                first, last = bins, np.minimum(bins + width, self.values) - 1
            else:
                # Before the first bin there is none: its own, which no test uses.
                last = np.maximum(bins - 1, 0)
                first = np.minimum(np.maximum(bins - width, 0), last)
            inside = (first[:, None] <= bins) & (bins <= last[:, None])
            weights = inside / inside.sum(1, keepdims=True)
            yield _Mean(
                weights=weights, first=first, last=last, prefixes=self._covariance
            )

    @cached_property
    def _sides(self) -> tuple[list[_Mean], list[_Mean]]:
        return list(self._means(1)), list(self._means(-1))

    def _tested(
        self,
        prefixes: Floats,
        q: float,
        *,
        noise: float,
        means: list[_Mean],
        population: bool,
    ) -> Floats:
        """Return each bin's mean less q·N in its deviations, ``[draws, values]``."""
        values = prefixes[:, : self.values]
        seem = monotone(prefixes)[:, : self.values]
        most = RECORDS_OF_A_MEAN * noise * np.sqrt(np.diag(self._covariance).max())
        rank = q * values[:, -1:]
        # Of N values each is below the population's quantile with chance q.
        sampled = q * (1 - q) * np.maximum(values[:, -1:], 0) if population else 0.0
        tested = np.zeros(values.shape)
        for mean in means:
            # One bin is always right; more where few records seem to be in them.
            fits = seem[:, mean.last] - seem[:, mean.first] <= most
            own = (noise * mean.deviations(q)) ** 2
            deviation = np.sqrt(np.maximum(own + sampled, 1e-24))
            sums = np.pad(np.cumsum(values, 1), ((0, 0), (1, 0)))
            size = mean.last - mean.first + 1
            average = (sums[:, mean.last + 1] - sums[:, mean.first]) / size
            tested = np.where(fits, (average - rank) / deviation, tested)
        return tested

    def bins_of(
        self,
        prefixes: Floats,
        q: float,
        *,
        noise: float,
        z: float,
        population: bool = False,
    ) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
        """Return the first and the last bin that stands, ``[draws]`` both.

        Args:
            prefixes: ``[draws, bins]``.
            q: Which quantile, between 0 and 1.
            noise: Standard deviation of the released sums.
            z: How many deviations.
            population: Of the records' population: sampling is added to the noise.
        """
        stated: dict[str, Any] = {"noise": noise, "population": population}
        from_here, before = self._sides
        reached = self._tested(prefixes, q, means=from_here, **stated) >= -z
        new: _Bools = self._tested(prefixes, q, means=before, **stated) < z
        # The last bin with a value has reached every rank, and none is before the first.
        reached[:, -1] = True
        new[:, 0] = True
        stands = reached & new
        # Where tests at all bins reject, nothing is known.
        stands[~stands.any(1)] = True
        last = self.values - 1 - stands[:, ::-1].argmax(1)
        return stands.argmax(1), last

    def answer(
        self,
        prefixes: Floats,
        q: float,
        *,
        noise: float,
        z: float,
        population: bool = False,
    ) -> Interval:
        """Return the quantile with its interval, ``[draws]``, in the column's scale."""
        first, last = self.bins_of(prefixes, q, noise=noise, z=z, population=population)
        low = self.bounds[first]
        high = self.bounds[last + 1]
        estimate = np.clip(self.estimate(prefixes, q), low, high)
        return Interval(estimate=estimate, low=low, high=high)

    def estimate(self, prefixes: Floats, q: float) -> Floats:
        """Return the quantile, straight between a bin's edges, ``[draws]``."""
        rising = monotone(prefixes)[:, : self.values]
        rank = q * rising[:, -1]
        place = np.minimum((rising < rank[:, None]).sum(1), self.values - 1)
        rows = np.arange(place.size)
        at = rising[rows, place]
        below = np.where(place > 0, rising[rows, np.maximum(place - 1, 0)], 0.0)
        part = np.clip((rank - below) / np.maximum(at - below, 1e-9), 0, 1)
        low, high = self.bounds[place], self.bounds[place + 1]
        found: Floats = low + part * (high - low)
        return found
