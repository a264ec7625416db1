"""Take one upload in pieces: bounded, hashed as it comes, complete or rejected.

Its body goes to the disk. A body says nothing without both seeds, but disks are stolen
and backed up, and a dealer's memory may leak. So what lies in a server's spool is
encrypted by AES-256-GCM, with a key that is made when the attempt opens and is in
memory alone: after a restart, or after the attempt's end, the files are noise.
"""

import contextlib
import itertools
import secrets
import struct
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers import AEADEncryptionContext, Cipher
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import GCM

from precad.common import (
    CHUNK_BYTES,
    KEY_BYTES,
    WORD_BYTES,
    BodyHash,
    BodyUnreadable,
    ClientId,
    RejectedSubmission,
    Rejection,
    Secret,
    SubmissionContext,
    Task,
    encode_context,
    frozen_kw_only_dataclass,
)
from precad.common.process import warn
from precad.norm_check import AnySubmission, ProofBodyHash, body_layout

SUFFIX = ".body"
"""How the names of a spool's files end."""
TAG_BYTES = 16
"""Length of a chunk's authentication tag under AES-256-GCM."""
_NONCE = struct.Struct(">IQ")
"""Number of the file and of the chunk in it: 12 bytes, never twice under one key."""


class Spool:
    """Make one attempt's files, under a key of their own, in a folder that exists."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = Secret.random(KEY_BYTES)
        self._numbers = itertools.count()

    def begin(self, client: ClientId) -> "SpoolFile":
        """Return an empty file for a body of ``client``.

        Raises OSError: the disk fails; so do the file's methods.
        """
        path = self._folder / f"{client}-{secrets.token_hex(8)}{SUFFIX}"
        return SpoolFile(path, self._key, number=next(self._numbers))


class SpoolFile:
    """Write a body: it is encrypted as it comes, and none of it is kept in memory.

    A chunk is ``CHUNK_BYTES`` of b, the last one the rest, and its tag. Its own number
    and the file's number are bound to it, so that no chunk can stand for another one or
    be left out; its length is in the tag.
    """

    def __init__(self, path: Path, key: Secret, number: int) -> None:
        self._path = path
        self._key = key
        self._number = number
        self._length = 0
        """Bytes of b so far."""
        self._encryptor: AEADEncryptionContext | None = None
        """Encrypts the chunk that isn't whole yet."""
        self._file: BinaryIO = path.open("xb", buffering=0)

    def add(self, piece: memoryview) -> None:
        """Add the next bytes of b."""
        while len(piece) > 0:
            chunk, within_chunk = divmod(self._length, CHUNK_BYTES)
            if self._encryptor is None:
                nonce, associated_data = _names(self._number, chunk)
                cipher = Cipher(AES256(self._key.reveal()), GCM(nonce))
                self._encryptor = cipher.encryptor()
                self._encryptor.authenticate_additional_data(associated_data)
            taken = piece[: CHUNK_BYTES - within_chunk]
            self._write(self._encryptor.update(taken))
            self._length += len(taken)
            piece = piece[len(taken) :]
            if self._length % CHUNK_BYTES == 0:
                self._end_chunk()

    def finish(self, prefix: Secret) -> "SpooledBody":
        """Close the file, once all has come; return the body, its prefix in memory."""
        self._end_chunk()
        self._file.close()
        return SpooledBody(
            path=self._path,
            key=self._key,
            number=self._number,
            length=self._length,
            prefix=prefix,
        )

    def abandon(self) -> None:
        """Remove what was written."""
        with contextlib.suppress(OSError):
            self._file.close()
        self._encryptor = None
        _remove(self._path)

    def _end_chunk(self) -> None:
        if self._encryptor is not None:
            self._write(self._encryptor.finalize() + self._encryptor.tag)
            self._encryptor = None

    def _write(self, data: bytes) -> None:
        # The file has no buffer, since pieces are as long as any. A full disk may take
        # only a part of one.
        unwritten = memoryview(data)
        while len(unwritten) > 0:
            unwritten = unwritten[self._file.write(unwritten) :]


