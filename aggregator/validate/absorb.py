"""One server's pass over a submission's body, piece by piece: k + 1 words and a share come out.

For sums x is shared as a_A at server A and b + a_B at server B. So A keeps nothing of b, and B
reads it again from its own spool where it must (docs/soundness.md, "Part 2: the exact norm").
What is projected is that share, or, where the check is by gates, b itself: public to both servers.
"""

import numpy as np

from precad.aggregator.validate.norm import excess_share
from precad.common.identifiers import Role
from precad.common.kernel.kernel import sharing_in_use
from precad.common.keystream import Keystream
from precad.common.ring import RingVector, signed
from precad.common.secret import Secret
from precad.common.share.words import norm_point
from precad.common.task import Task
from precad.norm_check.random_rows import Rows

_TOGETHER = 1 << 16
"""Coordinates that pass together, a piece of a body: in the processor's cache, or nearly."""


class Absorber:
    """Takes the pieces of b in order.

    Args:
        role: SERVER_A or SERVER_B.
        task: gives d, k and β, and which check it is.
        mask: a_j, this server's own mask, from its start.
        row_key: the dealer's, for this submission alone.
        total: ``[d] int64`` that the share is added into; None where the client isn't counted.
    """

    def __init__(
        self,
        role: Role,
        task: Task,
        mask: Keystream,
        row_key: Secret,
        total: RingVector | None,
    ) -> None:
        self._role = role
        self._bound = task.bound
        self._mask = mask
        self._rows = Rows(row_key, task.dimension, task.projections)
        self._total = total
        self._add_share = sharing_in_use()
        self._dimension = task.dimension
        self._share = np.empty(min(_TOGETHER, task.dimension), dtype=np.int64)
        self._public = task.validation == "fss"
        self._crossed = 0
        self._squared = 0
        self.absorbed = 0
        """Coordinates so far."""

    def absorb(self, b: RingVector) -> None:
        """The next piece of b, ``[≤ d] int64``; all but the last a multiple of 64 long."""
        for start in range(0, b.size, _TOGETHER):
            self._absorb(b[start : start + _TOGETHER])

    def words(self, r_share: int) -> RingVector:
        """``[k + 1] int64``: this server's shares of the k projections, then of y.

        Args:
            r_share: this server's share of r = a·a.
        """
        assert not self._public
        y = excess_share(self._role, self._crossed, self._squared, r_share, self._bound)
        return np.append(self._rows.z(), np.int64(y))

    @property
    def crossed(self) -> int:
        """⟨b, a_j⟩ so far, with this server's own mask; signed."""
        return signed(self._crossed)

    def points(self, word_a: int, word_b: int) -> RingVector:
        """``[k + 1] int64``: the projections of b and the norm's point, the same at both servers.

        Args:
            word_a: u_A, as the client signed it; nobody's but the header's words may be taken.
            word_b: u_B, likewise.
        """
        assert self._public
        y = norm_point(word_a, word_b, self._squared, self._bound)
        return np.append(self._rows.z(), np.int64(y))

    def _absorb(self, b: RingVector) -> None:
        share, start = self._share[: b.size], self.absorbed
        self._mask.words_into(share)
        total = None if self._total is None else self._total[start : start + b.size]
        crossed, squared = self._add_share(b, share, total, adds_b=self._role is Role.SERVER_B)
        self._crossed += crossed
        self._squared += squared
        self._rows.absorb(b if self._public else share)
        self.absorbed += b.size
        if self.absorbed == self._dimension:
            # All submissions of a batch are kept until they are decided on.
            self._share = self._share[:0].copy()
