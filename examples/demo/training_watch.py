"""What an operator's certificate gets of a training beside its status."""

from collections.abc import Generator, Mapping

from precad.common.errors import PeerViolation
from precad.common.frozen import frozen_kw_only_dataclass
from precad.common.identifiers import Digest, Role
from precad.common.identity.credentials import Identity
from precad.common.model import ModelVector, from_bytes, most_bytes
from precad.common.task import Task
from precad.common.wire.calls import (
    CALL_TIMEOUT_S,
    OperatorConnection,
    StepCost,
    printable,
)
from precad.common.wire.messages import values_of
from precad.protos import precad_pb2 as pb
from precad.protos.precad_pb2_grpc import AggregationStub


@frozen_kw_only_dataclass
class RoundReport:
    """A finished round, as a server reports it.

    ``RoundReport`` in protos/precad.proto describes each field.
    """

    version: int
    cohort: int
    accepted: int
    rejected: Mapping[str, int]
    most_participations: int
    model_digest: bytes
    seconds: float
    attempt: int
    steps: tuple[StepCost, ...]


class TrainingWatch(OperatorConnection):
    """An operator's connection that also gives each round's report and model.

    Calls raise PeerUnavailable, AccessDenied, PeerViolation.
    """

    def __init__(self, address: str, role: Role, identity: Identity) -> None:
        super().__init__(address, role, identity)
        self._aggregation = AggregationStub(self._channel)

    def reports(self) -> Generator[RoundReport]:
        """Yield one report per finished round, until the training ends."""
        with self._errors():
            for report in self._operation.Reports(
                pb.StatusRequest(), wait_for_ready=True
            ):
                values = printable(values_of(report))
                steps = tuple(StepCost(**step) for step in values.pop("steps"))
                yield RoundReport(**values, steps=steps)

    def model(self, task: Task, version: int) -> ModelVector:
        """Return the model that round ``version`` starts from, ``[d]``; server A only.

        Raises PeerViolation: also where the server sends more than the task's model.
        """
        request = pb.ModelRequest(task_digest=task.digest.value, version=version)
        timeout_s = max(CALL_TIMEOUT_S, task.deadlines.collect)
        data = bytearray()
        with self._errors():
            for piece in self._aggregation.FetchModel(request, timeout=timeout_s):
                data += piece.data
                if len(data) > most_bytes(task.dimension):
                    raise PeerViolation(
                        f"{self._who} sent a model longer than the task's"
                    )
        return from_bytes(data, task.dimension)

    def model_digest(self, task: Task, version: int) -> Digest:
        """Return the digest of the model that round ``version`` starts from."""
        request = pb.ModelRequest(task_digest=task.digest.value, version=version)
        with self._errors():
            reply = self._aggregation.ModelDigest(request, timeout=CALL_TIMEOUT_S)
        return Digest(reply.model_digest)
