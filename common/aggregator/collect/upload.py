"""One upload in pieces: bounded, hashed while it arrives, complete or rejected."""

import contextlib
import logging
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from precad.common.errors import RejectedSubmission, Rejection
from precad.common.identifiers import Role
from precad.common.secret import Secret
from precad.common.share.commitment import (
    Commitment,
    SubmissionContext,
    committer,
)
from precad.common.share.submission import Submission, SubmissionHeader

log = logging.getLogger("precad")


class Upload:
    """Takes the share's pieces. Made by ``Inbox.start`` after the header has been checked.

    Args:
        header: checked header.
        role: this server.
        spool: folder for the share's bytes; None keeps them in memory.
        accept: called with the complete submission.
    """

    def __init__(
        self,
        header: SubmissionHeader,
        role: Role,
        spool: Path | None,
        accept: Callable[[Submission], None],
    ) -> None:
        self._header = header
        self._role = role
        self._accept = accept
        self._hash = committer(header.context, role, header.salt)
        self._received = 0
        self._path: Path | None = None
        self._file: BinaryIO | None = None
        self._memory = bytearray()
        self._abandoned = False
        self.complete = False
        if spool is not None and role is not Role.SERVER_A:
            # A's seed is 32 bytes and never touches the disk.
            self._path = spool / f"{header.context.client}-{secrets.token_hex(8)}.share"
            with self._costs_this_upload():
                self._file = self._path.open("xb")

    @property
    def context(self) -> SubmissionContext:
        """What the upload is bound to."""
        return self._header.context

    def add(self, piece: bytes) -> None:
        """The next bytes of the share.

        Raises:
            RejectedSubmission: more bytes than the header announced, or the upload was abandoned.
        """
        self._require_alive()
        self._received += len(piece)
        if self._received > self._header.share_bytes:
            self.abandon()
            raise RejectedSubmission(
                Rejection.MALFORMED,
                f"share is longer than the announced {self._header.share_bytes} bytes",
            )
        self._hash.update(piece)
        if self._file is None:
            self._memory += piece
        else:
            with self._costs_this_upload():
                self._file.write(piece)

    def finish(self) -> None:
        """The upload's end. Hands the complete submission over.

        Raises:
            RejectedSubmission: bytes are missing, the signature isn't over these, another
                submission came first, or the upload was abandoned.
        """
        self._require_alive()
        if self._received < self._header.share_bytes:
            self.abandon()
            raise RejectedSubmission(
                Rejection.TRUNCATED,
                f"upload ended after {self._received} of {self._header.share_bytes} bytes; "
                "send the same bytes again",
            )
        if self._file is not None:
            with self._costs_this_upload():
                self._file.close()
        share = self._path if self._path is not None else Secret(bytes(self._memory))
        header = self._header
        submission = Submission(
            header.context,
            self._role,
            header.salt,
            share,
            Commitment(self._hash.digest()),
            header.other_commitment,
            header.signature,
        )
        self.complete = True
        try:
            self._accept(submission)
        except RejectedSubmission:
            submission.discard()
            raise

    def abandon(self) -> None:
        """Drop what has arrived; the upload can't be taken up again."""
        self._abandoned = True
        with contextlib.suppress(OSError):
            if self._file is not None:
                self._file.close()
        with contextlib.suppress(OSError):
            if self._path is not None:
                self._path.unlink(missing_ok=True)
        self._memory.clear()

    @contextlib.contextmanager
    def _costs_this_upload(self) -> Iterator[None]:
        """A full disk, or no descriptor left, is no reason to stop anything but this upload."""
        try:
            yield
        except OSError as error:
            log.warning("no place for an upload of %s: %s", self.context.client, error)
            self.abandon()
            raise RejectedSubmission(
                Rejection.TRUNCATED, "this server can't keep it now; send the same bytes again"
            ) from None

    def _require_alive(self) -> None:
        if self._abandoned:
            raise RejectedSubmission(
                Rejection.TRUNCATED, "this upload was abandoned; send the same bytes again"
            )
