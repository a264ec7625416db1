"""Sizes of a norm's proof, which client and servers compute alike from d, β and k.

docs/soundness.md, part 4: rows of c_w words stand at roots of unity of order N. The
digest of a task with ``validation = "proof"`` covers these sizes.
"""

from bisect import bisect_left
from dataclasses import dataclass
from functools import cached_property

from precad.common import Misconfiguration

P = 2**64 - 2**32 + 1
"""The field's order."""
LEAST_ROWS = 100
"""Fewest random rows of the range test. Unlike under a dealer, a client can try many
sets of rows by hashing: with a chance of 2^−100 a trial, 2^60 trials leave 2^−40."""
HALF_WIDTHS = 8
"""B/β: an honest row leaves [−B, B) with probability at most 2·e^−64."""
MOST_BOUND = 2**25
"""Largest β."""
_COLUMN_STEP = 8
"""The number of columns is a multiple of this, so that rows begin at cache lines."""


def _rows_for(words: int, columns: int) -> int:
    """Return how many rows of ``columns`` words hold ``words`` words."""
    return -(-words // columns)


@dataclass(frozen=True)
class ProofShape:
    """The sizes of the proof for d, β and k.

    Raises Misconfiguration: no such proof is sound, or exact in the field.
    """

    dimension: int
    """d, the length of the update."""
    bound: int
    """β, the bound on the norm, in units of the last place."""
    rows: int = LEAST_ROWS
    """k, the random rows of the range test."""

    def __post_init__(self) -> None:
        if self.rows < LEAST_ROWS:
            raise Misconfiguration(
                "projections", self.rows, f"must be at least {LEAST_ROWS}"
            )
        if not 1 <= self.bound <= MOST_BOUND:
            raise Misconfiguration("client_clip", self.bound, "must be 1 to 2^25 units")
        # 2B·d < p/2: no true sum of an accepted row wraps.
        if self.dimension < 1 or 4 * self.half_width * self.dimension >= 2**63:
            raise Misconfiguration(
                "dimension", self.dimension, "must be at least 1 and below 2^58/β"
            )

    @property
    def half_width(self) -> int:
        """Return B: the range test accepts a row's projection in [−B, B)."""
        return HALF_WIDTHS * self.bound

    @cached_property
    def weights(self) -> tuple[int, ...]:
        """Return what the bits of a projection count: 1, 2, 4 …, the rest of 2B − 1.

        With these weights the bits can write every number of [0, 2B), and no other.
        """
        width = 2 * self.half_width
        powers = (width - 1).bit_length() - 1
        return (*(2**exponent for exponent in range(powers)), width - 2**powers)

    @property
    def slack_bits(self) -> int:
        """Return the number of bits of the slack β² − X·X."""
        return (self.bound**2).bit_length()

    @property
    def bits(self) -> int:
        """Return the number of all bits: the projections' ones, then the slack's."""
        return self.rows * len(self.weights) + self.slack_bits

    @property
    def columns(self) -> int:
        """Return c_w, the words of a row."""
        return self._domain[1]

    @property
    def points(self) -> int:
        """Return N, the order of the roots of unity that rows stand at."""
        return self._domain[0]

    @property
    def update_rows(self) -> int:
        """Return the number of rows that hold the update."""
        return _rows_for(self.dimension, self.columns)

    @property
    def bit_rows(self) -> int:
        """Return the number of rows that hold the bits for one of two challenges."""
        return _rows_for(self.bits, self.columns)

    @property
    def used(self) -> int:
        """Return the number of rows with inputs.

        They stand at ω, ω² …, and the masking row stands at 1.
        """
        return self.update_rows + 2 * self.bit_rows

    @property
    def values(self) -> int:
        """Return the words of the proof, each a value of the polynomial h.

        They are its values at 1, at the used rows' points, and at the N odd points.
        """
        return 1 + self.used + self.points

    @property
    def body_words(self) -> int:
        """Return the words of a body: shares of the update, the bits and the proof."""
        return self.dimension + self.bits + self.values

    @property
    def challenges(self) -> int:
        """Return the words of ρ: 1 for the squared norm, 2 for the bits, k for rows."""
        return 3 + self.rows

    @property
    def parameters(self) -> tuple[int, ...]:
        """Return what the task's digest covers beside its fields.

        These are p, k, N, c_w and the number w of a projection's bits.
        """
        return P, self.rows, self.points, self.columns, len(self.weights)

    @cached_property
    def _domain(self) -> tuple[int, int]:
        """Return N and c_w with the least 2N + 2c_w."""
        candidates = []
        for log_points in range(2, 33):
            points = 2**log_points
            columns = self._least_columns(points)
            candidates.append((2 * points + 2 * columns, points, columns))
            if columns == _COLUMN_STEP:
                break
        _, points, columns = min(candidates)
        return points, columns

    def _least_columns(self, points: int) -> int:
        """Return the least c_w with which all rows and the masking one fit N points.

        It is a multiple of ``_COLUMN_STEP``.
        """

        def fit(steps: int) -> bool:
            columns = steps * _COLUMN_STEP
            update_rows = _rows_for(self.dimension, columns)
            return update_rows + 2 * _rows_for(self.bits, columns) < points

        most_steps = _rows_for(max(self.dimension, self.bits), _COLUMN_STEP)
        # Rows become fewer with more columns, so bisection finds the first that fit.
        steps = 1 + bisect_left(range(1, most_steps), x=True, key=fit)
        return _COLUMN_STEP * steps
