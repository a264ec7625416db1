"""An operator's way to one server: status, reports, the model."""

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from precad.common.errors import PeerViolation, one_line
from precad.common.identifiers import Digest, Role
from precad.common.identity.credentials import Identity
from precad.common.identity.mutual_tls import check_version, open_channel
from precad.common.model import ModelVector, from_bytes, most_bytes
from precad.common.task import Task
from precad.common.wire.calls import errors_of
from precad.common.wire.messages import values_of
from precad.protos import precad_pb2 as pb
from precad.protos.precad_pb2_grpc import AggregationStub, OperationStub

CALL_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """Where a server's training stands; StatusReply in protos/precad.proto describes each field."""

    role: str
    task_name: str
    task_digest: bytes
    phase: str
    enrolled: int
    version: int
    rounds: int
    model_digest: bytes
    error: str
    rejected: Mapping[str, int]
    participations: Mapping[str, int]
    bytes_by_link: Mapping[str, int]
    rejected_by_client: Mapping[str, int]
    kernel: str
    redrawn_coins: int
    workers: int
    most_owners: int
    least_owners: int
    enrolment_left_s: float
    missing: tuple[str, ...]
    twice: Mapping[str, int]
    unused_tokens: int
    wire_version: int


@dataclass(frozen=True, slots=True)
class StepCost:
    """What a step of an attempt cost on a server; see protos/precad.proto."""

    step: str
    seconds: float
    cpu_seconds: float
    ended: float
    cpu_ended: float


@dataclass(frozen=True, slots=True)
class RoundReport:
    """A finished round, as a server reports it; see protos/precad.proto."""

    version: int
    cohort: int
    accepted: int
    rejected: Mapping[str, int]
    most_participations: int
    model_digest: bytes
    seconds: float
    attempt: int
    steps: tuple[StepCost, ...]


def _shown(value: Any) -> Any:
    """A reply's values with their texts as people may see them: a server may be bad."""
    match value:
        case str():
            return one_line(value)
        case dict():
            return {name: _shown(each) for name, each in value.items()}
        case tuple():
            return tuple(map(_shown, value))
    return value


class OperatorConnection:
    """A channel to ``role`` at ``address`` with an operator's identity.

    Calls raise PeerUnavailable, AccessDenied, PeerViolation.
    """

    def __init__(self, address: str, role: Role, identity: Identity) -> None:
        self._who = role.title
        self._errors = partial(errors_of, role.title, address)
        self._channel = open_channel(address, identity, role)
        self._operation = OperationStub(self._channel)
        self._aggregation = AggregationStub(self._channel)

    def close(self) -> None:
        """Close the channel."""
        self._channel.close()

    def status(self, timeout_s: float = CALL_TIMEOUT_S, *, wait: bool = False) -> ServerStatus:
        """Where the training stands."""
        with self._errors():
            request = pb.StatusRequest()
            reply = self._operation.Status(request, timeout=timeout_s, wait_for_ready=wait)
        check_version(self._who, reply.wire_version)
        return ServerStatus(**_shown(values_of(reply)))

    def allow(self, word: str, version: int) -> int:
        """Give the operators' word for the version that waits; the newest attempt that it reaches.

        Raises PeerViolation: there is no such word, or another version is open.
        """
        task = self.status().task_digest
        request = pb.AllowRequest(task_digest=task, word=word, version=version)
        with self._errors():
            return self._operation.Allow(request, timeout=CALL_TIMEOUT_S).until

    def reports(self) -> Generator[RoundReport]:
        """One report per finished round, until the training ends."""
        with self._errors():
            for report in self._operation.Reports(pb.StatusRequest(), wait_for_ready=True):
                values = _shown(values_of(report))
                steps = tuple(StepCost(**each) for each in values.pop("steps"))
                yield RoundReport(**values, steps=steps)

    def model(self, task: Task, version: int) -> ModelVector:
        """The model that round ``version`` starts from, ``[d]``; server A only."""
        request = pb.ModelRequest(task_digest=task.digest.value, version=version)
        timeout_s, data = max(CALL_TIMEOUT_S, task.deadlines.collect), bytearray()
        with self._errors():
            for piece in self._aggregation.FetchModel(request, timeout=timeout_s):
                data += piece.data
                if len(data) > most_bytes(task.dimension):
                    raise PeerViolation(f"{self._who} sent a model longer than the task's")
        return from_bytes(data, task.dimension)

    def model_digest(self, task: Task, version: int) -> Digest:
        """Digest of the model that round ``version`` starts from."""
        request = pb.ModelRequest(task_digest=task.digest.value, version=version)
        with self._errors():
            reply = self._aggregation.ModelDigest(request, timeout=CALL_TIMEOUT_S)
        return Digest(reply.model_digest)
