"""Columns of unknown scale: centre and spread from a logarithmic grid of both signs.

Six made-up columns, from 1e-1 to 1e5, share one release equally. The centre's error is
the median's, in true distances between the quartiles; the scale is the ratio of the
found distance to the true one.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from research.questions.block import Floats
from research.questions.grids import codes_of_numbers, logarithmic_edges
from research.questions.prefix_sums import PrefixSums
from research.questions.quantiles import Quantiles
from research.questions.release import Release, bits_of, noise_multiplier

OWNERS = 10
DELTA = 1e-5
ZEROS = 0.7
QUARTILES = (0.25, 0.5, 0.75)
Draw = Callable[[np.random.Generator, int], Floats]


def _mostly_zero(generator: np.random.Generator, records: int) -> Floats:
    some = generator.lognormal(2, 1, records)
    return np.where(generator.random(records) < ZEROS, 0.0, some)


COLUMNS: dict[str, Draw] = {
    "age": lambda generator, n: generator.normal(62, 14, n),
    "creatinine": lambda generator, n: generator.lognormal(0, 0.5, n),
    "platelets": lambda generator, n: generator.normal(250e3, 70e3, n),
    "base excess": lambda generator, n: generator.normal(-1, 3, n),
    "date's number": lambda generator, n: generator.normal(44_000, 400, n),
    "mostly zero": _mostly_zero,
}


def measure(
    *, records: int, epsilon: float, draws: int, seed: int
) -> Mapping[str, Any]:
    """Return the centre's rms error and the scale's 5 to 95 % range by column.

    Args:
        records: n.
        epsilon: Of all six together, at δ = 1e-5, against one curious server.
        draws: Releases of one made-up table.
        seed: Of the table and the noise.
    """
    generator = np.random.default_rng([seed, records])
    edges = logarithmic_edges()
    block = PrefixSums(bins=edges.size + 2)
    release = Release(
        blocks=[block] * len(COLUMNS),
        sigma=noise_multiplier(epsilon, DELTA),
        bits=bits_of(records // OWNERS),
    )
    unit = int(release.units[0])
    quantiles = Quantiles(
        decoder=block.decoder(unit), edges=edges, ends=(2 * edges[0], 2 * edges[-1])
    )
    found = {}
    for name, draw in COLUMNS.items():
        values = draw(generator, records)
        true = np.quantile(values, QUARTILES)
        spread = max(true[2] - true[0], 1e-12)
        total = block.total(codes_of_numbers(values, edges), unit)
        noise = generator.normal(0, release.unit_noise, (draws, total.size))
        prefixes = quantiles.decoder.prefixes((total + noise) / unit, records)
        low, middle, high = (quantiles.estimate(prefixes, q) for q in QUARTILES)
        ratio = np.quantile((high - low) / spread, (0.05, 0.95))
        error = np.abs(middle - true[1]) / spread
        found[name] = {
            "centre_error": round(float(np.median(error)), 3),
            "scale_5_to_95": [round(float(each), 3) for each in ratio],
        }
    return {"columns": found, "bins": block.bins}
