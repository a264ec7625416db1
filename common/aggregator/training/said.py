"""What this process has signed last for each owner."""

import hashlib

from precad.common.identifiers import ClientId
from precad.protos import precad_pb2 as pb


class Said:
    """Remembers digests of its own last words, of each kind.

    Owners show them in every version. What this process has signed from the database that it holds
    alone is in that database: it needn't be checked and looked up again.
    """

    def __init__(self) -> None:
        self._last: dict[tuple[ClientId, str], bytes] = {}

    def note(self, client: ClientId, kind: str, message: pb.Signed) -> None:
        """``message`` is signed and leaves."""
        self._last[client, kind] = _digest(message)

    def knows(self, client: ClientId, kind: str, message: pb.Signed) -> bool:
        """Whether it is the last of its kind for ``client``, to the byte."""
        return self._last.get((client, kind)) == _digest(message)


def _digest(message: pb.Signed) -> bytes:
    return hashlib.sha256(message.SerializeToString(deterministic=True)).digest()
