"""One upload in pieces: bounded, hashed as it arrives, complete or rejected; its body on the disk.

A body says nothing without both seeds, but disks are stolen and backed up, and a
dealer's memory may leak. So what lies in a server's spool is under AES-256-GCM with a
key that is made when the attempt opens and is in memory alone: after a restart, or the
attempt's end, the files are noise.
"""

import contextlib
import itertools
import logging
import secrets
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers import AEADEncryptionContext, Cipher
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import GCM

from precad.common.errors import BodyUnreadable, RejectedSubmission, Rejection
from precad.common.identifiers import ClientId, Secret
from precad.common.ring import KEY_BYTES, WORD_BYTES, encode_context
from precad.common.submission import CHUNK_BYTES, BodyHash, SubmissionContext
from precad.common.task import Task
from precad.norm_check.proof_submission import (
    AnySubmission,
    ProofBodyHash,
    body_layout,
)

log = logging.getLogger("precad")

SUFFIX = ".body"
TAG_BYTES = 16
_NONCE = struct.Struct(">IQ")
"""Number of the file and of the chunk in it: 12 bytes, never twice under one key."""


class Spool:
    """One attempt's files, in a folder that exists."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = Secret.random(KEY_BYTES)
        self._numbers = itertools.count()

    def begin(self, client: ClientId) -> "SpoolFile":
        """An empty file for a body of ``client``. Raises OSError, as all of it."""
        path = self._folder / f"{client}-{secrets.token_hex(8)}{SUFFIX}"
        return SpoolFile(path, self._key, next(self._numbers))


class SpoolFile:
    """A body that is being written: encrypted as it comes, and none of it is kept in memory.

    A chunk is ``CHUNK_BYTES`` of b, the last one the rest, and its tag. Its number is
    bound to it, and the file's number too, so that no chunk can stand for another one,
    or be left out; its length is in the tag.
    """

    def __init__(self, path: Path, key: Secret, number: int) -> None:
        self._path = path
        self._key = key
        self._number = number
        self._length = 0
        self._encryptor: AEADEncryptionContext | None = None
        """Of the chunk that isn't whole yet."""
        self._file: BinaryIO = path.open("xb", buffering=0)

    def add(self, piece: memoryview) -> None:
        """The next bytes of b."""
        while len(piece) > 0:
            chunk, within = divmod(self._length, CHUNK_BYTES)
            if self._encryptor is None:
                nonce, bound_to = _names(self._number, chunk)
                self._encryptor = Cipher(
                    AES256(self._key.reveal()), GCM(nonce)
                ).encryptor()
                self._encryptor.authenticate_additional_data(bound_to)
            taken = piece[: CHUNK_BYTES - within]
            self._write(self._encryptor.update(taken))
            self._length += len(taken)
            piece = piece[len(taken) :]
            if self._length % CHUNK_BYTES == 0:
                self._end()

    def finish(self, prefix: Secret) -> "SpooledBody":
        """All has come; the prefix stays in memory."""
        self._end()
        self._file.close()
        return SpooledBody(
            path=self._path,
            key=self._key,
            number=self._number,
            length=self._length,
            prefix=prefix,
        )

    def abandon(self) -> None:
        """Remove what there is."""
        with contextlib.suppress(OSError):
            self._file.close()
        self._encryptor = None
        _remove(self._path)

    def _end(self) -> None:
        if self._encryptor is not None:
            self._write(self._encryptor.finalize() + self._encryptor.tag)
            self._encryptor = None

    def _write(self, data: bytes) -> None:
        # What comes is as long as any buffer; a full disk may take a part of it.
        view = memoryview(data)
        while len(view) > 0:
            view = view[self._file.write(view) :]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpooledBody:
    """A whole body in its file; see ``precad.common.submission.Body``."""

    path: Path
    key: Secret = field(repr=False)
    """Of all the attempt's files."""
    number: int
    """Of the file."""
    length: int
    """Bytes of its words."""
    prefix: Secret = field(repr=False)
    """salt_h; of a proof's, s_u too."""

    def pieces(self) -> Iterator[bytes]:
        """The words, each piece decrypted as it is asked for. Raises BodyUnreadable."""
        cipher = AESGCM(self.key.reveal())
        try:
            with self.path.open("rb", buffering=0) as file:
                for chunk, start in enumerate(range(0, self.length, CHUNK_BYTES)):
                    size = min(CHUNK_BYTES, self.length - start)
                    nonce, bound_to = _names(self.number, chunk)
                    yield cipher.decrypt(nonce, file.read(size + TAG_BYTES), bound_to)
        except OSError as error:
            raise BodyUnreadable(
                f"{self.path}: {error.strerror}; it was there before"
            ) from None
        except InvalidTag:
            raise BodyUnreadable(
                f"{self.path} was changed while its attempt was open; let nothing else"
                " write there"
            ) from None

    def discard(self) -> None:
        """Remove the file."""
        _remove(self.path)


