"""Calls to the servers and the dealer, and their answers, as bytes."""

from collections.abc import Callable
from typing import Any

from tests.fuzz.stage import CLIENT, ROUND, join, parsed, split, streamed
from tests.fuzz.target import Target, pair, stage
from tests.rig.halves import halves
from tests.rig.submissions import body_of

from precad.aggregator.rpc.dealer_client import (
    answer_from_wire,
    request_to_wire,
    square_request_to_wire,
)
from precad.aggregator.validate.validation import deal_request
from precad.common.identifiers import Role, Secret
from precad.common.identity.mutual_tls import WIRE_VERSION
from precad.common.ring import KEY_BYTES
from precad.common.wire.messages import header_from_wire, header_to_wire
from precad.dealer.dealing_service import request_from_wire, square_requests_from_wire
from precad.norm_check.dealing import DealerConversation, SquareRequest
from precad.protos import precad_pb2 as pb


def _header(data: bytes) -> None:
    message = parsed(pb.SubmissionHeader, data)
    if message is not None:
        for role in (Role.SERVER_A, Role.SERVER_B):
            read = header_from_wire(message, role)
            assert read.header.whole_digest != read.context.digest
            assert header_from_wire(header_to_wire(read), role) == read
            read.opens  # noqa: B018 -- computing it must not raise


def _submit(role: Role, validation: str = "crypten") -> Callable[[bytes], bool]:
    def parse(data: bytes) -> bool:
        pieces = [parsed(pb.SubmissionPiece, piece) for piece in split(data)]
        return None not in pieces and stage(validation).submit(role, pieces)

    return parse


def _submissions(role: Role, validation: str = "crypten") -> list[bytes]:
    own = pair(validation)[0 if role is Role.SERVER_A else 1]
    body = body_of(own)
    header = header_to_wire(own)
    whole = [
        pb.SubmissionPiece(header=header),
        pb.SubmissionPiece(body=body[:70]),
        pb.SubmissionPiece(body=body[70:]),
    ]
    return [
        join(*(piece.SerializeToString() for piece in whole[:count]))
        for count in range(1, len(whole) + 1)
    ]


def _call(kind: Any, where: str, party: str) -> Callable[[bytes], None]:
    service, method = where.split(".")

    def parse(data: bytes) -> None:
        request = parsed(kind, data)
        if request is not None:
            here = stage()
            services: dict[str, Any] = {
                "aggregation": here.aggregation[Role.SERVER_A],
                "operation": here.operation,
                "dealing": here.dealer() if service == "dealing" else None,
            }
            here.call(getattr(services[service], method), request, party)

    return parse


def _requests(*requests: Any) -> Callable[[], list[bytes]]:
    def seeds() -> list[bytes]:
        digest = stage().task.digest.value
        found = []
        for request in requests:
            request.task_digest = digest
            found.append(request.SerializeToString())
        return found

    return seeds


def _deal_words(data: bytes) -> None:
    wanted = deal_request(stage().task, ROUND, 0, 1, bytes(64))
    first, *others = [*split(data), b""]
    reply = parsed(pb.JoinReply, first)
    pieces = [parsed(pb.DealPiece, piece) for piece in others]
    if reply is not None and None not in pieces:
        dealer = stage().remote_dealer(pieces, reply)
        dealer.join()
        dealer.deal(wanted)


def _squares(data: bytes) -> None:
    """A server's stream to a dealer."""
    requests = [parsed(pb.SquareRequest, piece) for piece in split(data)]
    if None not in requests:
        here = stage()
        handler = here.dealer().Square
        here.call(lambda _, context: handler(streamed(requests), context), None, "server-a")


def _square_requests() -> list[bytes]:
    here = stage()
    half = halves(here.task.digest, "x", here.task.dimension, ROUND).of[Role.SERVER_A]
    request = square_request_to_wire(half, bytes(16)).SerializeToString()
    return [join(request), join(request, request)]


def _square_request(data: bytes) -> None:
    message = parsed(pb.SquareRequest, data)
    if message is not None:
        for request in square_requests_from_wire(message):
            assert square_request_to_wire(request, message.epoch).SerializeToString()


_CONTEXT = b"\5" * 32


def _square_replies(data: bytes) -> None:
    """What a server makes of the dealer's answers; nothing waits longer than it is told to."""
    replies = [reply for piece in split(data) if (reply := parsed(pb.SquareReply, piece))]
    task = stage().task
    answers, own = DealerConversation(ROUND, lambda _: None, 0.0), Secret(bytes(32))
    answers.ask(SquareRequest(task.digest, ROUND, _CONTEXT, bytes(32), bytes(32), own, own))
    for each in (each for reply in replies for each in reply.answers):
        answers.put(each.context, answer_from_wire(each))
    assert len(answers.row_key(_CONTEXT)) == KEY_BYTES
    answers.share(_CONTEXT)