@frozen_kw_only_dataclass
class SpooledBody:
    """Hold a whole body in its file; it is a ``precad.common.submission.Body``."""

    path: Path
    key: Secret
    """Key of all the attempt's files."""
    number: int
    """Number of the file in its attempt."""
    length: int
    """Bytes of the body's words."""
    prefix: Secret
    """salt_h; in a body with a proof, s_u after it."""

    def pieces(self) -> Iterator[bytes]:
        """Yield the words, each piece decrypted when it is asked for.

        Raises BodyUnreadable: the file is gone, was changed, or can't be read.
        """
        cipher = AESGCM(self.key.reveal())
        try:
            with self.path.open("rb", buffering=0) as file:
                for chunk, start in enumerate(range(0, self.length, CHUNK_BYTES)):
                    size = min(CHUNK_BYTES, self.length - start)
                    nonce, associated_data = _names(self.number, chunk)
                    encrypted = file.read(size + TAG_BYTES)
                    yield cipher.decrypt(nonce, encrypted, associated_data)
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
    """Return the nonce and the associated data of one chunk of one file."""
    return _NONCE.pack(number, chunk), encode_context("spooled-body", number, chunk)


def _remove(path: Path) -> None:
    # A file that can't be removed now is removed when the server starts again.
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)


class Upload:
    """Take the pieces of one submission's body.

    ``Inbox.start`` makes it after the header has been checked. ``accept`` is called
    with the whole submission; it raises RejectedSubmission where that comes too late.
    """

    def __init__(
        self,
        submission: AnySubmission,
        task: Task,
        spool: Spool,
        accept: Callable[[AnySubmission], None],
    ) -> None:
        """Begin a file where a body belongs to the submission at this server.

        Raises RejectedSubmission: the disk fails.
        """
        self._submission = submission
        self._shape = task.proof
        self._accept = accept
        self._prefix_bytes, words = body_layout(task)
        self._awaited = 0
        """Bytes of the whole body."""
        if submission.awaits_body:
            self._awaited = self._prefix_bytes + words * WORD_BYTES
        self._received = 0
        """Bytes of the body so far."""
        self._prefix = b""
        self._hash: BodyHash | ProofBodyHash | None = None
        """Hashes the words, once the prefix is whole."""
        self._file: SpoolFile | None = None
        self._abandoned = False
        self.complete = False
        """Whether all has come, as it was signed."""
        if self.awaits_body:
            with self._or_abandoned():
                self._file = spool.begin(self.context.client)

    @property
    def awaits_body(self) -> bool:
        """Whether a body belongs to the submission at this server."""
        return self._awaited > 0

    @property
    def context(self) -> SubmissionContext:
        """What the submission is bound to: task, version, attempt, client, model."""
        return self._submission.context

    def add(self, piece: bytes | memoryview) -> None:
        """Take the next bytes of the body.

        Raises RejectedSubmission: they are too many, or not of the field, or the upload
        was abandoned.
        """
        with self._or_abandoned():
            if self._received + len(piece) > self._awaited:
                raise RejectedSubmission(
                    Rejection.MALFORMED,
                    f"the body is longer than {self._awaited} bytes, which this task's"
                    " has here",
                )
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
        the attempt is closed, or the upload was abandoned.
        """
        submission = self._submission
        with self._or_abandoned():
            if self._received < self._awaited:
                raise RejectedSubmission(
                    Rejection.TRUNCATED,
                    f"upload ended after {self._received} of {self._awaited} bytes;"
                    " send the same bytes again",
                )
            if self._hash is not None and self._file is not None:
                if not self._hash.right:
                    raise RejectedSubmission(
                        Rejection.MALFORMED, "the body isn't the one that was signed"
                    )
                body = self._file.finish(Secret(self._prefix))
                submission = replace(submission, body=body)
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
        """Abandon the upload where the block fails: any error ends this upload alone.

        A full disk, or no file descriptor left, does too. Raises RejectedSubmission: of
        the block, or the upload was abandoned before.
        """
        if self._abandoned:
            raise RejectedSubmission(
                Rejection.TRUNCATED,
                "this upload was abandoned; send the same bytes again",
            )
        try:
            yield
        except RejectedSubmission:
            self.abandon()
            raise
        except OSError as error:
            warn(self.context.followed, f"no place for this upload: {error}")
            self.abandon()
            raise RejectedSubmission(
                Rejection.TRUNCATED,
                "this server can't keep it now; send the same bytes again",
            ) from None
