"""Made-up patients with the faults of real tables, for simulations.

Values are missing, out of range, rounded, heavily tailed, heaped at 0, or of levels
that nobody listed.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from research.questions.block import Floats, Integers

WARDS = ["surgery", "medicine", "cardiology", "neurology", "children", "eyes"]
_WARDS = [*WARDS, "Surgery ", "unit 7b", "-"]
_CHANCES = [0.33, 0.22, 0.14, 0.1, 0.06, 0.02, 0.05, 0.04, 0.04]


@dataclass(frozen=True, kw_only=True)
class Patients:
    """Columns of so many records.

    Attributes:
        age: Whole years; NaN is missing; some are 999.
        pressure: Systolic; rounded to 10 by most, to 1 by others; NaN is missing.
        stay: Days, heavily tailed, many 0; NaN is missing; a few negative.
        ward: Text as typed.
        died: 0 or 1.
    """

    age: Floats
    pressure: Floats
    stay: Floats
    ward: npt.NDArray[np.object_]
    died: Integers


@dataclass(frozen=True)
class _Draw:
    records: int
    generator: np.random.Generator

    def some(self, share: float) -> npt.NDArray[np.bool_]:
        """Return which records have a fault that so many have, at random."""
        return self.generator.random(self.records) < share


def patients(records: int, generator: np.random.Generator) -> Patients:
    """Return so many made-up records."""
    draw = _Draw(records, generator)
    age = np.floor(np.clip(generator.normal(62, 16, records), 0, 104))
    age[draw.some(0.01)] = 999
    age[draw.some(0.05)] = np.nan
    pressure = np.rint(generator.normal(135, 22, records))
    pressure = np.where(draw.some(0.7), 10 * np.rint(pressure / 10), pressure)
    pressure[draw.some(0.12)] = np.nan
    stay = generator.lognormal(1.5, 0.8, records)
    stay[draw.some(0.2)] = 0
    stay[draw.some(0.005)] = -1
    stay[draw.some(0.08)] = np.nan
    return Patients(
        age=age,
        pressure=pressure,
        stay=stay,
        ward=generator.choice(np.array(_WARDS, dtype=object), records, p=_CHANCES),
        died=draw.some(0.12).astype(np.int64),
    )
