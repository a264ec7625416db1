"""A server's way to the dealer."""

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import grpc

from precad.aggregator.rpc.squares import RemoteSquares
from precad.common.errors import PeerUnavailable, PeerViolation
from precad.common.identifiers import Role
from precad.common.ring import WORD_BYTES, RingVector, from_bytes
from precad.common.secret import Secret
from precad.common.task import Task
from precad.common.wire.patience import call_patiently
from precad.common.wire.status import error_of
from precad.norm_check.dealing import Answers, DealerConversation
from precad.norm_check.dealt_triples import DealRequest
from precad.protos import precad_pb2 as pb
from precad.protos.precad_pb2_grpc import DealingStub


def request_to_wire(request: DealRequest, role: str, epoch: bytes) -> pb.DealRequest:
    """What a server asks of the dealer: with its role, and which start of the dealer it means."""
    return pb.DealRequest(
        task_digest=request.task.value,
        role=role,
        attempt=request.attempt,
        batch=request.batch,
        clients=request.clients,
        comparisons=request.comparisons,
        epoch=epoch,
        nonces=request.nonces,
    )


class RemoteDealer:
    """The dealer behind gRPC; asks for this role's part only."""

    def __init__(
        self,
        channel: grpc.Channel,
        address: str,
        task: Task,
        role: Role,
        why: Callable[[], PeerUnavailable | None] = lambda: None,
    ) -> None:
        self._stub = DealingStub(channel)
        self._address = address
        self._task = task
        self._role = role
        self._why = why
        self._timeout_s = task.deadlines.peer
        self.bytes_received = 0
        self._counting = threading.Lock()
        self.epoch = b""
        """Which start of the dealer this server joined; its keys last as long."""
        self.newest_attempt = -1
        """None up to this is dealt for again."""

    def join(self) -> Secret:
        """This server's key for the task. Raises PeerUnavailable, AccessDenied, PeerViolation."""
        request = pb.JoinRequest(task_digest=self._task.digest.value, role=self._role.value)
        try:
            reply = call_patiently(
                lambda timeout_s: self._stub.Join(request, timeout=timeout_s),
                self._timeout_s,
                why=self._why,
            )
        except grpc.RpcError as error:
            raise error_of("the dealer", self._address, error) from None
        self.epoch, self.newest_attempt = reply.epoch, reply.newest_attempt
        return Secret(reply.key)

    def deal(self, request: DealRequest) -> RingVector:
        """This server's correction words. Raises PeerUnavailable, AccessDenied, PeerViolation."""
        message = request_to_wire(request, self._role.value, self.epoch)
        data = bytearray()
        words = request.correction_words if self._role is Role.SERVER_B else 0
        try:
            for piece in self._stub.Deal(message, timeout=self._timeout_s, wait_for_ready=True):
                data += piece.words
                if len(data) > words * WORD_BYTES:
                    raise PeerViolation(f"the dealer sent more than {words} correction words")
        except grpc.RpcError as error:
            raise error_of("the dealer", self._address, error) from None
        self._count(len(data))
        if len(data) != words * WORD_BYTES:
            raise PeerViolation(f"the dealer sent {len(data)} bytes for {words} correction words")
        return from_bytes(data)

    def leave(self, timeout_s: float) -> None:
        """Say that this server's training is over.

        Raises PeerUnavailable, AccessDenied, PeerViolation.
        """
        request = pb.LeaveRequest(task_digest=self._task.digest.value, role=self._role.value)
        try:
            self._stub.Leave(request, timeout=timeout_s, wait_for_ready=True)
        except grpc.RpcError as error:
            raise error_of("the dealer", self._address, error) from None

    @contextmanager
    def squares(self, attempt: int) -> Iterator[DealerConversation]:
        """A conversation for one attempt; its errors come from its answers."""
        answers = Answers(attempt, self._timeout_s)
        to = self._stub, self._address, self._task.digest, self.epoch
        gates = self._task.validation == "fss"
        remote = RemoteSquares(*to, answers, self._count, gates=gates)
        with closing(remote):
            yield remote

    def _count(self, received: int) -> None:
        with self._counting:
            self.bytes_received += received
