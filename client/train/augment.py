"""The noise of records' copies: each record's is its own, whoever else was drawn."""

import math

import numpy as np
import torch
from numpy.typing import NDArray

from precad.common.keystream import Keystream
from precad.common.secret import Secret

_BITS = 53
_HALF = 0.5


class Augmentation:
    """Standard normal numbers for any record's copies, by its index; the same at every call.

    A record's numbers depend on the key and its index alone, so that two data sets that differ in
    one record train all others on the same copies. Privacy doesn't rest on the key.

    Args:
        key: a fresh one for each version.
        copies: K.
        shape: of one record.
    """

    def __init__(self, key: Secret, copies: int, shape: tuple[int, ...]) -> None:
        self._key, self._shape = key, (copies, *shape)
        self._count = math.prod(self._shape)

    def of(self, indices: NDArray[np.int64], rows: int) -> torch.Tensor:
        """``[rows, K, …] float32``: of these records, then of nobody, with the same work for each.

        Args:
            indices: ``[n ≤ rows] int64``, from 0.
            rows: how many there are to be.
        """
        if not self._count:
            # No copies, of any record: nothing is drawn for them.
            return torch.empty(rows, *self._shape)
        pairs = (self._count + 1) // 2
        words = np.empty((rows, 2 * pairs), np.uint64)
        nobody = range(-1, len(indices) - rows - 1, -1)
        for row, index in zip(words, [*indices.tolist(), *nobody], strict=True):
            stream = Keystream(self._key, "augmentation", index % 2**64)
            row[:] = stream.words(len(row)).view(np.uint64)
        # In (0, 1): Box and Muller's logarithm is finite.
        uniform = ((words >> np.uint64(64 - _BITS)).astype(np.float64) + _HALF) * 2.0**-_BITS
        lengths = np.sqrt(-2 * np.log(uniform[:, :pairs]))
        angles = 2 * math.pi * uniform[:, pairs:]
        normal = np.concatenate([lengths * np.cos(angles), lengths * np.sin(angles)], axis=1)
        found = torch.from_numpy(normal[:, : self._count].astype(np.float32))
        return found.reshape(rows, *self._shape)
