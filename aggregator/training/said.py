"""What this process has signed last for each owner."""

import hashlib
from typing import Literal

from precad.common.identifiers import ClientId
from precad.protos import precad_pb2 as pb

Kind = Literal["opening", "statement"]
_BYTES = 16
"""Of a SHA-256. Whoever found another message with the same would only have it ignored."""
_PLACES: dict[Kind, slice] = {"opening": slice(0, _BYTES), "statement": slice(_BYTES, 2 * _BYTES)}


class Said:
    """Remembers digests of its own last words, of each kind; 32 bytes an owner, who may be many.

    Owners show them in every version. What this process has signed from the database that it holds
    alone is in that database: it needn't be checked and looked up again.
    """

    def __init__(self) -> None:
        self._last: dict[ClientId, bytes] = {}

    def note(self, client: ClientId, kind: Kind, message: pb.Signed) -> None:
        """``message`` is signed and leaves."""
        last = bytearray(self._last.get(client, bytes(2 * _BYTES)))
        last[_PLACES[kind]] = _digest(message)
        self._last[client] = bytes(last)

    def knows(self, client: ClientId, kind: Kind, message: pb.Signed) -> bool:
        """Whether it is the last of its kind for ``client``, to the byte."""
        last = self._last.get(client)
        return last is not None and last[_PLACES[kind]] == _digest(message)


def _digest(message: pb.Signed) -> bytes:
    return hashlib.sha256(message.SerializeToString(deterministic=True)).digest()[:_BYTES]
