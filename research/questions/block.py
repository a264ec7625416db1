"""A block: what one record adds to a release for one query."""

from typing import Protocol

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


class Block(Protocol):
    """A query's vector of a record, before it is scaled and rounded."""

    @property
    def dimension(self) -> int:
        """d: how many sums it releases."""

    @property
    def norm(self) -> float:
        """Δ: the largest L2 norm of a record's vector."""

    @property
    def rounded(self) -> int:
        """How many coordinates of one record can be off their integer.

        A one-hot vector times a whole unit has none. The others' rounding moves a
        record's norm by at most half the root of this number.
        """