def _square_answers() -> list[bytes]:
    """A row key and a share, and each other kind of answer in its place."""
    row_key = pb.SquareAnswer(context=_CONTEXT, row_key=bytes(32))
    answers = [
        pb.SquareAnswer(context=_CONTEXT, share=-5),
        pb.SquareAnswer(context=_CONTEXT[:-1], share=-5),
        pb.SquareAnswer(context=_CONTEXT, violation="no"),
        pb.SquareAnswer(context=_CONTEXT, unavailable="no"),
        pb.SquareAnswer(context=_CONTEXT),
    ]
    first = pb.SquareReply(answers=[row_key]).SerializeToString()
    return [
        *(join(first, pb.SquareReply(answers=[each]).SerializeToString()) for each in answers),
        join(pb.SquareReply(answers=[row_key, answers[0]]).SerializeToString()),
    ]


def _deal_seeds() -> list[bytes]:
    wanted = deal_request(stage().task, ROUND, 0, 2, bytes(64))
    return [request_to_wire(wanted, "server-b", bytes(16)).SerializeToString()]


def _deal_request(data: bytes) -> None:
    message = parsed(pb.DealRequest, data)
    if message is not None:
        request_from_wire(message)


def _word_seeds() -> list[bytes]:
    words = deal_request(stage().task, ROUND, 0, 1, bytes(64)).correction_words * 8
    reply = pb.JoinReply(key=bytes(32), epoch=bytes(16), wire_version=WIRE_VERSION)
    pieces = [pb.DealPiece(words=bytes(words)), pb.DealPiece(words=bytes(8))]
    return [join(*(m.SerializeToString() for m in [reply, *pieces[:n]])) for n in (1, 2)]


_CALLS: dict[str, tuple[Any, ...]] = {
    "enrol": (
        *("aggregation.Enrol", CLIENT.name),
        pb.EnrolRequest(client="ward-1", records=5, record_rate=0.1, token="x"),
    ),
    "watch": ("aggregation.Watch", CLIENT.name, pb.WatchRequest(client="ward-1")),
    "model-digest": (
        *("aggregation.ModelDigest", CLIENT.name),
        *(pb.ModelRequest(), pb.ModelRequest(version=2**64 - 1)),
    ),
    "call-opening": (
        *("aggregation.Opening", CLIENT.name),
        *(pb.OpeningRequest(client="ward-1"), pb.OpeningRequest(attempt=2**64 - 1)),
    ),
    "call-statement": ("aggregation.Statement", CLIENT.name, pb.StatementRequest(client="ward-1")),
    "allow": (
        *("operation.Allow", "operator", pb.AllowRequest(word="attempts")),
        *(pb.AllowRequest(word="coin", version=2**64 - 1), pb.AllowRequest(word="x")),
    ),
    "fetch-model": ("aggregation.FetchModel", CLIENT.name, pb.ModelRequest()),
    "status": ("operation.Status", "operator", pb.StatusRequest()),
    "reports": ("operation.Reports", "operator", pb.StatusRequest()),
    "join": ("dealing.Join", "server-a", pb.JoinRequest(role="server-a")),
    "leave": ("dealing.Leave", "server-b", pb.LeaveRequest(role="server-b")),
}
"""Service and method, who calls, and requests to which the task's digest comes."""


def _unary(where: str, party: str, *requests: Any) -> Target:
    return Target(_call(type(requests[0]), where, party), _requests(*requests))


TARGETS: dict[str, Target] = {
    "submission-header": Target(
        _header,
        lambda: [
            header_to_wire(part).SerializeToString()
            for check in ("crypten", "proof")
            for part in pair(check)
        ],
    ),
    "submit-a": Target(_submit(Role.SERVER_A), lambda: _submissions(Role.SERVER_A)),
    "submit-b": Target(_submit(Role.SERVER_B), lambda: _submissions(Role.SERVER_B)),
    "submit-seed": Target(
        _submit(Role.SERVER_A, "proof"), lambda: _submissions(Role.SERVER_A, "proof")
    ),
    "submit-body": Target(
        _submit(Role.SERVER_B, "proof"), lambda: _submissions(Role.SERVER_B, "proof")
    ),
    "squares": Target(_squares, _square_requests),
    "square-request": Target(
        _square_request, lambda: [split(each)[0] for each in _square_requests()[:1]]
    ),
    "square-replies": Target(_square_replies, _square_answers),
    **{name: _unary(*given) for name, given in _CALLS.items()},
    "deal": Target(_call(pb.DealRequest, "dealing.Deal", "server-b"), _deal_seeds),
    "deal-request": Target(_deal_request, _deal_seeds),
    "deal-words": Target(_deal_words, _word_seeds),
}
