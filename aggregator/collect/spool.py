"""Bodies on the disk of server B, readable by this process while their attempt is open.

A body says nothing without both seeds, but disks are stolen and backed up, and a dealer's memory
may leak. So what lies here is under AES-256-GCM with a key that is made when the attempt opens and
is in memory alone: after a restart, or the attempt's end, the files are noise.
"""

import contextlib
import itertools
import logging
import secrets
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers import AEADEncryptionContext, Cipher
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import GCM

from precad.common.errors import BodyUnreadable
from precad.common.identifiers import ClientId
from precad.common.keystream import KEY_BYTES, encode_context
from precad.common.secret import Secret
from precad.common.share.submission import PIECE_BYTES

log = logging.getLogger("precad")

SUFFIX = ".body"
TAG_BYTES = 16
_NONCE = struct.Struct(">IQ")
"""Number of the file and of the chunk in it: 12 bytes, never twice under one key."""


class Spool:
    """One attempt's files.

    Args:
        folder: where they lie; it exists.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = Secret.random(KEY_BYTES)
        self._numbers = itertools.count()

    def begin(self, client: ClientId) -> "SpoolFile":
        """An empty file for a body of ``client``. Raises OSError."""
        path = self._folder / f"{client}-{secrets.token_hex(8)}{SUFFIX}"
        return SpoolFile(path, self._key, next(self._numbers))


class SpoolFile:
    """A body that is being written: encrypted as it comes, and none of it is kept in memory.

    A chunk is ``PIECE_BYTES`` of b, the last one the rest, and its tag. Its number is bound to it,
    and the file's number too, so that no chunk can stand for another one, or be left out; its
    length is in the tag.
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
        """The next bytes of b. Raises OSError."""
        while len(piece) > 0:
            chunk, within = divmod(self._length, PIECE_BYTES)
            if self._encryptor is None:
                self._encryptor = self._begin(chunk)
            taken = piece[: PIECE_BYTES - within]
            self._write(self._encryptor.update(taken))
            self._length += len(taken)
            piece = piece[len(taken) :]
            if self._length % PIECE_BYTES == 0:
                self._end()

    def finish(self, salt: Secret) -> "SpooledBody":
        """All has come; ``salt`` is salt_h, which stays in memory. Raises OSError."""
        self._end()
        self._file.close()
        return SpooledBody(self._path, self._key, self._number, self._length, salt)

    def abandon(self) -> None:
        """Remove what there is."""
        with contextlib.suppress(OSError):
            self._file.close()
        self._encryptor = None
        _remove(self._path)

    def _begin(self, chunk: int) -> AEADEncryptionContext:
        nonce, bound_to = _names(self._number, chunk)
        encryptor = Cipher(AES256(self._key.reveal()), GCM(nonce)).encryptor()
        encryptor.authenticate_additional_data(bound_to)
        return encryptor

    def _end(self) -> None:
        """Of a chunk, if one was begun."""
        if self._encryptor is not None:
            self._write(self._encryptor.finalize() + self._encryptor.tag)
            self._encryptor = None

    def _write(self, data: bytes) -> None:
        # What comes is as long as any buffer; a full disk may take a part of it.
        view = memoryview(data)
        while len(view) > 0:
            view = view[self._file.write(view) :]


@dataclass(frozen=True, slots=True)
class SpooledBody:
    """A whole body in its file; see ``precad.common.share.submission.Body``."""

    path: Path
    key: Secret = field(repr=False)
    """Of all the attempt's files."""
    number: int
    """Of the file."""
    length: int
    """Bytes of b."""
    salt: Secret = field(repr=False)
    """salt_h."""

    def pieces(self) -> Iterator[bytes]:
        """b, each piece decrypted as it is asked for. Raises BodyUnreadable."""
        cipher = AESGCM(self.key.reveal())
        try:
            with self.path.open("rb", buffering=0) as file:
                for chunk, start in enumerate(range(0, self.length, PIECE_BYTES)):
                    size = min(PIECE_BYTES, self.length - start)
                    nonce, bound_to = _names(self.number, chunk)
                    yield cipher.decrypt(nonce, file.read(size + TAG_BYTES), bound_to)
        except OSError as error:
            raise BodyUnreadable(f"{self.path}: {error.strerror}; it was there before") from None
        except InvalidTag:
            raise BodyUnreadable(
                f"{self.path} was changed while its attempt was open; let nothing else write there"
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
