"""The model that a server offers: the current one in memory, and on disk for a restart."""

import threading
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from precad.common.aggregator.round.messages import SealMessage
from precad.common.durable import write_file
from precad.common.errors import NotOnOffer, PeerViolation, StorageFailure
from precad.common.identifiers import Digest
from precad.common.model import initial_vector, load_model, model_digest, save_model
from precad.common.task import Task

KEPT_MODELS = 2
"""The newest stay on offer, for whoever is a round behind."""


@dataclass(frozen=True, slots=True)
class ShelvedModel:
    """θ_t and its version t."""

    version: int
    theta: NDArray[np.float64] = field(repr=False)
    digest: Digest


class Shelf:
    """Keeps θ_t. Both servers keep the same bytes.

    Args:
        task: the model's shapes and start.
        path: safetensors file, replaced atomically after each round.
    """

    def __init__(self, task: Task, path: Path) -> None:
        self._task = task
        self._path = path
        self._seal_path = path.with_suffix(".seal")
        self._lock = threading.Lock()
        if path.exists():
            saved = load_model(path, task)
            first = ShelvedModel(saved.version, saved.theta, saved.digest)
        else:
            theta = initial_vector(task.model)
            digest = model_digest(task.digest, 0, task.model.parameters, theta)
            first = ShelvedModel(0, theta, digest)
        self._models = deque([first], maxlen=KEPT_MODELS)

    @property
    def current(self) -> ShelvedModel:
        """The newest model."""
        with self._lock:
            return self._models[-1]

    def put(
        self,
        version: int,
        theta: NDArray[np.float64],
        sealed: SealMessage | None = None,
        digest: Digest | None = None,
    ) -> None:
        """Persist the model, then offer it.

        Args:
            version: t.
            theta: ``[d] float64``, θ_t.
            sealed: the other server's word on its digest. It lies beside the model, because the
                database may be put back without it; whoever lost the model asks for it.
            digest: its digest, where the caller has computed it.

        Raises:
            StorageFailure: the disk fails.
        """
        try:
            if sealed is not None:
                write_file(self._seal_path, sealed.to_bytes())
            digest = save_model(self._path, self._task, version, theta, digest)
        except OSError as error:
            raise StorageFailure(
                f"{self._path} can't be written ({error.strerror}); free or mend the disk, then "
                "start this server again: nothing is lost"
            ) from None
        with self._lock:
            self._models.append(ShelvedModel(version, theta, digest))

    def seal(self) -> SealMessage | None:
        """The seal that was kept last: of the newest model, or of one that a crash kept away."""
        try:
            return SealMessage.from_bytes(self._seal_path.read_bytes())
        except (OSError, PeerViolation):
            return None

    def get(self, version: int) -> ShelvedModel:
        """The model of ``version``.

        Raises:
            NotOnOffer: it isn't on offer any more, as after a restart, or not yet.
        """
        with self._lock:
            for model in self._models:
                if model.version == version:
                    return model
            newest = self._models[-1].version
        raise NotOnOffer(f"model {version} isn't on offer; the newest is {newest}")
