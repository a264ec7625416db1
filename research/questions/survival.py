"""Survival: Kaplan–Meier and the log-rank test from prefix sums by month.

A record is an event in its month or a censoring in it, never both, so prefix sums of
events and of censorings side by side have the norm of one of them, not √2 of it. The
censorings have two more bins: still there after the last month, and no time known.
Groups cost no norm, since a record is in one.

At risk in month k are N less all that left before, and half of those censored in it:
the life table's rule, which comes near to Kaplan–Meier on exact times.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from research.questions.block import Floats, Integers
from research.questions.interval import Interval
from research.questions.prefix_sums import PrefixSums

_BEYOND = 2
"""Bins of censorings after the last month."""


@dataclass(frozen=True, kw_only=True)
class Survival:
    """Prefix sums of events and censorings by month, for each group.

    Attributes:
        months: How many.
        groups: How many groups a record may be in.
    """

    months: int
    groups: int = 1

    @property
    def sizes(self) -> tuple[int, int]:
        """Bins of events and of censorings."""
        return self.months, self.months + _BEYOND

    @property
    def dimension(self) -> int:
        """Of all groups."""
        return self.groups * sum(self.sizes)

    @property
    def norm(self) -> float:
        """Of the longer sequence: a record is in one."""
        return PrefixSums(bins=self.months + _BEYOND).norm

    @property
    def rounded(self) -> int:
        """Of the longer sequence."""
        return self.months + _BEYOND - 1

    def total(
        self,
        times: Floats,
        events: npt.NDArray[np.bool_],
        groups: Integers,
        *,
        unit: int,
    ) -> Integers:
        """Return the integer sum over records, ``[dimension] int64``.

        Args:
            times: In months from 0; NaN or negative isn't known.
            events: Whether each ended by the event, ``[n]``.
            groups: Each record's group, ``[n]``.
            unit: u.
        """
        known = np.where(np.isnan(times), -1.0, times)
        month = np.minimum(known, self.months).astype(np.int64)
        is_event = events & (known >= 0) & (known < self.months)
        codes = np.where(known < 0, self.months + 1, month)
        parts = []
        for group in range(self.groups):
            for bins, chosen in zip(self.sizes, (is_event, ~is_event), strict=True):
                own = codes[chosen & (groups == group)]
                parts.append(PrefixSums(bins=bins).total(own, unit))
        return np.concatenate(parts)

    def decoder(self, unit: int) -> "SurvivalDecoder":
        """Return what makes curves of released sums."""
        return SurvivalDecoder(self, unit)


@dataclass(frozen=True)
class SurvivalDecoder:
    """Released sums to prefix sums of all groups, with their covariance.

    Attributes:
        block: The query's.
        unit: u: what 1 was in the integer sums.
    """

    block: Survival
    unit: int

    @cached_property
    def _free(self) -> tuple[Floats, Floats]:
        """The matrix to prefix sums and their covariance at unit noise."""
        size = self.block.dimension
        matrix = np.zeros((size, size))
        start = 0
        for _ in range(self.block.groups):
            for bins in self.block.sizes:
                kernel = PrefixSums(bins=bins).decoder(self.unit).kernel
                lag = np.subtract.outer(np.arange(bins), np.arange(bins))
                part = np.where(lag >= 0, kernel[np.maximum(lag, 0)], 0.0)
                matrix[start : start + bins, start : start + bins] = part
                start += bins
        return matrix, matrix @ matrix.T

    @cached_property
    def _totals(self) -> Floats:
        """1 at each sequence's last prefix sum, ``[dimension]``."""
        ends = np.cumsum(self.block.sizes * self.block.groups) - 1
        chosen = np.zeros(self.block.dimension)
        chosen[ends] = 1
        return chosen

    @cached_property
    def _gain(self) -> Floats:
        """How each prefix sum follows the noise of all records' number."""
        common: Floats = self._free[1] @ self._totals
        return common / (self._totals @ common)

    @cached_property
    def covariance(self) -> Floats:
        """Of prefix sums at unit noise, the number of records being known."""
        free = self._free[1]
        known: Floats = free - np.outer(self._gain, self._totals @ free)
        return known

    def prefixes(self, sums: Floats, records: int) -> Floats:
        """Return prefix sums, ``[draws, dimension]``, all records being ``records``."""
        free = sums @ self._free[0].T
        excess = free @ self._totals - records
        prefixes: Floats = free - excess[:, None] * self._gain
        return prefixes

    def life_tables(self, prefixes: Floats) -> list["LifeTable"]:
        """Return each group's table, from prefix sums made monotone."""
        tables = []
        start = 0
        for _ in range(self.block.groups):
            parts = []
            for bins in self.block.sizes:
                parts.append(_rising(prefixes[:, start : start + bins]))
                start += bins
            tables.append(LifeTable(events=parts[0], censored=parts[1]))
        return tables

    def curve(
        self, prefixes: Floats, *, noise: float, z: float, population: bool = False
    ) -> Interval:
        """Return survival at the months' ends of the first group: ``[draws, months]``.

        The interval is symmetric for log S, whose deviation is the delta method's.

        Args:
            prefixes: ``[draws, dimension]``.
            noise: Standard deviation of the released sums.
            z: How many deviations.
            population: Of the records' population: Greenwood's variance is added.
        """
        table = self.life_tables(prefixes)[0]
        survival = table.survival
        size = sum(self.block.sizes)
        covariance = self.covariance[:size, :size]
        slopes = table.slopes
        variance = np.einsum(
            "dmi,ij,dmj->dm", slopes, covariance, slopes, optimize=True
        )
        # Of log S; exp of more than 700 is beyond floating point.
        variance = noise**2 * np.maximum(variance, 0)
        if population:
            variance = variance + table.greenwood
        deviation = np.sqrt(variance)
        factor = np.exp(np.minimum(z * deviation, 700.0))
        return Interval(
            estimate=survival,
            low=survival / factor,
            high=np.minimum(survival * factor, 1.0),
        )

    def log_rank(self, prefixes: Floats, *, noise: float) -> Floats:
        """Return the log-rank statistic of the first two groups, ``[draws]``.

        Observed less expected events of the first, over the deviation of both sampling
        (hypergeometric, month by month) and noise (the delta method's). It is about
        standard normal where the groups' *population* hazards are equal.

        Args:
            prefixes: ``[draws, dimension]``.
            noise: Standard deviation of the released sums.
        """
        first, second = self.life_tables(prefixes)[:2]
        risk = first.at_risk + second.at_risk
        deaths = first.deaths + second.deaths
        share = first.at_risk / risk
        observed = (first.deaths - deaths * share).sum(1)
        spare = np.maximum(risk - deaths, 0) / np.maximum(risk - 1, 1)
        sampling = (deaths * share * (1 - share) * spare).sum(1)
        hazard = deaths / risk
        slopes = np.concatenate(
            [
                by_prefix(1 - share, -hazard * (1 - share)).sum(1),
                by_prefix(-share, hazard * share).sum(1),
            ],
            1,
        )
        size = slopes.shape[1]
        own = self.covariance[:size, :size]
        by_noise = noise**2 * np.einsum(
            "di,ij,dj->d", slopes, own, slopes, optimize=True
        )
        statistic: Floats = observed / np.sqrt(np.maximum(sampling + by_noise, 1e-9))
        return statistic


