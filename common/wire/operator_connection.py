"""An operator's way to one server: status, reports, the model."""

from collections.abc import Generator

import grpc
import numpy as np
from numpy.typing import NDArray

from precad.common.errors import PeerViolation
from precad.common.identifiers import Digest, Role
from precad.common.identity.credentials import Identity
from precad.common.identity.mutual_tls import open_channel
from precad.common.model import from_bytes
from precad.common.ring import WORD_BYTES
from precad.common.task import Task
from precad.common.wire.calls import error_of
from precad.common.wire.version import check_version
from precad.protos import precad_pb2 as pb
from precad.protos.precad_pb2_grpc import AggregationStub, OperationStub

CALL_TIMEOUT_S = 30.0


class OperatorConnection:
    """A channel to ``role`` at ``address`` with an operator's identity."""

    def __init__(self, address: str, role: Role, identity: Identity) -> None:
        self._who = role.title
        self._address = address
        self._channel = open_channel(address, identity, role)
        self._operation = OperationStub(self._channel)
        self._aggregation = AggregationStub(self._channel)

    def close(self) -> None:
        """Close the channel."""
        self._channel.close()

    def status(self, timeout_s: float = CALL_TIMEOUT_S, *, wait: bool = False) -> pb.StatusReply:
        """Where the training stands. Raises PeerUnavailable, AccessDenied."""
        try:
            reply = self._operation.Status(
                pb.StatusRequest(), timeout=timeout_s, wait_for_ready=wait
            )
        except grpc.RpcError as error:
            raise error_of(self._who, self._address, error) from None
        check_version(self._who, reply.wire_version)
        return reply

    def allow(self, word: str, version: int) -> int:
        """Give the operators' word for the version that waits.

        Returns:
            The newest attempt that the word reaches to.

        Raises:
            PeerUnavailable, AccessDenied.
            PeerViolation: there is no such word, or another version is open.
        """
        task = self.status().task_digest
        request = pb.AllowRequest(task_digest=task, word=word, version=version)
        try:
            return self._operation.Allow(request, timeout=CALL_TIMEOUT_S).until
        except grpc.RpcError as error:
            raise error_of(self._who, self._address, error) from None

    def reports(self) -> Generator[pb.RoundReport]:
        """One report per finished round, until the training ends."""
        try:
            yield from self._operation.Reports(pb.StatusRequest(), wait_for_ready=True)
        except grpc.RpcError as error:
            raise error_of(self._who, self._address, error) from None

    def model(self, task: Task, version: int) -> NDArray[np.float64]:
        """The model that round ``version`` starts from, ``[d] float64``; server A only."""
        request = pb.ModelRequest(task_digest=task.digest.value, version=version)
        data = bytearray()
        try:
            timeout_s = max(CALL_TIMEOUT_S, task.deadlines.collect)
            for piece in self._aggregation.FetchModel(request, timeout=timeout_s):
                data += piece.data
                if len(data) > task.dimension * WORD_BYTES:
                    raise PeerViolation(f"{self._who} sent a model longer than the task's")
        except grpc.RpcError as error:
            raise error_of(self._who, self._address, error) from None
        return from_bytes(data, task.dimension)

    def model_digest(self, task: Task, version: int) -> Digest:
        """Digest of the model that round ``version`` starts from."""
        request = pb.ModelRequest(task_digest=task.digest.value, version=version)
        try:
            reply = self._aggregation.ModelDigest(request, timeout=CALL_TIMEOUT_S)
        except grpc.RpcError as error:
            raise error_of(self._who, self._address, error) from None
        return Digest(reply.model_digest)
