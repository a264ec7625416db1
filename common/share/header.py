"""The signed header of a submission: it fixes x, and is the same to both servers.

x is defined by two seeds and a body. The header names them by two commitments and a hash, all three
salted, so that no server, and nobody who sees the header, can test a guess of what it lacks.
"""

from dataclasses import dataclass, field

from precad.common.identifiers import Digest, Role
from precad.common.keystream import encode_context
from precad.common.ring import MODULUS
from precad.common.share.context import SubmissionContext
from precad.common.share.signature import Signature

NormWords = tuple[int, int]
"""u_A and u_B, signed representatives in Z_2^64 (``words.norm_word``)."""


def signed_bytes(
    context: SubmissionContext,
    commitment_a: Digest,
    commitment_b: Digest,
    body_digest: Digest,
    *,
    words: NormWords | None = None,
) -> bytes:
    """What a client signs: all of the context, c_A, c_B, h and, where the task has them, words.

    Injective: a header with words is signed for another purpose than one without.
    """
    digests = commitment_a.value, commitment_b.value, body_digest.value
    if words is None:
        return encode_context("submission-signature", *context.parts, *digests)
    residues = (word % MODULUS for word in words)
    return encode_context("submission-signature-with-words", *context.parts, *digests, *residues)


@dataclass(frozen=True, slots=True)
class SignedHeader:
    """What both servers get alike, as it came."""

    context: SubmissionContext
    commitment_a: Digest
    """c_A, to the seed that server A gets."""
    commitment_b: Digest
    """c_B, to server B's."""
    body_digest: Digest
    """h, of the body that server B gets."""
    signature: Signature = field(repr=False)
    """Over ``signed``."""
    words: NormWords | None = None
    """u_A and u_B; only under ``validation = "fss"``. Masked: they say nothing of x."""

    @property
    def signed(self) -> bytes:
        """The bytes that the client signed."""
        digests = self.commitment_a, self.commitment_b, self.body_digest
        return signed_bytes(self.context, *digests, words=self.words)

    @property
    def whole_digest(self) -> Digest:
        """SHA-256 of header, signature and certificates as received: what the servers compare.

        Compared by less, one client could send two headers and frame a server for the difference.
        """
        signature = self.signature
        parts = self.signed, signature.value, *signature.certificates
        return Digest.of(encode_context("whole-submission", *parts))

    def commitment(self, role: Role) -> Digest:
        """The one to the seed that ``role`` gets."""
        return self.commitment_a if role is Role.SERVER_A else self.commitment_b
