"""Do the intervals cover the pooled answer? Many releases of one made-up table.

One release has four blocks with a quarter of the squared norm each: shares of wards, a
histogram of ages, the blood pressure's moments, and prefix sums of the stay. Ten owners
of equal size. Truth is the pooled, clipped records' own answer, so the rounding of
records counts as an error too. The noise is the continuous stand-in.

Quantiles are covered in 97 to 100 %: the test at each bin errs in 5 %, but what is
printed reaches from the first to the last bin that stands, and many stays share a bin.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from research.questions.block import Floats, Integers
from research.questions.grids import codes_of_numbers, even_edges
from research.questions.interval import Interval, deviations
from research.questions.messy import WARDS, Patients, patients
from research.questions.moments import Moments
from research.questions.one_hot import OneHot, codes_of_levels
from research.questions.prefix_sums import PrefixSums
from research.questions.quantiles import BOX_PLOT, Quantiles
from research.questions.release import Release, bits_of, noise_multiplier

OWNERS = 10
DELTA = 1e-5
STAY = (0.0, 60.0)
STAY_BINS = 512
AGES = (0.0, 110.0)
AGE_BINS = 20
CHUNK = 500
"""Releases at a time."""


@dataclass(frozen=True, kw_only=True)
class Questions:
    """The four blocks of one table in one release."""

    table: Patients
    epsilon: float

    @property
    def records(self) -> int:
        """How many there are."""
        return self.table.age.size

    @cached_property
    def release(self) -> Release:
        """With blocks: wards, ages, pressure, stay."""
        blocks = (
            OneHot(cells=len(WARDS) + 2),
            OneHot(cells=AGE_BINS + 1),
            Moments(low=60.0, high=240.0),
            PrefixSums(bins=STAY_BINS + 1),
        )
        norms = [block.norm for block in blocks]
        return Release(
            blocks=blocks,
            sigma=noise_multiplier(self.epsilon, DELTA),
            bits=bits_of(self.records // OWNERS),
            # Equal shares of the norm: a_j² ∝ w_j·Δ_j.
            weights=[1 / norm for norm in norms],
        )

    @cached_property
    def codes(self) -> tuple[Integers, Integers, Integers]:
        """Wards' cells, ages' cells, stays' bins."""
        return (
            codes_of_levels(self.table.ward, WARDS),
            codes_of_numbers(self.table.age, even_edges(*AGES, AGE_BINS)),
            codes_of_numbers(self.table.stay, self.quantiles.edges),
        )

    @cached_property
    def totals(self) -> list[Integers]:
        """Integer sums over all records, one array a block."""
        wards, ages, pressure, stay = self.release.blocks
        units = [int(unit) for unit in self.release.units]
        assert isinstance(wards, OneHot)
        assert isinstance(ages, OneHot)
        assert isinstance(pressure, Moments)
        assert isinstance(stay, PrefixSums)
        return [
            wards.total(self.codes[0], units[0]),
            ages.total(self.codes[1], units[1]),
            pressure.total(self.table.pressure, units[2]),
            stay.total(self.codes[2], units[3]),
        ]

    @cached_property
    def quantiles(self) -> Quantiles:
        """Of the stay."""
        stay = self.release.blocks[3]
        assert isinstance(stay, PrefixSums)
        return Quantiles(
            decoder=stay.decoder(int(self.release.units[3])),
            edges=even_edges(*STAY, STAY_BINS),
            ends=STAY,
        )

    @cached_property
    def truth(self) -> dict[str, Floats]:
        """Of the pooled, clipped records; of a quantile its bin's middle."""
        wards, ages, stay = self.codes
        pressure = np.clip(self.table.pressure, 60, 240)
        there = pressure[~np.isnan(pressure)]
        counts = np.bincount(stay, minlength=STAY_BINS + 1)[:STAY_BINS]
        prefixes = np.cumsum(counts)
        bounds = self.quantiles.bounds
        middles = (bounds[1:] + bounds[:-1]) / 2
        ranks = [np.searchsorted(prefixes, q * prefixes[-1]) for q in BOX_PLOT]
        return {
            "wards": np.bincount(wards, minlength=len(WARDS) + 2) / self.records,
            "ages": np.bincount(ages, minlength=AGE_BINS + 1) * 1.0,
            "mean": np.atleast_1d(there.mean()),
            "deviation": np.atleast_1d(there.std()),
            "missing": np.atleast_1d(np.isnan(pressure).mean()),
            "quantiles": middles[ranks],
        }

    @property
    def answers(self) -> int:
        """How many are together covered."""
        return sum(value.size for value in self.truth.values())

    def answer(self, released: list[Floats], z: float) -> dict[str, Interval]:
        """Return every answer, ``[draws, answers of the kind]``."""
        wards, ages, pressure, _ = self.release.blocks
        assert isinstance(wards, OneHot)
        assert isinstance(ages, OneHot)
        assert isinstance(pressure, Moments)
        noise = [float(each) for each in self.release.noise]
        n = self.records
        moments: dict[str, Any] = {"noise": noise[2], "records": n, "z": z}
        prefixes = self.quantiles.decoder.prefixes(released[3], n)
        quantiles = [
            self.quantiles.answer(prefixes, q, noise=noise[3], z=z) for q in BOX_PLOT
        ]
        return {
            "wards": wards.shares(released[0], noise=noise[0], records=n, z=z),
            "ages": ages.counts(released[1], noise=noise[1], records=n, z=z),
            "mean": stacked([pressure.mean(released[2], **moments)]),
            "deviation": stacked([pressure.deviation(released[2], **moments)]),
            "missing": stacked([pressure.missing(released[2], **moments)]),
            "quantiles": stacked(quantiles),
        }


def stacked(intervals: list[Interval]) -> Interval:
    """Return single answers side by side, ``[draws, answers]``."""
    return Interval(
        estimate=np.stack([each.estimate for each in intervals], 1),
        low=np.stack([each.low for each in intervals], 1),
        high=np.stack([each.high for each in intervals], 1),
    )


def measure(
    *, records: int, epsilon: float, draws: int, seed: int
) -> Mapping[str, Any]:
    """Return shares of releases whose intervals cover, and mean half widths.

    Args:
        records: n.
        epsilon: Of the whole release at δ = 1e-5, against one curious server.
        draws: How many releases.
        seed: Of the table and the noise.
    """
    generator = np.random.default_rng([seed, records])
    asked = Questions(table=patients(records, generator), epsilon=epsilon)
    hits = {name: np.zeros(value.size) for name, value in asked.truth.items()}
    widths = dict.fromkeys(hits, 0.0)
    together = 0.0
    alone, joint = deviations(), deviations(asked.answers)
    for start in range(0, draws, CHUNK):
        size = min(CHUNK, draws - start)
        released = asked.release.drawn(asked.totals, size, generator)
        for name, found in asked.answer(released, alone).items():
            hits[name] += found.covers(asked.truth[name]).sum(0)
            widths[name] += float((found.high - found.low).mean(1).sum()) / 2
        every = np.ones(size)
        for name, found in asked.answer(released, joint).items():
            every *= found.covers(asked.truth[name]).min(1)
        together += float(every.sum())
    return {
        "covered": {
            name: [round(float(each), 4) for each in value / draws]
            for name, value in hits.items()
        },
        "together": round(together / draws, 4),
        "answers": asked.answers,
        "half_widths": {name: round(w / draws, 5) for name, w in widths.items()},
    }
