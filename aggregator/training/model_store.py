"""Keep the models that a server offers: the newest one and the one before.

The newest one is there again after a restart.
"""

import os
import threading
import weakref
from collections import deque
from collections.abc import Iterator
from dataclasses import field
from pathlib import Path

import numpy as np

from precad.aggregator import SignedMessage
from precad.common import (
    Digest,
    ModelVector,
    NotOnOffer,
    PeerViolation,
    StorageFailure,
    StorageGone,
    Task,
    byte_view,
    digest_of_model,
    frozen_dataclass,
    frozen_kw_only_dataclass,
    step_digest,
    write_file,
    writing,
)
from precad.common import model as models

KEPT_MODELS = 2
"""How many of the newest models stay on offer, for whoever is a round behind."""
_READ_BYTES = 1 << 20
"""How many bytes of a model are read at once."""


class InMemory:
    """Bytes in memory that mustn't change any more, of a model ``[d]`` or a step."""

    def __init__(self, data: bytes | memoryview) -> None:
        self._data = data
        self.length = len(self._data)
        """How many bytes the model has."""

    def read(self, start: int, size: int) -> bytes:
        """Return ``size`` bytes from ``start`` on, or what is left."""
        return bytes(self._data[start : start + size])


class InFile:
    """A model's bytes in a file that ``save_model`` wrote.

    They can be read also after another file has taken its name.
    """

    def __init__(self, path: Path, length: int) -> None:
        self._descriptor = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self._descriptor)
        self.length = length
        """How many bytes the model has: the last ones of the file."""
        self._start = os.fstat(self._descriptor).st_size - self.length

    def read(self, start: int, size: int) -> bytes:
        """Return ``size`` bytes from ``start`` on, or what is left.

        Raises OSError: the disk fails, or the file is too short. The file isn't mapped
        into memory: there a failing disk would be a signal.
        """
        expected = min(size, self.length - start)
        data = os.pread(self._descriptor, expected, self._start + start)
        if len(data) < expected:
            raise OSError(
                f"the model's file ends at byte {start + len(data)} of {self.length}"
            )
        return data


ModelBytes = InMemory | InFile
"""A model's bytes: 4·d of them, or 8·d of an old model.

They are in memory, or on the disk once they are there. A round reads its model once,
near its end, and owners fetch it at the round's beginning: in between that memory is
needed for the bodies of submissions. The bytes lie in the operating system's cache,
which gives its memory to whoever needs it.
"""


@frozen_dataclass
class Step:
    """What led to a model from the one before, as owners get it (``step_bytes``)."""

    digest: Digest
    stored: InMemory = field(repr=False)


@frozen_kw_only_dataclass
class StoredModel:
    """A model θ_t that is on offer, with its version t and its digest."""

    version: int
    digest: Digest
    stored: ModelBytes = field(repr=False)
    """θ_t's bytes."""
    step: Step | None = None
    """What leads to it from θ_{t−1}; None where that isn't in memory."""

    def pieces(self, size: int, source: ModelBytes | None = None) -> Iterator[bytes]:
        """Yield θ_t's bytes, ``size`` at a time; each piece is read when asked for.

        Or those of ``source``. Raises StorageFailure: the bytes can't be read.
        """
        source = source or self.stored
        for start in range(0, source.length, size):
            try:
                piece = source.read(start, size)
            except OSError as error:
                raise StorageFailure(
                    f"model {self.version} can't be read: {error}"
                ) from None
            yield piece


