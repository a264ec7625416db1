"""Do the intervals marked as of the population cover it? New records in each release.

Six blocks share one release equally: shares, a mean with missing values, quantiles, a
classifier's evaluation, survival and least squares. The population's own answers are
those of its law, in closed form.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from scipy.integrate import quad
from scipy.stats import norm

from research.questions.block import Floats, Integers
from research.questions.grids import codes_of_numbers, even_edges
from research.questions.interval import Interval, deviations
from research.questions.moments import Moments
from research.questions.one_hot import OneHot
from research.questions.outer_product import OuterProduct
from research.questions.prefix_sums import PrefixSums
from research.questions.quantiles import Quantiles
from research.questions.release import Release, bits_of, noise_multiplier
from research.questions.scores import Scores
from research.questions.survival import Survival

OWNERS = 10
DELTA = 1e-5
CHANCES = (0.5, 0.3, 0.15, 0.05)
MISSING = 0.1
BINS = 128
MONTHS = 12
QUARTILES = (0.25, 0.5, 0.75)
LIFE = 15.0
MANY = 1_000_000
MEAN = 0.1
DEVIATION = 0.35
POSITIVE = 0.3


@dataclass(frozen=True, kw_only=True)
class Sample:
    """New records: levels, values, a classifier's scores and classes, times, rows."""

    level: Integers
    value: Floats
    score: Floats
    classes: Floats
    times: Floats
    events: Floats
    rows: Floats

    @classmethod
    def of(cls, records: int, generator: np.random.Generator) -> "Sample":
        """Return so many records of the population."""
        value = np.clip(generator.normal(MEAN, DEVIATION, records), -1, 1)
        value[generator.random(records) < MISSING] = np.nan
        classes = np.where(generator.random(records) < POSITIVE, 1.0, 0.0)
        score = 1 / (1 + np.exp(-generator.normal(classes - 0.5, 1)))
        life = generator.exponential(LIFE, records)
        leave = generator.uniform(MONTHS / 3, 2 * MONTHS, records)
        inputs = generator.uniform(-0.5, 0.5, (records, 2))
        answer = inputs @ [0.5, -0.3] + generator.uniform(-0.3, 0.3, records)
        return cls(
            level=generator.choice(len(CHANCES), records, p=CHANCES),
            value=value,
            score=score,
            classes=classes,
            times=np.minimum(life, leave),
            events=np.where(life <= leave, 1.0, 0.0),
            rows=np.column_stack([inputs, answer]),
        )


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The six blocks in one release of so many records."""

    records: int
    epsilon: float
    levels: OneHot = field(default_factory=lambda: OneHot(cells=len(CHANCES)))
    moments: Moments = field(default_factory=lambda: Moments(low=-1, high=1))
    prefix: PrefixSums = field(default_factory=lambda: PrefixSums(bins=BINS + 1))
    scores: Scores = field(default_factory=lambda: Scores(bins=8))
    survival: Survival = field(default_factory=lambda: Survival(months=MONTHS))
    # Longer than any row: nothing is cut, so there is no bias.
    product: OuterProduct = field(
        default_factory=lambda: OuterProduct(width=3, length=1.0)
    )

    @cached_property
    def release(self) -> Release:
        """With all six."""
        blocks = (
            self.levels,
            self.moments,
            self.prefix,
            self.scores.block,
            self.survival,
            self.product,
        )
        return Release(
            blocks=blocks,
            sigma=noise_multiplier(self.epsilon, DELTA),
            bits=bits_of(self.records // OWNERS),
            weights=[1 / block.norm for block in blocks],
        )

    @cached_property
    def units(self) -> list[int]:
        """Of the blocks, in their order."""
        return [int(unit) for unit in self.release.units]

    @cached_property
    def quantiles(self) -> Quantiles:
        """Of the values."""
        return Quantiles(
            decoder=self.prefix.decoder(self.units[2]),
            edges=even_edges(-1, 1, BINS),
            ends=(-1.0, 1.0),
        )

    def totals(self, sample: Sample) -> list[Integers]:
        """Return a sample's integer sums, one array a block."""
        units = self.units
        none = np.zeros(self.records, np.int64)
        return [
            self.levels.total(sample.level, units[0]),
            self.moments.total(sample.value, units[1]),
            self.prefix.total(
                codes_of_numbers(sample.value, self.quantiles.edges), units[2]
            ),
            self.scores.block.total(
                self.scores.codes(sample.score, sample.classes), units[3]
            ),
            self.survival.total(sample.times, sample.events > 0, none, unit=units[4]),
            self.product.total(sample.rows, units[5]),
        ]

    def answers(self, sums: list[Floats]) -> dict[str, Interval]:
        """Return every answer with its population's interval."""
        noise = [float(each) for each in self.release.noise]
        z = deviations()
        many: dict[str, Any] = {"records": self.records, "z": z}
        prefixes = self.quantiles.decoder.prefixes(sums[2], self.records)
        evaluated = self.scores.answers(
            sums[3], noise=noise[3], records=self.records, population=True
        )
        curves = self.survival.decoder(self.units[4])
        months = curves.prefixes(sums[4], self.records)
        found = {
            "shares": self.levels.population_shares(sums[0], noise=noise[0], **many),
            "mean": self.moments.mean(sums[1], noise=noise[1], population=True, **many),
            "accuracy": evaluated.accuracy(self.scores.bins // 2, z=z),
            "AUC": evaluated.auc(z=z),
            "survival": curves.curve(months, noise=noise[4], z=z, population=True),
            "least squares": self.product.least_squares(
                sums[5], noise=noise[5], population=True, **many
            ),
        }
        for q in QUARTILES:
            found[f"quantile {q}"] = self.quantiles.answer(
                prefixes, q, noise=noise[2], z=z, population=True
            )
        return found

    @cached_property
    def truth(self) -> dict[str, Floats]:
        """Of the population."""
        value = norm(MEAN, DEVIATION)
        # E of a value clipped to [−1, 1], whose ends have the tails' chance.
        inside = quad(lambda x: x * value.pdf(x), -1, 1)[0]
        clipped = inside + value.sf(1) - value.cdf(-1)
        scores = self.scores
        inner = np.arange(1, scores.bins) / scores.bins
        edges = np.concatenate([[-np.inf], np.log(inner / (1 - inner)), [np.inf]])
        cells = [
            chance * np.diff(norm.cdf(edges, loc=place))
            for chance, place in ((1 - POSITIVE, -0.5), (POSITIVE, 0.5))
        ]
        sums = MANY * np.concatenate([*cells, [0.0]])[None, :]
        exact = scores.answers(sums, noise=0.0, records=MANY)
        truth = {
            "shares": np.array(CHANCES),
            "mean": np.atleast_1d(clipped),
            "accuracy": exact.accuracy(scores.bins // 2, z=0.0).estimate,
            "AUC": exact.auc(z=0.0).estimate,
            "survival": np.exp(-np.arange(1, MONTHS + 1) / LIFE),
            "least squares": np.array([0.0, 0.5, -0.3]),
        }
        for q in QUARTILES:
            truth[f"quantile {q}"] = np.atleast_1d(value.ppf(q))
        return truth


def measure(
    *, records: int, epsilon: float, draws: int, seed: int
) -> Mapping[str, Any]:
    """Return shares of samples whose intervals cover the population's answers.

    Args:
        records: n.
        epsilon: Of the release at δ = 1e-5, against one curious server.
        draws: Samples, with one release each.
        seed: Of records and noise.
    """
    generator = np.random.default_rng([seed, records])
    asked = Asked(records=records, epsilon=epsilon)
    samples = (Sample.of(records, generator) for _ in range(draws))
    totals = [asked.totals(sample) for sample in samples]
    sums = []
    for place, unit in enumerate(asked.units):
        stacked = np.stack([total[place] for total in totals]).astype(np.float64)
        stacked += generator.normal(0.0, asked.release.unit_noise, stacked.shape)
        sums.append(stacked / unit)
    covered = {}
    for name, found in asked.answers(sums).items():
        inside = found.covers(asked.truth[name]).reshape(draws, -1)
        covered[name] = [round(float(each), 4) for each in inside.mean(0)]
    return {"covered": covered}
