"""What an owner's training tells as it goes, and the model that comes home.

Nothing here knows of messages or connections.
"""

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from precad.common import (
    Digest,
    Misconfiguration,
    ModelVector,
    RingVector,
    Task,
    frozen_kw_only_dataclass,
    load_model,
    save_model,
    tensors,
)

if TYPE_CHECKING:
    from torch import nn

    from precad.accounting import SampledGaussian
    from precad.client.gradients import Evaluation

Net = TypeVar("Net", bound="nn.Module")
RowValue = bool | int | float | str | None
"""One cell of the history."""
MODEL_FILE = "model.safetensors"
"""In an owner's state folder, once its training has ended."""


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class TrainedModel:
    """A model that both servers agree on, after ``version`` t rounds of ``task``."""

    task: Task
    version: int
    theta: ModelVector = field(compare=False)
    """θ_t, ``[d] float32``, the parameters one after the other in the task's order."""
    digest: Digest
    """What both servers call it."""

    @classmethod
    def load(cls, path: str | Path, task: Task | str | Path) -> Self:
        """Read what ``save`` wrote, or a server's ``model.safetensors``.

        ``task`` is the model's task, or that task's file.

        Raises Misconfiguration: a file can't be read, or the model's content isn't what
        it states. TaskMismatch: it is another task's.
        """
        task = task if isinstance(task, Task) else Task.load(Path(task))
        saved = load_model(Path(path), task)
        return cls(
            task=task,
            version=saved.version,
            theta=saved.theta,
            digest=saved.digest,
        )

    @property
    def weights(self) -> dict[str, NDArray[np.floating[Any]]]:
        """θ_t by the parameters' names, in the task's shapes; views."""
        return tensors(self.theta, self.task.mechanism.parameters)

    def load_into(self, module: Net) -> Net:
        """Copy θ_t into a module's parameters, cast to their own dtype; return it.

        Buffers (a fixed scaler's numbers) aren't trained and stay as they are. Raises
        Misconfiguration: its parameters aren't the task's, in names, shapes and order.
        """
        from precad.client.gradients import torch_models  # noqa: PLC0415 -- seconds

        torch_models.check_parameters(module, self.task.mechanism.parameters)
        torch_models.load_vector(module, self.theta)
        return module

    def save(self, path: str | Path, answered: Mapping[str, int] | None = None) -> None:
        """Write safetensors: named tensors, float32 or of answers float64; metadata.

        The metadata have task, version and privacy, and of answers whose records they
        are about, ``answered``: how many of each owner. The file appears whole or not at
        all, and only this user may read it. Raises Misconfiguration: it can't be
        written there.
        """
        guarantee = self._guarantee() if self.version else {}
        if answered:
            guarantee["answered"] = json.dumps(dict(answered))
        try:
            save_model(
                Path(path),
                self.task,
                self.version,
                self.theta,
                self.digest,
                guarantee,
            )
        except OSError as error:
            raise Misconfiguration(
                "model file",
                path,
                f"can't be written ({error}); give another place",
            ) from None

    def _guarantee(self) -> dict[str, str]:
        """Return the metadata's sentence on privacy.

        It is the most that the model may tell of a unit of an owner at the task's
        rate.
        """
        # SciPy loads with these.
        from precad.accounting import (  # noqa: PLC0415
            Adversary,
            Run,
            epsilon_spent,
        )

        delta = self.task.privacy.delta
        unit = self.task.mechanism.unit
        epsilon = epsilon_spent(
            Run.of(self.task).step(Adversary.ONE_SERVER),
            delta=delta,
            counts={0: self.version},
        )
        text = (
            f"(ε = {math.ceil(1e4 * epsilon) / 1e4:.4f}, δ ="
            f" {delta:g})-differential privacy of one"
            f" {unit}{self.task.mechanism.at_owners} (zero-out) against one curious"
            " server, exact accountant, for an owner that was counted in all"
            f" {self.version} rounds, each released once"
        )
        return {"guarantee": text}

    def __str__(self) -> str:
        return f"{self.digest} (round {self.version} of {self.task.name})"

    def __repr__(self) -> str:
        return f"TrainedModel({self})"


