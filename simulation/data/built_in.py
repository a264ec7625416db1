"""Real data that comes with scikit-learn, so that it is there on any machine.

Its files are read here: importing it takes a second, and pandas with it.
"""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from precad.simulation.data.dataset import DataSet

SPLIT_SEED = 0
_TEST_PART = 0.2

# Ten measurements each: their means, their standard errors, their worst values.
# fmt: off
_CENTRES = (
    14, 20, 90, 650, 0.1, 0.1, 0.1, 0.05, 0.18, 0.06,
    0.4, 1.2, 3, 40, 0.007, 0.025, 0.03, 0.012, 0.02, 0.004,
    16, 25, 105, 850, 0.13, 0.25, 0.25, 0.11, 0.3, 0.08,
)
_SCALES = (
    4, 5, 25, 350, 0.015, 0.05, 0.08, 0.04, 0.03, 0.007,
    0.3, 0.5, 2, 40, 0.003, 0.018, 0.03, 0.006, 0.008, 0.0025,
    5, 6, 35, 550, 0.025, 0.15, 0.2, 0.07, 0.06, 0.02,
)
# fmt: on


def digits() -> DataSet:
    """Handwritten digits: 1,797 images of 8×8 with 16 grey levels, scaled to 0..1."""
    table = digits_table()
    return _split("digits", table[:, :-1] / 16.0, table[:, -1], 10)


def digits_table() -> NDArray[np.float64]:
    """The digits as they lie there, ``[1797, 65]``: 64 grey levels from 0 to 16, and the label."""
    return np.loadtxt(_folder() / "digits.csv.gz", delimiter=",")


def breast_cancer() -> DataSet:
    """Breast cancer Wisconsin (diagnostic): 569 patients, 30 measurements, two diagnoses.

    The measurements have scales from 10^−3 to 10^3. They are centred and scaled by fixed round
    numbers that stand in this file, and cut at ±5, not by statistics of the records at hand:
    such statistics would be a release of their own that no noise covers. The numbers are
    typical magnitudes of these measurements, set by hand for this public data set; whoever holds
    private measurements takes them from a textbook or a public study instead.
    """
    table = np.loadtxt(_folder() / "breast_cancer.csv", delimiter=",", skiprows=1)
    scaled = (table[:, :-1] - np.array(_CENTRES)) / np.array(_SCALES)
    return _split("breast-cancer", np.clip(scaled, -5.0, 5.0), table[:, -1], 2)


def _folder() -> Path:
    """Where scikit-learn's data lie. Raises ModuleNotFoundError."""
    found = find_spec("sklearn")
    if found is None or found.origin is None:
        raise ModuleNotFoundError("No module named 'sklearn'", name="sklearn")
    return Path(found.origin).with_name("datasets") / "data"


def _split(name: str, x: NDArray[np.float64], y: NDArray[np.float64], classes: int) -> DataSet:
    """The same 80/20 split everywhere: it is no secret."""
    order = np.random.default_rng(SPLIT_SEED).permutation(len(x))
    test = round(_TEST_PART * len(x))
    x32, y64 = x.astype(np.float32), y.astype(np.int64)
    return DataSet(
        name, x32[order[test:]], y64[order[test:]], x32[order[:test]], y64[order[:test]], classes
    )
