"""A server's way to the dealer."""

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import grpc

from precad.common.errors import PeerUnavailable, PeerViolation
from precad.common.identifiers import Role, Secret
from precad.common.identity.credentials import Identity
from precad.common.identity.mutual_tls import (
    check_version,
    open_channel,
    why_unreachable,
)
from precad.common.ring import WORD_BYTES, RingVector, from_bytes
from precad.common.task import Task
from precad.common.wire.calls import call_with_retries, error_of, errors_of
from precad.norm_check import dealing
from precad.protos import precad_pb2 as pb
from precad.protos.precad_pb2_grpc import DealingStub


def request_to_wire(
    request: dealing.DealRequest, role: str, epoch: bytes
) -> pb.DealRequest:
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


@contextmanager
def reach_dealer(
    address: str | None,
    identity: Identity,
    task: Task,
    role: Role,
) -> Iterator["RemoteDealer | dealing.NoDealer"]:
    """The dealer until the block ends; of a task that has none ``NoDealer``."""
    if address is None:
        yield dealing.NoDealer()
        return
    why = partial(why_unreachable, address, identity, Role.DEALER)
    with open_channel(address, identity, Role.DEALER) as channel:
        yield RemoteDealer(
            channel,
            address,
            task,
            role,
            why,
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
        self._why = why
        self._task = task
        self._role = role
        self._timeout_s = task.deadlines.peer
        self.bytes_received = 0
        self._counting = threading.Lock()
        self.epoch = b""
        self.newest_attempt = -1
        """None up to this is dealt for again."""

    def join(self) -> Secret:
        """This server's key for the task.

        Raises PeerUnavailable, AccessDenied, PeerViolation.
        """
        request = pb.JoinRequest(
            task_digest=self._task.digest.value, role=self._role.value
        )
        with errors_of("the dealer", self._address):
            reply = call_with_retries(
                lambda timeout_s: self._stub.Join(request, timeout=timeout_s),
                self._timeout_s,
                why=self._why,
            )
        check_version("the dealer", reply.wire_version)
        self.epoch = reply.epoch
        self.newest_attempt = reply.newest_attempt
        return Secret(reply.key)

    def deal(self, request: dealing.DealRequest) -> RingVector:
        """This server's correction words.

        Raises PeerUnavailable, AccessDenied, PeerViolation.
        """
        message = request_to_wire(request, self._role.value, self.epoch)
        data = bytearray()
        words = request.correction_words if self._role is Role.SERVER_B else 0
        with errors_of("the dealer", self._address):
            for piece in self._stub.Deal(
                message, timeout=self._timeout_s, wait_for_ready=True
            ):
                data += piece.words
                if len(data) > words * WORD_BYTES:
                    raise PeerViolation(
                        f"the dealer sent more than {words} correction words"
                    )
        self._count(len(data))
        if len(data) != words * WORD_BYTES:
            raise PeerViolation(
                f"the dealer sent {len(data)} bytes for {words} correction words"
            )
        return from_bytes(data)

    def leave(self, timeout_s: float) -> None:
        """Say that training is over here.

        Raises PeerUnavailable, AccessDenied, PeerViolation.
        """
        request = pb.LeaveRequest(
            task_digest=self._task.digest.value, role=self._role.value
        )
        with errors_of("the dealer", self._address):
            self._stub.Leave(request, timeout=timeout_s, wait_for_ready=True)

    @contextmanager
    def squares(self, attempt: int) -> Iterator[dealing.DealerConversation]:
        """A conversation for one attempt, over one stream; a thread reads what is answered.

        Whoever waits hears what went wrong. At the block's end the dealer forgets what
        has no answer.
        """
        outgoing: Outgoing = queue.SimpleQueue()

        def send(request: dealing.SquareRequest) -> None:
            outgoing.put(square_request_to_wire(request, self.epoch))

        conversation = dealing.DealerConversation(
            attempt=attempt,
            send=send,
            timeout_s=self._timeout_s,
        )
        call = self._stub.Square(_together(outgoing), wait_for_ready=True)
        read = partial(self._read, call, conversation)
        reader = threading.Thread(
            target=read,
            name="squares",
            daemon=True,
        )
        reader.start()
        try:
            yield conversation
        except PeerUnavailable as error:
            # One that isn't there deals nothing either, whoever has asked.
            raise self._why() or error from None
        finally:
            outgoing.put(None)
            call.cancel()
            reader.join(timeout=1)

    def _read(self, call: Any, conversation: dealing.DealerConversation) -> None:
        try:
            for reply in call:
                self._count(reply.ByteSize())
                for each in reply.answers:
                    conversation.put(each.context, answer_from_wire(each))
                del reply
            conversation.end(PeerUnavailable("the dealer ended the squares' stream"))
        except grpc.RpcError as error:
            conversation.end(error_of("the dealer", self._address, error))
        except PeerViolation as error:
            conversation.end(error)
            call.cancel()

    def _count(self, received: int) -> None:
        with self._counting:
            self.bytes_received += received


Outgoing = queue.SimpleQueue[pb.SquareRequest | None]
_HALVES = 1024
"""In one message, at most: 180 KiB."""


def _together(outgoing: Outgoing) -> Iterator[pb.SquareRequest]:
    while (message := outgoing.get()) is not None:
        # What waits goes along: a message costs more than a half in it.
        while not outgoing.empty() and len(message.halves) < _HALVES:
            further = outgoing.get()
            if further is None:
                return
            message.MergeFrom(further)
            del further
        yield message
        del message


def square_request_to_wire(
    request: dealing.SquareRequest, epoch: bytes
) -> pb.SquareRequest:
    """What a server asks, and which start of the dealer it means."""
    half = pb.SquareHalf(
        context=request.context,
        commitment_a=request.commitment_a,
        commitment_b=request.commitment_b,
        seed=request.seed.reveal(),
        salt=request.salt.reveal(),
    )
    task = request.task.value
    attempt = request.attempt
    return pb.SquareRequest(
        task_digest=task,
        epoch=epoch,
        attempt=attempt,
        halves=[half],
    )


def answer_from_wire(reply: pb.SquareAnswer) -> dealing.Answer:
    """One of the dealer's answers. Raises PeerViolation: there is none in it."""
    match reply.WhichOneof("answer"):
        case "row_key":
            return Secret(reply.row_key)
        case "share":
            return reply.share
        case "violation":
            return PeerViolation(f"the dealer refuses: {reply.violation}")
        case "unavailable":
            return PeerUnavailable(f"the dealer refuses: {reply.unavailable}")
    raise PeerViolation("the dealer's reply holds no answer")
