"""The models that a server offers: the current one, also after a restart, and the one before."""

import os
import threading
import weakref
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from precad.aggregator.server_messages import SignedMessage
from precad.common import model as models
from precad.common.errors import NotOnOffer, PeerViolation, StorageFailure
from precad.common.files import write_file
from precad.common.identifiers import Digest
from precad.common.model import ModelVector, byte_view, model_digest
from precad.common.task import Task

KEPT_MODELS = 2
"""The newest stay on offer, for whoever is a round behind."""
_TOGETHER = 1 << 20
"""Bytes that are read at once."""


class InMemory:
    """The bytes of a vector, ``[d]``, which mustn't change any more."""

    def __init__(self, theta: ModelVector) -> None:
        self._data = byte_view(theta)
        self.length = len(self._data)

    def read(self, start: int, size: int) -> bytes:
        """Return ``size`` of them, or what is left."""
        return bytes(self._data[start : start + size])


class InFile:
    """The bytes in a file that ``save_model`` wrote, also when another takes its name."""

    def __init__(self, path: Path, length: int) -> None:
        self._descriptor = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self._descriptor)
        self.length = length
        self._start = os.fstat(self._descriptor).st_size - self.length

    def read(self, start: int, size: int) -> bytes:
        """Raises OSError: no memory is mapped, where a failing disk would be a signal."""
        left = min(size, self.length - start)
        data = os.pread(self._descriptor, left, self._start + start)
        if len(data) < left:
            raise OSError(
                f"the model's file ends at byte {start + len(data)} of {self.length}"
            )
        return data


ModelBytes = InMemory | InFile
"""A model's bytes, 4·d or of old ones 8·d: in memory, or on the disk once they are
there. A round reads its model once, near its end, and owners fetch theirs at its
beginning: in between that memory is for bodies. The bytes lie in the system's cache,
which gives way to who needs it."""


@dataclass(frozen=True, slots=True)
class StoredModel:
    """θ_t, its version t and its digest."""

    version: int
    digest: Digest
    stored: ModelBytes = field(repr=False)

    def pieces(self, size: int) -> Iterator[bytes]:
        """Yield θ_t's bytes, ``size`` at a time, each when asked for.

        Raises StorageFailure.
        """
        for start in range(0, self.stored.length, size):
            try:
                piece = self.stored.read(start, size)
            except OSError as error:
                raise StorageFailure(
                    f"model {self.version} can't be read: {error}"
                ) from None
            yield piece


class ModelStore:
    """Keeps θ_t in a safetensors file, replaced atomically.

    Both servers keep the same bytes.

    ``start`` is θ_0's digest, where an attempt has begun from it: it may be of a
    float64 one.
    """

    def __init__(self, task: Task, path: Path, start: Digest | None = None) -> None:
        self._task = task
        self._path = path
        self._seal_path = path.with_suffix(".seal")
        self._fetched_path = path.with_suffix(".fetched")
        self._lock = threading.Lock()
        first = self._saved() if path.exists() else self._initial(start)
        self._models = deque([first], maxlen=KEPT_MODELS)

    def _initial(self, start: Digest | None) -> StoredModel:
        theta: ModelVector
        model = self._task.model
        for theta in (models.unrounded_start(model), models.initial_vector(model)):
            digest = model_digest(self._task.digest, 0, model.parameters, theta)
            if digest == start:
                break
        return StoredModel(0, digest, InMemory(theta))

    def _saved(self) -> StoredModel:
        saved = models.load_model(self._path, self._task)
        on_disk = InFile(self._path, saved.theta.nbytes)
        # Another program's file may hold the tensors in another order.
        as_written = on_disk.read(0, on_disk.length) == byte_view(saved.theta)
        stored = on_disk if as_written else InMemory(saved.theta)
        return StoredModel(saved.version, saved.digest, stored)

    @property
    def current(self) -> StoredModel:
        """Return the newest model."""
        with self._lock:
            return self._models[-1]

    def theta(self) -> ModelVector:
        """Return the newest vector, ``[d]``, read anew.

        Raises StorageFailure, if changed too.
        """
        current = self.current
        task = self._task
        kind = models.little_endian(current.stored.length, task.dimension)
        theta = np.empty(task.dimension, kind)
        out = theta.data.cast("B")
        done = 0
        for piece in current.pieces(_TOGETHER):
            out[done : done + len(piece)] = piece
            done += len(piece)
        theta = theta.astype(theta.dtype.newbyteorder("="), copy=False)
        found = model_digest(task.digest, current.version, task.model.parameters, theta)
        if found != current.digest:
            raise StorageFailure(
                f"{self._path} isn't the model {current.version} that this server"
                " wrote; let nothing else write there, and restore this server's"
                " newest state"
            )
        return theta

    def put(
        self,
        version: int,
        theta: ModelVector,
        signed: SignedMessage | None = None,
        digest: Digest | None = None,
    ) -> None:
        """Persist the model θ_t, ``[d]``, then offer it.

        Raises StorageFailure: the disk fails.

        ``signed`` is the other server's word on its digest. It lies beside the model,
        because the database may be put back without it; whoever lost the model asks for
        it.
        """
        try:
            if signed is not None:
                write_file(self._seal_path, signed.to_json())
            digest = models.save_model(
                self._path,
                self._task,
                version,
                theta,
                digest,
            )
            stored = InFile(self._path, theta.nbytes)
        except OSError as error:
            raise StorageFailure(
                f"{self._path} can't be written ({error.strerror}); free or mend the"
                " disk, then start this server again: nothing is lost"
            ) from None
        with self._lock:
            self._models.append(StoredModel(version, digest, stored))

    def signature(self) -> SignedMessage | None:
        """Return the newest signature that was kept; a crash may have kept its model away."""
        try:
            return SignedMessage.from_json(self._seal_path.read_bytes())
        except (OSError, PeerViolation):
            return None

    def note_fetched(self) -> None:
        """Keep that every owner has the newest model. Raises OSError."""
        write_file(self._fetched_path, self.current.digest.value)

    @property
    def fetched(self) -> bool:
        """Whether every owner has the newest model, as an earlier start of this server noted."""
        try:
            return self._fetched_path.read_bytes() == self.current.digest.value
        except OSError:
            return False

    def get(self, version: int) -> StoredModel:
        """Return the model of ``version``.

        Raises NotOnOffer: as after a restart, or not yet.
        """
        with self._lock:
            for model in self._models:
                if model.version == version:
                    return model
            newest = self._models[-1].version
        raise NotOnOffer(f"model {version} isn't on offer; the newest is {newest}")
