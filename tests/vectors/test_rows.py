"""Pinned bytes of the range test's rows: two servers of different versions must read them alike."""

import numpy as np

from precad.common.keystream import Keystream
from precad.common.norm_check.rows import Rows
from precad.common.secret import Secret

KEY = Secret(bytes(range(32)))
D, K = 70, 3
X = (np.arange(D, dtype=np.int64) - 35) * 0x0123_4567_89AB_CDEF
MASKS = [
    [
        [0x4D28CDB1E27288F1, 0x3545B4F10C8DC841],
        [0x644BAD9AA07ABF50, 0x2267340BDC8C05E8],
        [0xC8C82DBE9BB63B73, 0x929D4292A4650CB0],
    ],
    [
        [0xE18D0E71A6D3A166, 0xF6402483D2D720CC],
        [0x4399B4BFD9088D56, 0x02BC8C965E083F79],
        [0x20BCB386204728A1, 0xE9F128C52DA08A1B],
    ],
]
"""For the coordinates 0 to 63 and then 64 to 127, for each row: u, v."""
Z = [-4181261990040831645, -5165088340638674385, -1721696113546224554]


def test_masks() -> None:
    stream = Keystream(KEY, "validate/rows").read(2 * K * 2 * 8)
    assert np.frombuffer(stream, dtype="<u8").reshape(2, K, 2).tolist() == MASKS


def test_projections() -> None:
    rows = Rows(KEY, D, K)
    rows.absorb(X)
    assert rows.z().tolist() == Z


def test_projections_are_what_the_masks_say() -> None:
    for row in range(K):
        z = 0
        for place in range(D):
            u, v = MASKS[place // 64][row]
            z += int(X[place]) * ((u >> place % 64 & 1) - (v >> place % 64 & 1))
        assert (z - Z[row]) % 2**64 == 0
