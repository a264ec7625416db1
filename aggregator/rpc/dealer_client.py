"""A server's client for the dealer: its key, correction words, and squares of masks."""

import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import grpc

from precad.common import (
    WORD_BYTES,
    PeerUnavailable,
    PeerViolation,
    RingVector,
    Role,
    Secret,
    Task,
    start_thread,
)
from precad.common.identity import (
    Identity,
    Why,
    check_version,
    open_channel,
    why_unreachable,
)
from precad.common.ring import from_bytes
from precad.common.wire import StreamCall, call_with_retries, error_of, errors_of
from precad.norm_check import dealing
from precad.protos import precad_pb2 as pb
from precad.protos.precad_pb2_grpc import DealingStub


def request_to_wire(
    request: dealing.DealRequest, role: str, epoch: bytes
) -> pb.DealRequest:
    """Return the message by which the server of ``role`` asks for correction words.

    ``epoch`` says which start of the dealer the server means.
    """
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
    """Connect a server of ``role`` to the dealer until the block ends.

    Without an ``address`` the task has no dealer: what is yielded is ``NoDealer``.
    """
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
    """The dealer behind gRPC; asks for this role's part only.

    ``why`` looks for what keeps a connection to the dealer from coming about; it
    returns None where nothing is wrong as seen from here.
    """

    def __init__(
        self,
        channel: grpc.Channel,
        address: str,
        task: Task,
        role: Role,
        why: Why = lambda: None,
    ) -> None:
        """Keep what is given; the dealer is called first by ``join``."""
        self._stub = DealingStub(channel)
        self._address = address
        self._why = why
        self._task = task
        self._role = role
        self._timeout_s = task.deadlines.peer
        self.bytes_received = 0
        """Bytes of correction words and of answers that the dealer sent."""
        self._counting = threading.Lock()
        """Guards ``bytes_received``: several threads receive."""
        self.epoch = b""
        """Which start of the dealer this server joined."""
        self.newest_attempt = -1
        """The newest attempt that was dealt for: none up to it is dealt for again."""

    def join(self) -> Secret:
        """Join the task at the dealer, and return this server's key for it.

        Sets ``epoch`` and ``newest_attempt``. A dealer that can't be reached is tried
        again until the task's deadline for peers.

        Raises PeerUnavailable, AccessDenied; PeerViolation: also where the dealer
        speaks another wire version.
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
        """Return this server's correction words, ``[request.correction_words] int64``.

        Server A gets none: ``[0]``.

        Raises PeerUnavailable, AccessDenied; PeerViolation: also where the dealer sends
        more words or fewer.
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
        """Tell the dealer that training is over here.

        Raises PeerUnavailable, AccessDenied, PeerViolation.
        """
        request = pb.LeaveRequest(
            task_digest=self._task.digest.value, role=self._role.value
        )
        with errors_of("the dealer", self._address):
            self._stub.Leave(request, timeout=timeout_s, wait_for_ready=True)

    @contextmanager
    def squares(self, attempt: int) -> Iterator[dealing.DealerConversation]:
        """Open a conversation about one attempt's squares until the block ends.

        It goes over one stream; a thread reads the dealer's answers. Whoever waits for
        an answer hears what went wrong. At the block's end the dealer forgets what has
        no answer.

        Raises PeerUnavailable: where the block does, with the reason if one is found.
        """
        outgoing: Outgoing = queue.SimpleQueue()

        def send(request: dealing.SquareRequest) -> None:
            outgoing.put(square_request_to_wire(request, self.epoch))

        conversation = dealing.DealerConversation(
            attempt=attempt,
            send=send,
            timeout_s=self._timeout_s,
        )
        call = self._stub.Square(_batched(outgoing), wait_for_ready=True)
        reader = start_thread("squares", partial(self._read, call, conversation))
        try:
            yield conversation
        except PeerUnavailable as error:
            # A dealer that isn't there deals nothing either, whoever has asked: so the
            # reason is looked for first.
            raise self._why() or error from None
        finally:
            outgoing.put(None)
            call.cancel()
            reader.join(timeout=1)

    def _read(self, call: StreamCall, conversation: dealing.DealerConversation) -> None:
        """Read the dealer's answers into ``conversation`` until the stream ends.

        Runs in a thread of its own. An answer that breaks the protocol ends the call.
        """
        try:
            for reply in call:
                self._count(reply.ByteSize())
                for answer in reply.answers:
                    conversation.put(answer.context, answer_from_wire(answer))
                # Not kept while this thread waits for the next one.
                del reply
            conversation.end(PeerUnavailable("the dealer ended the squares' stream"))
        except grpc.RpcError as error:
            conversation.end(error_of("the dealer", self._address, error))
        except PeerViolation as error:
            conversation.end(error)
            call.cancel()

    def _count(self, received_bytes: int) -> None:
        with self._counting:
            self.bytes_received += received_bytes


Outgoing = queue.SimpleQueue[pb.SquareRequest | None]
"""Requests that wait to be sent; None ends the stream."""
_MOST_HALVES = 1024
"""Halves of masks in one message, at most: 180 KiB."""


def _batched(outgoing: Outgoing) -> Iterator[pb.SquareRequest]:
    """Yield what is put into ``outgoing``, until None.

    Requests that wait together go in one message: a message costs more than a half of a
    mask in it.
    """
    for message in iter(outgoing.get, None):
        while not outgoing.empty() and len(message.halves) < _MOST_HALVES:
            waiting = outgoing.get()
            if waiting is None:
                return
            message.MergeFrom(waiting)
            del waiting
        yield message
        del message


def square_request_to_wire(
    request: dealing.SquareRequest, epoch: bytes
) -> pb.SquareRequest:
    """Return the message by which a server asks for the square of one mask.

    It opens the asking server's half of the mask. ``epoch`` says which start of the
    dealer the server means.
    """
    half = pb.SquareHalf(
        context=request.context,
        commitment_a=request.commitment_a,
        commitment_b=request.commitment_b,
        seed=request.seed.reveal(),
        salt=request.salt.reveal(),
    )
    return pb.SquareRequest(
        task_digest=request.task.value,
        epoch=epoch,
        attempt=request.attempt,
        halves=[half],
    )


def answer_from_wire(reply: pb.SquareAnswer) -> dealing.Answer:
    """Return what one of the dealer's answers says.

    That is a row key, this server's share of the square, or why nothing is dealt.

    Raises PeerViolation: there is no answer in it.
    """
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
