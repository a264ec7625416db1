"""One upload in pieces: bounded, hashed while it arrives, complete or rejected."""

import contextlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import replace

from blake3 import blake3

from precad.aggregator.collect.spool import Spool, SpoolFile
from precad.common.errors import RejectedSubmission, Rejection
from precad.common.identifiers import Role
from precad.common.secret import Secret
from precad.common.share.header import SubmissionContext
from precad.common.share.mask import SALT_BYTES
from precad.common.share.submission import Submission, body_bytes, body_hasher

log = logging.getLogger("precad")


class Upload:
    """Takes the body's pieces. Made by ``Inbox.start`` after the header has been checked.

    Args:
        spool: the attempt's files for bodies.
    """

    def __init__(
        self,
        submission: Submission,
        dimension: int,
        spool: Spool,
        accept: Callable[[Submission], None],
    ) -> None:
        self._submission = submission
        self._accept = accept
        # Server A gets no body.
        self._awaited = 0 if submission.role is Role.SERVER_A else body_bytes(dimension)
        self._received = 0
        self._salt = b""
        self._hash: blake3 | None = None
        self._file: SpoolFile | None = None
        self._abandoned = False
        self.complete = False
        if self.awaits_body:
            with self._costs_this_upload():
                self._file = spool.begin(self.context.client)

    @property
    def awaits_body(self) -> bool:
        """Whether b belongs to it, which server A doesn't get."""
        return self._awaited > 0

    @property
    def context(self) -> SubmissionContext:
        """What the upload is bound to."""
        return self._submission.context

    def add(self, piece: bytes | memoryview) -> None:
        """The next bytes of the body.

        Raises:
            RejectedSubmission: more bytes than a body has, or the upload was abandoned.
        """
        self._require_alive()
        if self._received + len(piece) > self._awaited:
            self.abandon()
            raise RejectedSubmission(
                Rejection.MALFORMED,
                f"the body is longer than {self._awaited} bytes, which this task's has here",
            )
        self._received += len(piece)
        view = memoryview(piece)
        if self._hash is None:
            missing = SALT_BYTES - len(self._salt)
            self._salt += view[:missing]
            view = view[missing:]
            if len(self._salt) < SALT_BYTES:
                return
            self._hash = body_hasher(self.context.digest, Secret(self._salt))
        self._hash.update(view)
        assert self._file is not None
        with self._costs_this_upload():
            self._file.add(view)

    def finish(self) -> None:
        """The upload's end. Hands the complete submission over.

        Raises:
            RejectedSubmission: bytes are missing or aren't those that were signed, another
                submission came first, or the upload was abandoned.
        """
        self._require_alive()
        if self._received < self._awaited:
            self.abandon()
            raise RejectedSubmission(
                Rejection.TRUNCATED,
                f"upload ended after {self._received} of {self._awaited} bytes; "
                "send the same bytes again",
            )
        submission = self._submission
        if self._hash is not None and self._file is not None:
            if self._hash.digest() != submission.header.body_digest.value:
                self.abandon()
                raise RejectedSubmission(
                    Rejection.MALFORMED, "the body isn't the one that was signed"
                )
            with self._costs_this_upload():
                submission = replace(submission, body=self._file.finish(Secret(self._salt)))
        self.complete = True
        try:
            self._accept(submission)
        except RejectedSubmission:
            submission.discard()
            raise

    def abandon(self) -> None:
        """Drop what has arrived; the upload can't be taken up again."""
        self._abandoned = True
        if self._file is not None:
            self._file.abandon()

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