class ModelStore:
    """Keep θ_t in a safetensors file, which is replaced atomically.

    Both servers keep the same bytes. ``start`` is θ_0's digest, where an attempt has
    begun from it: it may be the digest of a float64 vector. All methods may be called
    from any thread.

    Raises Misconfiguration or TaskMismatch: the file isn't a model of this task; or
    Misconfiguration: θ_0 can't be made.
    """

    def __init__(self, task: Task, path: Path, start: Digest | None = None) -> None:
        self._task = task
        self.path = path
        self._seal_path = path.with_suffix(".seal")
        self._fetched_path = path.with_suffix(".fetched")
        self._lock = threading.Lock()
        first = self._saved() if path.exists() else self._initial(start)
        self._models = deque([first], maxlen=KEPT_MODELS)

    def _initial(self, start: Digest | None) -> StoredModel:
        """Return θ_0: float64 where its digest is ``start``, float32 otherwise."""
        theta: ModelVector
        model = self._task.model
        for theta in (models.unrounded_start(model), models.initial_vector(model)):
            digest = digest_of_model(self._task, 0, theta)
            if digest == start:
                break
        return StoredModel(version=0, digest=digest, stored=InMemory(byte_view(theta)))

    def _saved(self) -> StoredModel:
        """Return the model in the file; its bytes stay on the disk where they can."""
        saved = models.load_model(self.path, self._task)
        on_disk = InFile(self.path, saved.theta.nbytes)
        # Another program's file may hold the tensors in another order.
        same_order = on_disk.read(0, on_disk.length) == byte_view(saved.theta)
        stored = on_disk if same_order else InMemory(byte_view(saved.theta))
        return StoredModel(version=saved.version, digest=saved.digest, stored=stored)

    @property
    def current(self) -> StoredModel:
        """Return the newest model."""
        with self._lock:
            return self._models[-1]

    def theta(self) -> ModelVector:
        """Return the newest model's vector, ``[d]`` in its dtype, read anew.

        Raises StorageFailure: it can't be read, or was changed since it was written.
        """
        current = self.current
        task = self._task
        dtype = models.little_endian(current.stored.length, task.dimension)
        theta = np.empty(task.dimension, dtype)
        theta_bytes = theta.data.cast("B")
        filled = 0
        for piece in current.pieces(_READ_BYTES):
            theta_bytes[filled : filled + len(piece)] = piece
            filled += len(piece)
        theta = theta.astype(theta.dtype.newbyteorder("="), copy=False)
        if digest_of_model(task, current.version, theta) != current.digest:
            raise StorageFailure(
                f"{self.path} isn't the model {current.version} that this server"
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
        *,
        step: bytes | None = None,
    ) -> None:
        """Persist the model θ_t, ``[d]``, and only then offer it.

        ``step`` led to it, where that is known: it is offered until this process ends.

        ``signed`` is the other server's signature over the model's digest. It is kept
        in a file beside the model, because the database may be put back from a copy
        without it; a server that lost the model asks for it. ``digest`` is the model's
        digest, where it is known already.

        Raises StorageGone: the disk fails.
        """
        remedy = "free or mend the disk: nothing is lost"
        with writing(self.path, remedy, StorageGone):
            if signed is not None:
                write_file(self._seal_path, signed.to_json())
            digest = models.save_model(
                self.path,
                self._task,
                version,
                theta,
                digest,
            )
            stored = InFile(self.path, theta.nbytes)
        offered = None
        if step is not None:
            offered = Step(
                step_digest(self._task.digest, version, step), InMemory(step)
            )
        with self._lock:
            self._models.append(
                StoredModel(version=version, digest=digest, stored=stored, step=offered)
            )

    def signature(self) -> SignedMessage | None:
        """Return the newest signature that ``put`` kept beside a model, or None.

        After a crash its model may be missing: it is written after the signature.
        """
        try:
            return SignedMessage.from_json(self._seal_path.read_bytes())
        except (OSError, PeerViolation):
            return None

    def note_fetched(self) -> None:
        """Note, durably, that every owner has the newest model.

        Raises OSError: the disk fails.
        """
        write_file(self._fetched_path, self.current.digest.value)

    @property
    def fetched(self) -> bool:
        """Whether every owner has the newest model, as this server once noted."""
        try:
            return self._fetched_path.read_bytes() == self.current.digest.value
        except OSError:
            return False

    def get(self, version: int) -> StoredModel:
        """Return the model of ``version``.

        Raises NotOnOffer: it isn't kept any more, as after a restart, or not made yet.
        """
        with self._lock:
            for model in self._models:
                if model.version == version:
                    return model
            newest = self._models[-1].version
        raise NotOnOffer(f"model {version} isn't on offer; the newest is {newest}")