@dataclass(frozen=True, kw_only=True)
class LifeTable:
    """Monotone prefix sums of one group.

    Attributes:
        events: ``[draws, months]``.
        censored: ``[draws, months + 2]``: still there and not known come last.
    """

    events: Floats
    censored: Floats

    @cached_property
    def deaths(self) -> Floats:
        """Events in each month, ``[draws, months]``."""
        deaths: Floats = np.diff(self.events, axis=1, prepend=0.0)
        return deaths

    @cached_property
    def at_risk(self) -> Floats:
        """Exposed in each month, ``[draws, months]``; at least its events, and 1."""
        months = self.events.shape[1]
        left = self.censored[:, :months]
        before = np.pad(self.events, ((0, 0), (1, 0)))[:, :-1]
        half = (left + np.pad(left, ((0, 0), (1, 0)))[:, :-1]) / 2
        known = self.events[:, -1:] + self.censored[:, -2:-1]
        exposed: Floats = np.maximum(known - before - half, 1.0)
        return np.maximum(exposed, self.deaths)

    @cached_property
    def survival(self) -> Floats:
        """S at the months' ends, ``[draws, months]``."""
        stays = 1 - self.deaths / self.at_risk
        return np.cumprod(stays, axis=1).astype(np.float64)

    @property
    def greenwood(self) -> Floats:
        """Sampling's variance of log S, ``[draws, months]``: Greenwood 1926."""
        at_risk = np.maximum(self.at_risk, self.deaths + 0.5)
        parts = self.deaths / (at_risk * (at_risk - self.deaths))
        variance: Floats = np.cumsum(parts, axis=1).astype(np.float64)
        return variance

    @property
    def slopes(self) -> Floats:
        """Derivatives of log S by prefix sums, ``[draws, months, 2·months + 2]``."""
        at_risk: Floats = np.maximum(self.at_risk, self.deaths + 0.5)
        # A month's log(1 − d/r): by d and by r.
        by_death = -1 / (at_risk - self.deaths)
        by_risk = self.deaths / (at_risk * (at_risk - self.deaths))
        slopes: Floats = np.cumsum(by_prefix(by_death, by_risk), axis=1)
        return slopes


def by_prefix(by_death: Floats, by_risk: Floats) -> Floats:
    """Return derivatives by prefix sums of what depends on a month's d and r.

    Both are ``[draws, months]``; the result is ``[draws, months, 2·months + 2]``.
    """
    draws, months = by_death.shape
    own = np.zeros((draws, months, 2 * months + _BEYOND))
    month = np.arange(months)
    own[:, month, month] += by_death
    own[:, month[1:], month[:-1]] -= by_death[:, 1:] + by_risk[:, 1:]
    own[:, :, months - 1] += by_risk
    own[:, month, months + month] -= by_risk / 2
    own[:, month[1:], months + month[:-1]] -= by_risk[:, 1:] / 2
    own[:, :, -2] += by_risk
    return own


def _rising(prefixes: Floats) -> Floats:
    """Return prefix sums that are at least 0 and rise: halfway between two envelopes."""
    held = np.maximum(prefixes, 0)
    up = np.maximum.accumulate(held, axis=1)
    down = np.minimum.accumulate(held[:, ::-1], axis=1)[:, ::-1]
    middle: Floats = (up + down) / 2
    return middle
