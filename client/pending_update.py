"""The open version's update, and the pair of submissions for its newest attempt.

All attempts of a version get the same update X, which is on the disk before anything of
it is sent. Each attempt shares X afresh; a retry within an attempt sends the same
bytes. X is as confidential as the records: the file is readable by this user only, and
it is removed when the version is over. It is not overwritten: on flash storage
overwriting guarantees nothing.
"""

import hashlib
import struct
from dataclasses import field, replace
from io import BytesIO
from pathlib import Path

from precad.common import (
    SERVERS,
    ClientId,
    Digest,
    HeldBody,
    RejectedSubmission,
    RingVector,
    Secret,
    Task,
    frozen_kw_only_dataclass,
    remove_drafts,
    write_file,
    writing,
)
from precad.common.ring import from_bytes, to_bytes
from precad.norm_check import (
    AnySubmission,
    body_layout,
    header_from_bytes,
    header_to_wire,
)

Pair = tuple[AnySubmission, AnySubmission]
"""The submissions for server A and for server B."""

_MAGIC = b"precad/v4/pending\0"
"""First bytes of the file."""
_NUMBERS = struct.Struct("<QqQQ")
"""t, m or −1, the number of attempts answered before, and the length of X in bytes: 0
where there is none."""
_LENGTH = struct.Struct("<Q")
"""The length of a header in bytes."""
_DIGEST_BYTES = hashlib.sha256().digest_size


@frozen_kw_only_dataclass
class Kept:
    """What an owner keeps for the open version."""

    version: int
    """t of the model θ_t that the update was computed at."""
    update: RingVector | None = field(repr=False)
    """X, ``[d] int64``; None when all that was sent in this version were zeros."""
    pair: Pair = field(repr=False)
    """What is sent in the newest attempt."""
    re_releases: int | None
    """m, with which the version must be charged before this pair leaves. None where the
    pair shares zeros."""
    answered: int = 0
    """Number of earlier attempts whose pairs shared X."""

    @property
    def model(self) -> Digest:
        """The digest of θ_t."""
        return self.pair[0].context.model


class Pending:
    """Keeps one version's update and one attempt's pair.

    They are kept in the file ``path``, or in memory without it. What an earlier process
    of this client and task kept there is read.
    """

    def __init__(self, task: Task, client: ClientId, path: Path | None = None) -> None:
        self._task = task
        self._client = client
        self._path = path
        self._kept = None if path is None else self._read(path)

    @property
    def version(self) -> int | None:
        """The version that something is kept for; None where nothing is."""
        return None if self._kept is None else self._kept.version

    @property
    def attempt(self) -> int | None:
        """The attempt whose pair is kept; None where none is."""
        return None if self._kept is None else self._kept.pair[0].context.attempt

    def of_attempt(self, attempt: int) -> Kept | None:
        """Return what was kept with this attempt's pair; None without it."""
        return self._kept if self.attempt == attempt else None

    def update(self, version: int) -> RingVector | None:
        """Return X of this version, ``[d] int64``; None if it wasn't kept."""
        kept = self._kept
        return kept.update if kept is not None and kept.version == version else None

    def model(self, version: int) -> Digest | None:
        """Return the digest of θ_t that this version's update was computed at.

        None where nothing is kept of this version.
        """
        kept = self._kept
        return kept.model if kept is not None and kept.version == version else None

    def answered(self, version: int, attempt: int) -> int:
        """Return how many attempts before ``attempt`` shared X, or may have.

        Only attempts of this version count, and only those whose pairs share X, not
        zeros.
        """
        kept = self._kept
        if kept is None or kept.version != version:
            return 0
        shares_update = kept.re_releases is not None
        return kept.answered + (self.attempt != attempt and shares_update)

    def keep(
        self,
        version: int,
        update: RingVector | None,
        pair: Pair,
        re_releases: int | None,
    ) -> None:
        """Keep an attempt's pair in place of an older attempt's.

        It is durable when this returns. ``update`` is X, ``[d] int64``, also where this
        attempt's pair shares zeros; None if there is none. ``re_releases`` is m; None
        where the pair shares zeros.

        Raises StorageFailure: the file can't be written.
        """
        kept = Kept(
            version=version,
            update=update,
            pair=pair,
            re_releases=re_releases,
            answered=self.answered(version, pair[0].context.attempt),
        )
        if self._path is not None:
            with writing(self._path):
                write_file(self._path, _encode(kept))
        self._kept = kept

    def drop(self) -> None:
        """Remove what is kept: the version is over, and it has no further use."""
        self._kept = None
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    def _read(self, path: Path) -> Kept | None:
        """Return what an earlier process of this client and task kept.

        None when it can't be read; then the version is sat out.
        """
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
        is_own = context.task == self._task.digest and context.client == self._client
        return kept if is_own else None


def _encode(kept: Kept) -> bytes:
    """Return the file's bytes.

    They are version, m, the number of answered attempts and X, both headers as on the
    wire, the body, and a digest of it all.
    """
    update = b"" if kept.update is None else to_bytes(kept.update)
    re_releases = -1 if kept.re_releases is None else kept.re_releases
    numbers = _NUMBERS.pack(kept.version, re_releases, kept.answered, len(update))
    parts = [_MAGIC, numbers, update]
    for submission in kept.pair:
        header = header_to_wire(submission).SerializeToString()
        parts += [_LENGTH.pack(len(header)), header]
    # One of the two servers gets a body.
    (body,) = (
        submission.body for submission in kept.pair if submission.body is not None
    )
    data = b"".join([*parts, body.prefix.reveal(), *body.pieces()])
    return data + hashlib.sha256(data).digest()


def _decode(data: bytes, task: Task) -> Kept:
    """Return what the file's bytes hold: the inverse of ``_encode``, for this task.

    Raises ValueError, OverflowError, struct.error, RejectedSubmission: they aren't such
    a file. What is of another task comes back as it is read by this one.
    """
    view = memoryview(data)
    content = view[:-_DIGEST_BYTES]
    digest = view[-_DIGEST_BYTES:]
    if not data.startswith(_MAGIC) or hashlib.sha256(content).digest() != digest:
        raise ValueError("not a whole pending file")
    read = BytesIO(content[len(_MAGIC) :]).read
    version, re_releases, answered, update_bytes = _NUMBERS.unpack(read(_NUMBERS.size))
    update = from_bytes(read(update_bytes)) if update_bytes else None
    headers = []
    for role in SERVERS:
        (header_bytes,) = _LENGTH.unpack(read(_LENGTH.size))
        headers.append(header_from_bytes(read(header_bytes), role))
    prefix_bytes, _ = body_layout(task)
    body = HeldBody(Secret(read(prefix_bytes)), read())
    for_a, for_b = (
        replace(header, body=body if header.awaits_body else None) for header in headers
    )
    return Kept(
        version=version,
        update=update,
        pair=(for_a, for_b),
        re_releases=None if re_releases < 0 else re_releases,
        answered=answered,
    )
