"""The arrays that a certifier works on."""

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from precad.common.errors import Misconfiguration

Floats: TypeAlias = npt.NDArray[np.float64]
Integers: TypeAlias = npt.NDArray[np.int64]
Booleans: TypeAlias = npt.NDArray[np.bool_]


def probabilities(field: str, values: npt.ArrayLike) -> Floats:
    """``values`` as a float64 array of the same shape, each in [0, 1].

    Raises:
        Misconfiguration: an entry is NaN or outside [0, 1].
    """
    array = np.asarray(values, dtype=np.float64)
    if np.isnan(array).any():
        raise Misconfiguration(field, "NaN", "leave out points without a score, or mend the model")
    if array.size and not (array.min() >= 0 and array.max() <= 1):
        wrong = float(array.min() if array.min() < 0 else array.max())
        raise Misconfiguration(field, wrong, "scores and probabilities lie in [0, 1]; rescale them")
    return array
