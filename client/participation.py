"""What an owner's training tells as it goes and once it is over; nothing of the wire."""

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from precad.client.trained_model import Net, TrainedModel
from precad.common.errors import Misconfiguration

if TYPE_CHECKING:
    from precad.accounting.events import SampledGaussian


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A model on some records.

    Attributes:
        records: how many.
        loss: the mean of the owner's own loss.
        accuracy: share of right labels; None where the model has no column a class.
    """

    records: int
    loss: float
    accuracy: float | None

    def __str__(self) -> str:
        right = "" if self.accuracy is None else f", {self.accuracy:.1%} right"
        return f"loss {self.loss:.4g}{right}, of {self.records} records"


@dataclass(frozen=True, slots=True)
class RoundInfo:
    """One round, as this owner knows it: for the owner alone, as its state folder is.

    Attributes:
        number: from 1.
        rounds: T.
        drawn: whether the coin drew this owner.
        counted: whether its update went into the next model.
        rejected: why it didn't, in the servers' word; empty if it did or none was sent.
        epsilon: the records' account so far, over all tasks: exact, record level, one server
            corrupted, at the task's δ. None where an account over hundreds of tasks would take
            seconds to add up again; the result has it.
        epsilon_limit: the owner's own limit; None without one.
        seconds: from the round's announcement to its end; None if it wasn't heard.
        model: the newest model that this owner has; None where it has none yet, or has a newer one
            by now. In the history None throughout.
        validation: that model on the owner's held-out records; None without them, or where a
            newer model came first.
    """

    number: int
    rounds: int
    drawn: bool
    counted: bool
    rejected: str
    epsilon: float | None
    epsilon_limit: float | None
    seconds: float | None
    model: TrainedModel | None = field(default=None, repr=False, compare=False)
    validation: Evaluation | None = None

    def to_row(self) -> dict[str, Any]:
        """One flat row: of ``history.csv``, of a frame."""
        found = self.validation
        return {
            "round": self.number,
            "drawn": self.drawn,
            "counted": self.counted,
            "rejected": self.rejected,
            "epsilon": self.epsilon,
            "seconds": None if self.seconds is None else round(self.seconds, 3),
            "validation_loss": None if found is None else found.loss,
            "validation_accuracy": None if found is None else found.accuracy,
        }


@dataclass(frozen=True, slots=True)
class VersionOver:
    """A version's end, as the client heard it."""

    version: int
    drawn: bool
    counted: bool
    rejected: str
    seconds: float | None
    spent: "Counter[SampledGaussian]" = field(repr=False)
    """All steps of the records' account."""


class Observer:
    """Is told how a training goes; ignores it. No call may wait: that would show in an upload."""

    def doing(self, what: str, until: float | None = None) -> None:
        """Hear what happens now; ``until``: the clock's instant at which it is given up."""

    def hold(self) -> None:
        """Put off whatever is slow: an upload is due."""

    def free(self) -> None:
        """Let what is slow go on."""

    def saw(self, model: TrainedModel) -> None:
        """Hear of the newest model, on which both servers agree."""

    def over(self, ended: VersionOver) -> None:
        """Hear that a version is over."""


@dataclass(slots=True)
class Participation:
    """How a client's training went."""

    submitted: int = 0
    """Attempts that an update was sent for."""
    covered: int = 0
    """Attempts that zeros were sent for, under ``cover_uploads``."""
    counted: int = 0
    rejected: Counter[str] = field(default_factory=Counter)
    epsilon: float = 0.0
    """The data set's own account over all tasks: exact, record level, one server corrupted."""
    ended: str = ""
    """`finished`, or `budget` when the owner's limit was reached first."""
    model: TrainedModel | None = field(default=None, repr=False)
    """The final model; the newest that this owner saw where its limit ended it."""
    model_file: Path | None = None
    """Where it lies as safetensors; None without a state folder, or where its disk failed."""
    history: tuple[RoundInfo, ...] = field(default=(), repr=False)
    """Round by round, as `DataOwner.run` told it."""
    validation: Evaluation | None = None
    """``model`` on the owner's held-out records; None without them."""
    callback_failures: int = 0
    """How often the owner's own ``on_round`` raised."""
    callback_error: BaseException | None = field(default=None, repr=False)
    """What it raised first."""

    def load_into(self, module: Net) -> Net:
        """Copies the model into a torch module and returns it; see ``TrainedModel.load_into``."""
        return self._model().load_into(module)

    def save(self, path: str | Path) -> None:
        """Writes the model as safetensors; see ``TrainedModel.save``."""
        self._model().save(path)

    def table(self) -> list[dict[str, Any]]:
        """The history as one flat dictionary a round, ready for a frame."""
        return [each.to_row() for each in self.history]

    def _model(self) -> TrainedModel:
        if self.model is None:
            raise Misconfiguration("model", None, "this training ended before a model was seen")
        return self.model
