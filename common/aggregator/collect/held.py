"""A complete submission on one server, before it is matched with the other server's."""

from dataclasses import dataclass, field
from pathlib import Path

from precad.common.errors import Misconfiguration
from precad.common.identifiers import Role
from precad.common.ring import WORD_BYTES, RingVector, from_bytes
from precad.common.secret import Secret
from precad.common.share.additive import mask
from precad.common.share.commitment import Commitment, SubmissionContext
from precad.common.share.signature import Signature, signed_bytes


@dataclass(frozen=True, slots=True)
class Held:
    """One client's share as this server holds it: A the seed, B the masked vector.

    B's share is in memory or, for long vectors, in a spool file (it is uniform without A's seed).
    """

    context: SubmissionContext
    role: Role
    commitment: Commitment
    """To the share held here."""
    other_commitment: Commitment
    """As the client claims it for the other server."""
    share: Secret | Path = field(repr=False)
    signature: Signature = field(repr=False)
    """Checked already, over ``signed``."""

    @property
    def signed(self) -> bytes:
        """What the client signed, as this server sees it: its own commitment isn't a claim."""
        pair = (self.commitment, self.other_commitment)
        a, b = pair if self.role is Role.SERVER_A else reversed(pair)
        return signed_bytes(self.context, a, b)

    def expand(self, dimension: int) -> RingVector:
        """The share as ``[d] int64``. Raises Misconfiguration if its file was meddled with."""
        data = self.share.read_bytes() if isinstance(self.share, Path) else self.share.reveal()
        if self.role is Role.SERVER_A:
            return mask(Secret(data), self.context, dimension)
        if len(data) != dimension * WORD_BYTES:
            raise Misconfiguration(
                "spool", f"{len(data)} bytes", "a share's file was changed while its round was open"
            )
        return from_bytes(data)

    def discard(self) -> None:
        """Remove the spool file, if there is one."""
        if isinstance(self.share, Path):
            self.share.unlink(missing_ok=True)
