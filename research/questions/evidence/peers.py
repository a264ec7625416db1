"""Ten questions under one ε, beside OpenDP's Gaussians and IBM's library.

- **Here**: one release of seven blocks with equal shares of the norm, and the noise of
  *two* servers, each enough alone. Nobody sees the records.
- **OpenDP**, as its users write it: a Gaussian for each statistic, of the sensitivity
  of adding or removing a record, the number of records being public; the budget is
  split in ten equal parts of zCDP, with OpenDP's own conversion and sampler. Quantiles
  are of a histogram of 256 bins, by their lower edges. *Careful* is the same by a user
  who takes the bounds' middle off each value first, which halves the sensitivity of
  most sums, and goes straight between a bin's edges.
- **IBM**: diffprivlib's own functions with ε/10 each, of a trusted curator.

Both peers are installed by hand: ``pip install opendp`` and ``pip install --no-deps
diffprivlib==0.6.6``, whose ``models`` need an older scikit-learn and aren't loaded.
"""

import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from precad.common.errors import Misconfiguration
from research.questions.block import Block, Floats, Integers
from research.questions.grids import codes_of_numbers, even_edges
from research.questions.moments import Moments
from research.questions.one_hot import OneHot
from research.questions.prefix_sums import PrefixSums
from research.questions.quantiles import Quantiles
from research.questions.release import Release, bits_of, noise_multiplier

DELTA = 1e-5
OWNERS = 10
QUESTIONS = (
    "mean age",
    "variance of age",
    "mean pressure",
    "variance of pressure",
    "mean stay",
    "median stay",
    "upper quartile of stay",
    "wards",
    "deaths",
    "ages' histogram",
)
LINEAR = (0, 2, 4, 7, 8, 9)
"""Questions whose answers are sums over a public number."""
BOUNDS = {"age": (0.0, 110.0), "pressure": (60.0, 240.0), "stay": (0.0, 60.0)}
BINS = 256
WARDS = 6
AGES = 20
_CHANCES = [0.4, 0.25, 0.15, 0.1, 0.07, 0.03]


@dataclass(frozen=True, kw_only=True)
class Complete:
    """A made-up table without faults: the peers' functions have no missing values."""

    age: Floats
    pressure: Floats
    stay: Floats
    ward: Integers
    died: Integers

    @classmethod
    def of(cls, records: int, generator: np.random.Generator) -> "Complete":
        """Return so many records."""
        return cls(
            age=np.clip(generator.normal(62, 14, records), 18, 100),
            pressure=np.clip(generator.normal(135, 22, records), *BOUNDS["pressure"]),
            stay=np.clip(generator.lognormal(1.5, 0.8, records), *BOUNDS["stay"]),
            ward=generator.choice(WARDS, records, p=_CHANCES),
            died=(generator.random(records) < np.float64(0.12)).astype(np.int64),
        )

    def numbers(self, name: str) -> Floats:
        """Return a numeric column."""
        column: Floats = getattr(self, name)
        return column

    @property
    def truth(self) -> list[Any]:
        """Of the ten questions."""
        return [
            self.age.mean(),
            self.age.var(),
            self.pressure.mean(),
            self.pressure.var(),
            self.stay.mean(),
            np.quantile(self.stay, 0.5),
            np.quantile(self.stay, 0.75),
            np.bincount(self.ward, minlength=WARDS),
            self.died.sum(),
            np.histogram(self.age, AGES, BOUNDS["age"])[0],
        ]


