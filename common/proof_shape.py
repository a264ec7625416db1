"""The sizes of a norm's proof: what client and servers use alike, from d, β and k alone.

docs/soundness.md, part 4: rows of c_w words stand at roots of unity of order N. A task
with ``validation = "proof"`` has these in its digest.
"""

from bisect import bisect_left
from dataclasses import dataclass
from functools import cached_property

from precad.common.errors import Misconfiguration

P = 2**64 - 2**32 + 1
"""The field's order."""
LEAST_ROWS = 100
"""Rows can be ground by hashing, unlike under a dealer: 2^−100 a trial leaves 2^−40 for
2^60."""
HALF_WIDTHS = 8
"""B/β: honest rows leave [−B, B) with probability at most 2·e^−64 each."""
MOST_BOUND = 2**25
_COLUMNS = 8
"""Columns are a multiple of this: rows begin at whole cache lines."""


@dataclass(frozen=True)
class ProofShape:
    """d, β, the norm's bound in units of the last place, and k, the range test's random rows.

    Raises Misconfiguration: no such proof is sound, or exact in the field.
    """

    dimension: int
    bound: int
    rows: int = LEAST_ROWS

    def __post_init__(self) -> None:
        if self.rows < LEAST_ROWS:
            raise Misconfiguration(
                "projections", self.rows, f"must be at least {LEAST_ROWS}"
            )
        if not 1 <= self.bound <= MOST_BOUND:
            raise Misconfiguration("client_clip", self.bound, "must be 1 to 2^25 units")
        # 2B·d < p/2: no true sum of an accepted row wraps.
        if self.dimension < 1 or 4 * self.half_width * self.dimension >= 2**63:
            remedy = "must be at least 1 and below 2^58/β"
            raise Misconfiguration("dimension", self.dimension, remedy)

    @property
    def half_width(self) -> int:
        """B: a row's projection passes in [−B, B)."""
        return HALF_WIDTHS * self.bound

    @cached_property
    def weights(self) -> tuple[int, ...]:
        """What each bit of a projection counts: 1, 2, 4 … and the rest of 2B − 1.

        So they can write every number of [0, 2B), and no other.
        """
        most = (2 * self.half_width - 1).bit_length() - 1
        return (*(2**i for i in range(most)), 2 * self.half_width - 2**most)

    @property
    def slack_bits(self) -> int:
        """Bits of β² − X·X."""
        return (self.bound**2).bit_length()

    @property
    def bits(self) -> int:
        """All bits of a submission: of its projections, then of its slack."""
        return self.rows * len(self.weights) + self.slack_bits

    @property
    def columns(self) -> int:
        """c_w: words of a row."""
        return self._domain[1]

    @property
    def points(self) -> int:
        """N: order of the roots of unity that rows stand at."""
        return self._domain[0]

    @property
    def update_rows(self) -> int:
        """Rows of the update."""
        return -(-self.dimension // self.columns)

    @property
    def bit_rows(self) -> int:
        """Rows of the bits, for each of the two challenges."""
        return -(-self.bits // self.columns)

    @property
    def used(self) -> int:
        """Rows with inputs; they stand at ω, ω² …, and the masking row at 1."""
        return self.update_rows + 2 * self.bit_rows

    @property
    def values(self) -> int:
        """Words of the proof: h at 1, at the used rows' points and at the N odd ones."""
        return 1 + self.used + self.points

    @property
    def body_words(self) -> int:
        """Words of a body: the shares of the update, of the bits and of the proof's values."""
        return self.dimension + self.bits + self.values

    @property
    def challenges(self) -> int:
        """Words of ρ: the squared norm, the bits twice, and every row."""
        return 3 + self.rows

    @property
    def parameters(self) -> tuple[int, ...]:
        """What the task's digest covers beside its fields: p, k, N, c_w and w."""
        return P, self.rows, self.points, self.columns, len(self.weights)

    @cached_property
    def _domain(self) -> tuple[int, int]:
        """N and c_w with the least 2N + 2c_w."""
        candidates = []
        for log in range(2, 33):
            points = 2**log
            columns = self._least_columns(points)
            candidates.append((2 * points + 2 * columns, points, columns))
            if columns == _COLUMNS:
                break
        return min(candidates)[1:]

    def _least_columns(self, points: int) -> int:
        """The least c_w, a multiple of 8, with which all rows fit beside the masking one."""

        def fits(width: int) -> bool:
            columns = width * _COLUMNS
            return -(-self.dimension // columns) + 2 * -(-self.bits // columns) < points

        most = -(-max(self.dimension, self.bits) // _COLUMNS)
        return _COLUMNS * (1 + bisect_left(range(1, most), x=True, key=fits))
