"""The pair that a client sends in one attempt, kept until the attempt is over.

A client that dies while it sends comes back with the same bytes: drawing a second sample of
records for one attempt would give the servers two views of it, and cost privacy twice.

The two shares add up to the update itself, so the file is as confidential as the records: it
stays on the owner's own disk, readable by this user only, and goes when the attempt is over. It is
removed, not overwritten: on flash storage overwriting guarantees nothing.
"""

import hashlib
import struct
from pathlib import Path

from google.protobuf.message import DecodeError

from precad.common.durable import remove_drafts, write_file
from precad.common.errors import RejectedSubmission
from precad.common.identifiers import ClientId, Role
from precad.common.secret import Secret
from precad.common.share import Submission
from precad.common.task import Task
from precad.common.wire.submission import header_to_wire, submission_from_wire
from precad.protos import precad_pb2 as pb

Pair = tuple[Submission, Submission]
"""For server A and for server B."""

_MAGIC = b"precad/v1/pending\0"
_LENGTHS = struct.Struct("<QQ")
_DIGEST_BYTES = hashlib.sha256().digest_size


class Pending:
    """Keeps one attempt's pair.

    Args:
        task: pairs of other tasks aren't given out.
        client: nor are another client's.
        path: file that survives restarts; None keeps the pair in memory.
    """

    def __init__(self, task: Task, client: ClientId, path: Path | None = None) -> None:
        self._task = task
        self._client = client
        self._path = path
        self._pair = None if path is None else self._read(path)

    @property
    def attempt(self) -> int | None:
        """The attempt whose pair is kept."""
        return None if self._pair is None else self._pair[0].context.attempt

    def get(self, attempt: int) -> Pair | None:
        """The pair that was kept for this attempt."""
        return self._pair if self.attempt == attempt else None

    def keep(self, pair: Pair) -> None:
        """Keep ``pair`` in place of an older one; durably, before this returns."""
        if self._path is not None:
            write_file(self._path, _encode(pair))
        self._pair = pair

    def drop(self) -> None:
        """The attempt is over: its shares have no further use."""
        self._pair = None
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    def _read(self, path: Path) -> Pair | None:
        """What an earlier process kept; None when that can't be read: the attempt is sat out."""
        remove_drafts(path)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        try:
            pair = _decode(data)
        except (ValueError, struct.error, DecodeError, RejectedSubmission):
            return None
        context = pair[0].context
        mine = (context.task, context.client) == (self._task.digest, self._client)
        return pair if mine else None


def _encode(pair: Pair) -> bytes:
    """Both uploads as they go on the wire, and a digest of it all."""
    parts = [_MAGIC]
    for submission in pair:
        header = header_to_wire(submission).SerializeToString()
        share = submission.share_data()
        parts += [_LENGTHS.pack(len(header), len(share)), header, share]
    data = b"".join(parts)
    return data + hashlib.sha256(data).digest()


def _decode(data: bytes) -> Pair:
    body, digest = data[:-_DIGEST_BYTES], data[-_DIGEST_BYTES:]
    if not body.startswith(_MAGIC) or hashlib.sha256(body).digest() != digest:
        raise ValueError("not a whole pending file")
    at = len(_MAGIC)
    submissions = []
    for role in (Role.SERVER_A, Role.SERVER_B):
        header_length, share_length = _LENGTHS.unpack_from(body, at)
        at += _LENGTHS.size
        if header_length + share_length > len(body) - at:
            raise ValueError("not a whole pending file")
        header = pb.SubmissionHeader.FromString(body[at : at + header_length])
        at += header_length
        share = Secret(body[at : at + share_length])
        at += share_length
        submissions.append(submission_from_wire(header, role, share))
    return submissions[0], submissions[1]
