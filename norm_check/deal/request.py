"""What the two servers ask the dealer for."""

from dataclasses import dataclass, field
from math import prod

from precad.common.errors import Misconfiguration
from precad.common.identifiers import ATTEMPTS, Digest
from precad.common.keystream import Keystream
from precad.common.secret import Secret
from precad.norm_check.deal.program import program

NONCES_BYTES = 64
_LIMITS = {
    "attempt": (0, ATTEMPTS - 1),
    "batch": (0, 2**31 - 1),
    "clients": (1, 100_000),
    "comparisons": (1, 2**28),
}


@dataclass(frozen=True, slots=True)
class DealRequest:
    """The binary triples of one validation batch. Raises Misconfiguration for what can't be."""

    task: Digest
    attempt: int
    batch: int
    """Number of the batch within the attempt."""
    clients: int
    """Conjunctions: one a submission."""
    comparisons: int
    """Sign bits that the batch takes, all clients' together."""
    nonces: bytes
    """Server A's and B's for their link, 32 bytes each: two restored databases have others."""

    def __post_init__(self) -> None:
        if len(self.nonces) != NONCES_BYTES:
            raise Misconfiguration("nonces", len(self.nonces), f"must have {NONCES_BYTES} bytes")
        for name, (least, most) in _LIMITS.items():
            value = getattr(self, name)
            if type(value) is not int or not least <= value <= most:
                raise Misconfiguration(name, value, f"must be an integer in [{least}, {most}]")
        if self.comparisons % self.clients:
            raise Misconfiguration("comparisons", self.comparisons, "as many for each client")

    @property
    def sizes(self) -> list[int]:
        """Words of each binary triple, in order."""
        return [prod(shape) for shape, _ in program(self.clients, self.comparisons)]

    @property
    def correction_words(self) -> int:
        """Words that travel to server B: one a bit-wise AND of words."""
        return sum(self.sizes)

    def stream(self, key: Secret, number: int) -> Keystream:
        """One server's words of triple ``number``: of a, of b, then (server A) of c.

        Dealer and server expand it alike, but for B's c, which is corrected: (a & b) ⊕ c_A.
        """
        shape = self.attempt, self.batch, self.clients, self.comparisons
        context = self.task.value, *shape, self.nonces, number
        return Keystream(key, "deal/binary-triple", *context)


@dataclass(frozen=True, slots=True)
class SquareRequest:
    """One server's half of a mask that the dealer squares; Misconfiguration for bad names."""

    task: Digest
    attempt: int
    context: bytes
    """SHA-256 of the submission's context."""
    commitment_a: bytes
    commitment_b: bytes
    """To each server's seed, as the client signed them."""
    seed: Secret = field(compare=False)
    """Of this server's mask; 32 bytes, like the salt. They open this server's commitment."""
    salt: Secret = field(compare=False)

    @property
    def names(self) -> tuple[Digest, Digest, Digest]:
        """Ctx, c_A and c_B: what both masks are bound to."""
        return Digest(self.context), Digest(self.commitment_a), Digest(self.commitment_b)

    def __post_init__(self) -> None:
        for value in (self.context, self.commitment_a, self.commitment_b):
            Digest(value)
        if self.attempt not in range(ATTEMPTS):
            raise Misconfiguration("attempt", self.attempt, f"must be in [0, {ATTEMPTS})")
