"""A client's signature over its submission's header.

Both servers get the same, so neither can be talked into a submission that the client didn't send
to the other, and no client can deny it afterwards.

Who signs and who checks are Protocols: certificates are `precad.common.identity.sign`'s business.
"""

from dataclasses import dataclass, field
from typing import Protocol

from precad.common.errors import RejectedSubmission, Rejection
from precad.common.identifiers import ClientId

MAX_SIGNATURE_BYTES = 72
"""ECDSA on P-256 in DER."""
MAX_CERTIFICATES = 4
MAX_CERTIFICATE_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Signature:
    """A signature and the certificate that it is to be checked with.

    Lengths are checked here, before anything is parsed.
    """

    value: bytes = field(repr=False)
    certificates: tuple[bytes, ...] = field(repr=False)
    """DER: the client's own, then any intermediate ones."""

    def __post_init__(self) -> None:
        if not 0 < len(self.value) <= MAX_SIGNATURE_BYTES:
            raise RejectedSubmission(
                Rejection.MALFORMED,
                f"signature has {len(self.value)} bytes, must have 1 to {MAX_SIGNATURE_BYTES}",
            )
        lengths = [len(each) for each in self.certificates]
        if not 0 < len(lengths) <= MAX_CERTIFICATES or max(lengths) > MAX_CERTIFICATE_BYTES:
            raise RejectedSubmission(
                Rejection.MALFORMED,
                f"certificates of {lengths[: MAX_CERTIFICATES + 1]} bytes; at most "
                f"{MAX_CERTIFICATES} of {MAX_CERTIFICATE_BYTES} bytes may come",
            )


class Signer(Protocol):
    """A client's pen."""

    def sign(self, signed: bytes) -> Signature:
        """The signature over ``signed``."""


class Verifier(Protocol):
    """A server's eye. Both methods raise RejectedSubmission with BAD_SIGNATURE."""

    def admit(self, signature: Signature, client: ClientId) -> None:
        """Whether the signature's certificate is ``client``'s and counts now."""

    def check(self, signature: Signature, signed: bytes) -> None:
        """Whether the signature is its certificate's over ``signed``."""