def _names(number: int, chunk: int) -> tuple[bytes, bytes]:
    """Nonce and associated data of one chunk."""
    return _NONCE.pack(number, chunk), encode_context("spooled-body", number, chunk)


def _remove(path: Path) -> None:
    # A file that can't be removed now goes when the server starts again.
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)


class Upload:
    """Takes the body's pieces.

    Made by ``Inbox.start`` after the header has been checked.
    """

    def __init__(
        self,
        submission: AnySubmission,
        task: Task,
        spool: Spool,
        accept: Callable[[AnySubmission], None],
    ) -> None:
        self._submission = submission
        self._shape = task.proof
        self._accept = accept
        self._prefix_bytes, words = body_layout(task)
        self._awaited = (
            self._prefix_bytes + words * WORD_BYTES if submission.awaits_body else 0
        )
        self._received = 0
        self._prefix = b""
        self._hash: BodyHash | ProofBodyHash | None = None
        self._file: SpoolFile | None = None
        self._abandoned = False
        self.complete = False
        if self.awaits_body:
            with self._or_abandoned():
                self._file = spool.begin(self.context.client)

    @property
    def awaits_body(self) -> bool:
        """Whether a body belongs to it at this server."""
        return self._awaited > 0

    @property
    def context(self) -> SubmissionContext:
        """What the upload is bound to."""
        return self._submission.context

    def add(self, piece: bytes | memoryview) -> None:
        """The next bytes.

        Raises RejectedSubmission: too many, not of the field, or abandoned.
        """
        with self._or_abandoned():
            if self._received + len(piece) > self._awaited:
                why = (
                    f"the body is longer than {self._awaited} bytes, which this task's"
                    " has here"
                )
                raise RejectedSubmission(Rejection.MALFORMED, why)
            self._received += len(piece)
            view = memoryview(piece)
            if self._hash is None:
                missing = self._prefix_bytes - len(self._prefix)
                self._prefix += view[:missing]
                view = view[missing:]
                if len(self._prefix) < self._prefix_bytes:
                    return
                self._hash = self._submission.body_hash(
                    Secret(self._prefix), self._shape
                )
            self._hash.update(view)
            assert self._file is not None
            self._file.add(view)

    def finish(self) -> None:
        """Hand the complete submission over.

        Raises RejectedSubmission: bytes are missing or aren't those that were signed,
        another submission came first, or the upload was abandoned.
        """
        submission = self._submission
        with self._or_abandoned():
            if self._received < self._awaited:
                came = f"upload ended after {self._received} of {self._awaited} bytes"
                why = f"{came}; send the same bytes again"
                raise RejectedSubmission(Rejection.TRUNCATED, why)
            if self._hash is not None and self._file is not None:
                if not self._hash.right:
                    why = "the body isn't the one that was signed"
                    raise RejectedSubmission(Rejection.MALFORMED, why)
                submission = replace(
                    submission, body=self._file.finish(Secret(self._prefix))
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
        if self._file is not None:
            self._file.abandon()

    @contextlib.contextmanager
    def _or_abandoned(self) -> Iterator[None]:
        """What is wrong here, a full disk or no descriptor left too, ends this upload alone."""
        if self._abandoned:
            why = "this upload was abandoned; send the same bytes again"
            raise RejectedSubmission(Rejection.TRUNCATED, why)
        try:
            yield
        except RejectedSubmission:
            self.abandon()
            raise
        except OSError as error:
            log.warning("no place for an upload of %s: %s", self.context.client, error)
            self.abandon()
            why = "this server can't keep it now; send the same bytes again"
            raise RejectedSubmission(Rejection.TRUNCATED, why) from None
