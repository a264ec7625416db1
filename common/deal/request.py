"""What the two servers ask the dealer for."""

from dataclasses import dataclass
from math import prod

from precad.common.deal.program import comparison_triples
from precad.common.errors import Misconfiguration
from precad.common.identifiers import Digest

NONCES_BYTES = 64
_LIMITS = {
    "attempt": (0, 2**63 - 1),
    "batch": (0, 2**31 - 1),
    "clients": (1, 100_000),
    "dimension": (1, 2**40),
    "comparisons": (1, 2**28),
}


@dataclass(frozen=True, slots=True)
class DealRequest:
    """The correlated randomness of one validation batch.

    Raises:
        Misconfiguration: a number is out of range.
    """

    task: Digest
    attempt: int
    batch: int
    """Number of the batch within the attempt."""
    clients: int
    """Inner-product triples, one a submission."""
    dimension: int
    """d: length of each inner-product triple."""
    comparisons: int
    """Sign bits that the batch opens."""
    nonces: bytes
    """Server A's and B's for their link, 32 bytes each: two restored databases have others."""

    def __post_init__(self) -> None:
        if len(self.nonces) != NONCES_BYTES:
            raise Misconfiguration("nonces", len(self.nonces), f"must have {NONCES_BYTES} bytes")
        for field, (least, most) in _LIMITS.items():
            value = getattr(self, field)
            if type(value) is not int or not least <= value <= most:
                raise Misconfiguration(field, value, f"must be an integer in [{least}, {most}]")

    @property
    def context(self) -> tuple[bytes | int, ...]:
        """What every stream of this request is bound to: its shape and the nonces too."""
        number = self.task.value, self.attempt, self.batch
        return *number, self.clients, self.dimension, self.comparisons, self.nonces

    @property
    def correction_words(self) -> int:
        """Words that travel to server B: one an inner product, one a bit-wise AND of words."""
        words_per_comparison = sum(prod(shape) for shape, _ in comparison_triples(1))
        return self.clients + self.comparisons * words_per_comparison