def one_release(
    table: Complete, *, epsilon: float, draws: int, generator: np.random.Generator
) -> list[Floats]:
    """Return the ten answers of many releases, ``[draws]`` or ``[draws, cells]``."""
    n = table.age.size
    moments = {
        name: Moments(low=low, high=high, complete=True)
        for name, (low, high) in BOUNDS.items()
    }
    edges = even_edges(*BOUNDS["stay"], BINS)
    prefix = PrefixSums(bins=BINS + 1)
    cells = [OneHot(cells=WARDS), OneHot(cells=2), OneHot(cells=AGES)]
    blocks: list[Block] = [*moments.values(), prefix, *cells]
    release = Release(
        blocks=blocks,
        sigma=noise_multiplier(epsilon, DELTA),
        bits=bits_of(n // OWNERS),
        weights=[1 / block.norm for block in blocks],
    )
    units = [int(unit) for unit in release.units]
    noise = [float(each) for each in release.noise]
    ages = codes_of_numbers(table.age, even_edges(*BOUNDS["age"], AGES))
    totals = [
        *(
            moments[name].total(table.numbers(name), unit)
            for name, unit in zip(moments, units, strict=False)
        ),
        prefix.total(codes_of_numbers(table.stay, edges), units[3]),
        *(
            block.total(codes, unit)
            for block, codes, unit in zip(
                cells, (table.ward, table.died, ages), units[4:], strict=True
            )
        ),
    ]
    sums = release.drawn(totals, draws, generator)
    found: list[Floats] = []
    for place, (name, block) in enumerate(moments.items()):
        stated: dict[str, Any] = {"noise": noise[place], "records": n, "z": 0.0}
        found.append(block.mean(sums[place], **stated).estimate)
        if name != "stay":
            found.append(block.deviation(sums[place], **stated).estimate ** 2)
    quantiles = Quantiles(
        decoder=prefix.decoder(units[3]), edges=edges, ends=BOUNDS["stay"]
    )
    prefixes = quantiles.decoder.prefixes(sums[3], n)
    found += [quantiles.estimate(prefixes, q) for q in (0.5, 0.75)]
    for place, counts in enumerate(cells, 4):
        counted = counts.counts(sums[place], noise=noise[place], records=n, z=0.0)
        found.append(counted.estimate[:, 1] if counts.cells == 2 else counted.estimate)  # noqa: PLR2004
    return found


def gaussians(
    table: Complete, *, epsilon: float, draws: int, careful: bool
) -> list[Floats]:
    """Return the ten answers by OpenDP, each with a tenth of the budget."""
    opendp = _loaded("opendp.prelude")
    opendp.enable_features("contrib")
    space = (
        opendp.vector_domain(opendp.atom_domain(T=float, nan=False)),
        opendp.l2_distance(T=float),
    )

    def epsilon_of(scale: float) -> float:
        one = opendp.m.make_gaussian(*space, scale)
        return float(opendp.c.make_zCDP_to_approxDP(one).map(1.0).epsilon(DELTA))

    scale = opendp.binary_search(
        lambda each: epsilon_of(each) <= epsilon, bounds=(0.01, 1e4)
    )
    scale *= np.sqrt(len(QUESTIONS))

    def released(statistic: Any, sensitivity: float) -> Floats:
        values = np.atleast_1d(np.asarray(statistic, dtype=np.float64))
        mechanism = opendp.m.make_gaussian(*space, float(scale * sensitivity))
        drawn = np.reshape(mechanism(np.tile(values, draws).tolist()), (draws, -1))
        return drawn[:, 0] if np.ndim(statistic) == 0 else drawn

    n = table.age.size
    found: list[Floats] = []
    for name, (low, high) in BOUNDS.items():
        middle, half = (low + high) / 2, (high - low) / 2
        values = table.numbers(name)
        if careful:
            mean = middle + released((values - middle).sum(), half) / n
        else:
            mean = released(values.sum(), max(abs(low), abs(high))) / n
        found.append(mean)
        if name != "stay":
            square = released(((values - middle) ** 2).sum(), half**2) / n
            found.append(square - (mean - middle) ** 2)
    low, high = BOUNDS["stay"]
    counts = np.histogram(table.stay, BINS, (low, high))[0]
    for q in (0.5, 0.75):
        prefixes = np.maximum.accumulate(np.cumsum(released(counts, 1.0), 1), 1)
        place = np.minimum((prefixes < q * n).sum(1), BINS - 1)
        part = _part_of_bin(prefixes, place, q * n) if careful else 0.0
        found.append(low + (high - low) * (place + part) / BINS)
    found += [
        released(table.truth[7], 1.0),
        released(np.float64(table.died.sum()), 1.0),
        released(table.truth[9], 1.0),
    ]
    return found


def _part_of_bin(prefixes: Floats, place: Integers, rank: float) -> Floats:
    """Return how far into its bin each rank is, from 0 to 1, ``[draws]``."""
    rows = np.arange(place.size)
    at = prefixes[rows, place]
    below = np.where(place > 0, prefixes[rows, np.maximum(place - 1, 0)], 0.0)
    part: Floats = np.clip((rank - below) / np.maximum(at - below, 1e-9), 0, 1)
    return part


def by_ibm(table: Complete, *, epsilon: float, draws: int) -> list[Floats]:
    """Return the ten answers by diffprivlib's tools, with ε/10 each."""
    sys.modules.setdefault("diffprivlib.models", ModuleType("diffprivlib.models"))
    tools = _loaded("diffprivlib.tools")
    part = epsilon / len(QUESTIONS)

    def once() -> list[Any]:
        found = []
        for name, bounds in BOUNDS.items():
            stated = {"epsilon": part, "bounds": bounds}
            found.append(tools.mean(table.numbers(name), **stated))
            if name != "stay":
                found.append(tools.var(table.numbers(name), **stated))
        stay = {"epsilon": part, "bounds": BOUNDS["stay"]}
        found += [tools.quantile(table.stay, q, **stay) for q in (0.5, 0.75)]
        wards = {"bins": WARDS, "range": (-0.5, WARDS - 0.5)}
        ages = {"bins": AGES, "range": BOUNDS["age"]}
        return [
            *found,
            tools.histogram(table.ward, epsilon=part, **wards)[0],
            tools.count_nonzero(table.died, epsilon=part),
            tools.histogram(table.age, epsilon=part, **ages)[0],
        ]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        runs = [once() for _ in range(draws)]
    return [np.array([run[place] for run in runs]) for place in range(len(QUESTIONS))]


def _loaded(name: str) -> Any:
    """Return a peer's module.

    Raises:
        Misconfiguration: it isn't installed.
    """
    from importlib import import_module  # noqa: PLC0415

    try:
        return import_module(name)
    except ImportError as error:
        remedy = "install it by hand, as research/questions/evidence/peers.py says"
        raise Misconfiguration("peers", name, remedy) from error


def errors_of(found: list[Floats], truth: list[Any]) -> Floats:
    """Return each question's root mean square error, ``[questions]``."""
    squares = [
        ((each - np.asarray(true)) ** 2).mean()
        for each, true in zip(found, truth, strict=True)
    ]
    return np.sqrt(squares)


def measure(
    *, records: int, epsilon: float, draws: int, peer_draws: int, seed: int
) -> Mapping[str, Any]:
    """Return errors of all, and the geometric means of their ratios.

    Args:
        records: n.
        epsilon: Of all ten together, at δ = 1e-5 (IBM's: at δ = 0).
        draws: Releases here.
        peer_draws: Runs of the peers, which are slow.
        seed: Of the table and the noise here; the peers' noise has no seed.
    """
    generator = np.random.default_rng([seed, records])
    table = Complete.of(records, generator)
    asked: dict[str, Callable[[], list[Floats]]] = {
        "here": lambda: one_release(
            table, epsilon=epsilon, draws=draws, generator=generator
        ),
        "opendp": lambda: gaussians(
            table, epsilon=epsilon, draws=peer_draws, careful=False
        ),
        "opendp_careful": lambda: gaussians(
            table, epsilon=epsilon, draws=peer_draws, careful=True
        ),
        "ibm": lambda: by_ibm(table, epsilon=epsilon, draws=peer_draws),
    }
    errors = {name: errors_of(ask(), table.truth) for name, ask in asked.items()}
    here = errors["here"]
    ratios = {name: here / each for name, each in errors.items() if name != "here"}
    return {
        "errors": {
            name: dict(zip(QUESTIONS, map(_short, each), strict=True))
            for name, each in errors.items()
        },
        "geometric_mean": {
            name: _short(np.exp(np.log(ratio).mean())) for name, ratio in ratios.items()
        },
        "worst_linear": {
            name: _short(max(ratio[place] for place in LINEAR))
            for name, ratio in ratios.items()
        },
    }


def _short(value: float) -> float:
    return float(f"{value:.4g}")