@frozen_kw_only_dataclass
class RoundInfo:
    """One round, as this owner knows it.

    It is for the owner alone, as its state folder is.
    """

    number: int
    """From 1 to ``rounds``, T."""
    rounds: int
    drawn: bool
    """Whether the coin drew this owner."""
    counted: bool
    """Whether its update went into the next model."""
    rejected: str
    """Why it didn't, in the servers' word; empty if it did or none was sent."""
    epsilon: float | None
    """The records' account so far, over all tasks: exact, of one record (or the tasks'
    own unit), one server corrupted, at the task's δ. None where an account over
    hundreds of tasks would take seconds to add up again; the result has it."""
    at_owners: str
    """At how many owners a unit may be for it, with ε at one; empty where it is one."""
    epsilon_limit: float | None
    """The owner's own; None without one."""
    seconds: float | None
    """From the round's announcement to its end; None if it wasn't heard."""
    model: TrainedModel | None = field(default=None, repr=False, compare=False)
    """The newest that this owner has; None where it has none yet, or has a newer one by
    now. In the history None throughout."""
    validation: "Evaluation | None" = None
    """``model`` on the owner's held-out records; None without them, or where a newer
    one came first."""

    def to_row(self) -> dict[str, RowValue]:
        """One flat row: of ``history.csv``, of a frame."""
        return {
            "round": self.number,
            "drawn": self.drawn,
            "counted": self.counted,
            "rejected": self.rejected,
            "epsilon": self.epsilon,
            "seconds": None if self.seconds is None else round(self.seconds, 3),
            **{
                f"validation_{name}": getattr(self.validation, name, None)
                for name in ("loss", "accuracy", "r_squared")
            },
        }


@frozen_kw_only_dataclass
class VersionOver:
    """The end of a version, as the client heard it; what a ``RoundInfo`` is made of."""

    version: int
    attempt: int
    submission: str | None
    """The id of what this owner uploaded in that attempt; None if it didn't."""
    drawn: bool
    """Whether the coin drew this owner."""
    counted: bool
    """Whether this owner's update went into the next model."""
    rejected: str
    """Why it didn't, in the servers' word; empty if it did or none was sent."""
    seconds: float | None
    """From the attempt's announcement to its end; None if it wasn't heard."""
    spent: "Counter[SampledGaussian]" = field(repr=False)
    """How often each step was charged on the records' account, over all tasks."""


class Observer:
    """Is told how a training goes; this one ignores it.

    No call may wait for anything: that would show in the time of an upload.
    """

    def doing(self, activity: str, until: float | None = None) -> None:
        """Hear what happens now.

        ``until`` is the clock's instant at which it is given up; None where there is
        none.
        """

    def hold(self) -> None:
        """Put off whatever is slow, because an upload is due."""

    def free(self) -> None:
        """Let what is slow go on."""

    def saw(self, model: TrainedModel) -> None:
        """Hear of the newest model, on which both servers agree."""

    def over(self, ended: VersionOver) -> None:
        """Hear that a version is over."""


@dataclass(slots=True, kw_only=True)
class Participation:
    """How a client's training went."""

    submitted: int = 0
    """Attempts that an update was sent for."""
    covered: int = 0
    """Attempts that zeros were sent for, under ``cover_uploads``."""
    counted: int = 0
    rejected: Counter[str] = field(default_factory=Counter)
    epsilon: float = 0.0
    """The data set's own account over all tasks: exact, of one record (or the tasks' own
    unit), one server curious."""
    ended: str = ""
    """`finished`; `budget` when the owner's limit was reached first; `late` when its work
    overran ``deadlines.work`` too often."""
    late: int = 0
    """Attempts whose work took longer than ``deadlines.work``."""
    model: TrainedModel | None = field(default=None, repr=False)
    """The final model; the newest that this owner saw where its limit ended it."""
    model_file: Path | None = None
    """Where it lies as safetensors; None without a state folder, or where its disk
    failed."""
    history: tuple[RoundInfo, ...] = field(default=(), repr=False)
    """Round by round, as `DataOwner.run` told it."""
    validation: "Evaluation | None" = None
    """``model`` on the owner's held-out records; None without them."""
    callback_failures: int = 0
    """How often the owner's own ``on_round`` raised."""
    callback_error: BaseException | None = field(default=None, repr=False)
    """What it raised first."""

    def load_into(self, module: Net) -> Net:
        """Copy the model into a torch module; see ``TrainedModel.load_into``."""
        return self._model().load_into(module)

    def save(self, path: str | Path) -> None:
        """Write the model as safetensors; see ``TrainedModel.save``."""
        self._model().save(path)

    def table(self) -> list[dict[str, RowValue]]:
        """The history as one flat dictionary a round, ready for a frame."""
        return [info.to_row() for info in self.history]

    def _model(self) -> TrainedModel:
        if self.model is None:
            raise Misconfiguration(
                "model", None, "this training ended before a model was seen"
            )
        return self.model


@frozen_kw_only_dataclass
class RoundView:
    """What a client knows of the attempt that it computes for."""

    attempt: int
    theta: ModelVector = field(repr=False)
    """``[d] float32``, θ_t; float64 where it was made so."""
    model: Digest
    """The digest of θ_t."""
    version: int = 0
    """t."""
    covering: bool = False
    """Whether this is work for show, as much as ever and on no record; its result isn't
    used."""
    left_s: float = math.inf
    """Seconds until the upload begins, from when the work begins."""


Compute = Callable[[RoundView], RingVector]
"""Returns the encoded update X, ``[d] int64``, for a version."""
