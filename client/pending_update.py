"""What a client shares in one version, and the pair that it sends in one attempt.

All attempts of a version get the same update X, which is on the disk before anything of
it is sent; each shares it afresh, and a retry within an attempt sends the same bytes. X
is as confidential as the records: the file is readable by this user only and goes when
the version is over. It is removed, not overwritten: on flash storage overwriting
guarantees nothing.
"""

import hashlib
import struct
from dataclasses import dataclass, field, replace
from io import BytesIO
from pathlib import Path

from precad.common.errors import RejectedSubmission
from precad.common.files import remove_drafts, write_file, writing
from precad.common.identifiers import ClientId, Digest, Role, Secret
from precad.common.ring import WORD_BYTES, RingVector, from_bytes, to_bytes
from precad.common.submission import HeldBody
from precad.common.task import Task
from precad.norm_check.proof_submission import AnySubmission, body_layout
from precad.norm_check.submission_messages import header_from_bytes, header_to_bytes

Pair = tuple[AnySubmission, AnySubmission]
"""For server A and for server B."""

_MAGIC = b"precad/v4/pending\0"
_VERSION = struct.Struct("<QqQQ")
"""t, m or −1, attempts answered before, and the length of X in bytes: 0 where there is
none."""
_LENGTH = struct.Struct("<Q")
_DIGEST_BYTES = hashlib.sha256().digest_size


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What is kept for the open version."""

    version: int
    """t of the model θ_t that it was computed at."""
    update: RingVector | None = field(repr=False)
    """X, ``[d] int64``; None when all that was sent in this version were zeros."""
    pair: Pair = field(repr=False)
    """The newest attempt's."""
    re_releases: int | None
    """m, which the version is to be counted with before this pair leaves; None: it
    shares zeros."""
    answered: int = 0
    """How many earlier attempts' pairs shared X."""

    @property
    def model(self) -> Digest:
        """Of θ_t."""
        return self.pair[0].context.model


class Pending:
    """Keeps one version's update and one attempt's pair, in a file or in memory."""

    def __init__(self, task: Task, client: ClientId, path: Path | None = None) -> None:
        self._task = task
        self._client = client
        self._path = path
        self._kept = None if path is None else self._read(path)

    @property
    def version(self) -> int | None:
        """The version that something is kept for."""
        return None if self._kept is None else self._kept.version

    @property
    def attempt(self) -> int | None:
        """The attempt whose pair is kept."""
        return None if self._kept is None else self._kept.pair[0].context.attempt

    def of_attempt(self, attempt: int) -> Kept | None:
        """What was kept with this attempt's pair."""
        return self._kept if self.attempt == attempt else None

    def update(self, version: int) -> RingVector | None:
        """X of this version, if one was kept."""
        kept = self._kept
        return kept.update if kept is not None and kept.version == version else None

    def model(self, version: int) -> Digest | None:
        """The digest of the θ_t that what is kept of this version was computed at."""
        kept = self._kept
        return kept.model if kept is not None and kept.version == version else None

    def answered(self, version: int, attempt: int) -> int:
        """How many attempts of this version before ``attempt`` got a pair that shares X, or may."""
        kept = self._kept
        if kept is None or kept.version != version:
            return 0
        return kept.answered + (
            self.attempt != attempt and kept.re_releases is not None
        )

    def keep(
        self,
        version: int,
        update: RingVector | None,
        pair: Pair,
        re_releases: int | None,
    ) -> None:
        """Keep this in place of an older attempt's; durably, before this returns.

        ``update`` is X, also where this attempt's pair shares zeros; None if there is
        none.

        Raises StorageFailure: the file can't be written.
        """
        answered = self.answered(version, pair[0].context.attempt)
        kept = Kept(
            version=version,
            update=update,
            pair=pair,
            re_releases=re_releases,
            answered=answered,
        )
        if self._path is not None:
            with writing(self._path):
                write_file(self._path, _encode(kept))
        self._kept = kept

    def drop(self) -> None:
        """The version is over: what is kept has no further use."""
        self._kept = None
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    def _read(self, path: Path) -> Kept | None:
        """What an earlier process kept; None when that can't be read: the version is sat out."""
        remove_drafts(path)
        try:
            kept = _decode(path.read_bytes(), self._task)
        except (
            FileNotFoundError,
            ValueError,
            OverflowError,
            struct.error,
            RejectedSubmission,
        ):
            return None
        context = kept.pair[0].context
        mine = (context.task, context.client) == (self._task.digest, self._client)
        return kept if mine else None


def _encode(kept: Kept) -> bytes:
    """Version, m, answers, X, both headers as on the wire, the body, and a digest of it all."""
    update = b"" if kept.update is None else to_bytes(kept.update)
    re_releases = -1 if kept.re_releases is None else kept.re_releases
    numbers = _VERSION.pack(kept.version, re_releases, kept.answered, len(update))
    parts = [_MAGIC, numbers, update]
    for submission in kept.pair:
        header = header_to_bytes(submission)
        parts += [_LENGTH.pack(len(header)), header]
    (body,) = (each.body for each in kept.pair if each.body is not None)
    data = b"".join([*parts, body.prefix.reveal(), *body.pieces()])
    return data + hashlib.sha256(data).digest()


def _decode(data: bytes, task: Task) -> Kept:
    whole = memoryview(data)
    kept = whole[:-_DIGEST_BYTES]
    digest = whole[-_DIGEST_BYTES:]
    if not data.startswith(_MAGIC) or hashlib.sha256(kept).digest() != digest:
        raise ValueError("not a whole pending file")
    file = BytesIO(kept[len(_MAGIC) :])
    version, re_releases, answered, length = _VERSION.unpack(file.read(_VERSION.size))
    update = from_bytes(file.read(length)) if length else None
    if update is not None and update.shape != (task.dimension,):
        raise ValueError("another model's update")
    submissions = []
    for role in (Role.SERVER_A, Role.SERVER_B):
        (length,) = _LENGTH.unpack(file.read(_LENGTH.size))
        submissions.append(header_from_bytes(file.read(length), role))
    prefix_bytes, words = body_layout(task)
    body = HeldBody(Secret(file.read(prefix_bytes)), file.read())
    if len(body.words) != words * WORD_BYTES:
        raise ValueError("another model's body")
    for_a, for_b = (
        replace(s, body=body if s.awaits_body else None) for s in submissions
    )
    return Kept(
        version=version,
        update=update,
        pair=(for_a, for_b),
        re_releases=None if re_releases < 0 else re_releases,
        answered=answered,
    )
