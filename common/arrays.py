"""NumPy arrays by the numbers that they hold; shapes are said where they are used."""

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]
Floats32 = NDArray[np.float32]
Words = NDArray[np.uint64]
"""Elements of a field, or 64 bits as they are."""
Booleans = NDArray[np.bool_]
AnyNumbers = NDArray[np.generic]
"""Of any type, as data come."""
