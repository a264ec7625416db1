"""Calls to the servers and the dealer, and their answers, as bytes."""

from functools import partial
from typing import Any

from tests.fuzz.stage import CLIENT, ROUND, join, parsed, split, streamed
from tests.fuzz.target import pair, stage, target
from tests.rig.halves import halves
from tests.rig.submissions import body_of

from precad.aggregator.rpc import dealer_client
from precad.aggregator.validate.validation import deal_request
from precad.common.identifiers import Role, Secret
from precad.common.identity.mutual_tls import WIRE_VERSION
from precad.common.ring import KEY_BYTES
from precad.common.wire.messages import header_from_wire, header_to_wire
from precad.dealer.dealing_service import request_from_wire, square_requests_from_wire
from precad.norm_check.dealing import DealerConversation, SquareRequest
from precad.protos import precad_pb2 as pb

A, B = Role.SERVER_A, Role.SERVER_B


@target(
    "submission-header",
    lambda: [
        header_to_wire(part).SerializeToString()
        for check in ("crypten", "proof")
        for part in pair(check)
    ],
)
def _header(data: bytes) -> None:
    message = parsed(pb.SubmissionHeader, data)
    if message is not None:
        for role in (A, B):
            read = header_from_wire(message, role)
            assert read.header.whole_digest != read.context.digest
            assert header_from_wire(header_to_wire(read), role) == read
            read.opens  # noqa: B018 -- computing it must not raise


def _submit(role: Role, validation: str, data: bytes) -> bool:
    pieces = [parsed(pb.SubmissionPiece, piece) for piece in split(data)]
    return None not in pieces and stage(validation).submit(role, pieces)


def _submissions(role: Role, validation: str) -> list[bytes]:
    own = pair(validation)[0 if role is A else 1]
    body = body_of(own)
    whole = [
        pb.SubmissionPiece(header=header_to_wire(own)),
        pb.SubmissionPiece(body=body[:70]),
        pb.SubmissionPiece(body=body[70:]),
    ]
    return [join(*(piece.SerializeToString() for piece in whole[:n])) for n in (1, 2, 3)]


for _name, _role, _check in (
    ("submit-a", A, "crypten"),
    ("submit-b", B, "crypten"),
    ("submit-seed", A, "proof"),
    ("submit-body", B, "proof"),
):
    target(_name, partial(_submissions, _role, _check))(partial(_submit, _role, _check))


def _call(kind: Any, where: str, party: str, data: bytes) -> None:
    service, method = where.split(".")
    request, here = parsed(kind, data), stage()
    if request is not None:
        services: dict[str, Any] = {
            "aggregation": here.aggregation[A],
            "operation": here.operation,
            "dealing": here.dealer() if service == "dealing" else None,
        }
        here.call(getattr(services[service], method), request, party)


def _with_digest(*requests: Any) -> list[bytes]:
    for request in requests:
        request.task_digest = stage().task.digest.value
    return [request.SerializeToString() for request in requests]


_MOST = 2**64 - 1
_WARD, _OPERATOR = CLIENT.name, "operator"
# Service and method, who calls, and requests to which the task's digest comes.
_CALLS: dict[str, tuple[Any, ...]] = {
    "enrol": (
        *("aggregation.Enrol", _WARD),
        pb.EnrolRequest(client="ward-1", records=5, record_rate=0.1, token="x"),
    ),
    "watch": ("aggregation.Watch", _WARD, pb.WatchRequest(client="ward-1")),
    "model-digest": (
        *("aggregation.ModelDigest", _WARD),
        *(pb.ModelRequest(), pb.ModelRequest(version=_MOST)),
    ),
    "call-opening": (
        *("aggregation.Opening", _WARD),
        *(pb.OpeningRequest(client="ward-1"), pb.OpeningRequest(attempt=_MOST)),
    ),
    "call-statement": ("aggregation.Statement", _WARD, pb.StatementRequest(client="ward-1")),
    "allow": (
        *("operation.Allow", _OPERATOR, pb.AllowRequest(word="attempts")),
        *(pb.AllowRequest(word="coin", version=_MOST), pb.AllowRequest(word="x")),
    ),
    "fetch-model": ("aggregation.FetchModel", _WARD, pb.ModelRequest()),
    "status": ("operation.Status", _OPERATOR, pb.StatusRequest()),
    "reports": ("operation.Reports", _OPERATOR, pb.StatusRequest()),
    "join": ("dealing.Join", "server-a", pb.JoinRequest(role="server-a")),
    "leave": ("dealing.Leave", "server-b", pb.LeaveRequest(role="server-b")),
}
for _name, (_where, _party, *_requests) in _CALLS.items():
    target(_name, partial(_with_digest, *_requests))(
        partial(_call, type(_requests[0]), _where, _party)
    )


def _square_requests() -> list[bytes]:
    here = stage()
    half = halves(here.task.digest, "x", here.task.dimension, ROUND).of[A]
    request = dealer_client.square_request_to_wire(half, bytes(16)).SerializeToString()
    return [join(request), join(request, request)]


@target("squares", _square_requests)
def _squares(data: bytes) -> None:
    """A server's stream to a dealer."""
    requests = [parsed(pb.SquareRequest, piece) for piece in split(data)]
    if None not in requests:
        here = stage()
        handler = here.dealer().Square
        here.call(lambda _, context: handler(streamed(requests), context), None, "server-a")


@target("square-request", lambda: [split(_square_requests()[0])[0]])
def _square_request(data: bytes) -> None:
    message = parsed(pb.SquareRequest, data)
    if message is not None:
        for request in square_requests_from_wire(message):
            assert dealer_client.square_request_to_wire(request, message.epoch).SerializeToString()


_CONTEXT = b"\5" * 32


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


@target("square-replies", _square_answers)
def _square_replies(data: bytes) -> None:
    """What a server makes of the dealer's answers; nothing waits longer than it is told to."""
    replies = [reply for piece in split(data) if (reply := parsed(pb.SquareReply, piece))]
    answers, own = DealerConversation(ROUND, lambda _: None, 0.0), Secret(bytes(32))
    answers.ask(SquareRequest(stage().task.digest, ROUND, _CONTEXT, bytes(32), bytes(32), own, own))
    for each in (each for reply in replies for each in reply.answers):
        answers.put(each.context, dealer_client.answer_from_wire(each))
    assert len(answers.row_key(_CONTEXT)) == KEY_BYTES
    answers.share(_CONTEXT)


def _deals() -> list[bytes]:
    wanted = deal_request(stage().task, ROUND, 0, 2, bytes(64))
    return [dealer_client.request_to_wire(wanted, "server-b", bytes(16)).SerializeToString()]


target("deal", _deals)(partial(_call, pb.DealRequest, "dealing.Deal", "server-b"))


@target("deal-request", _deals)
def _deal_request(data: bytes) -> None:
    message = parsed(pb.DealRequest, data)
    if message is not None:
        request_from_wire(message)


def _words() -> list[bytes]:
    words = deal_request(stage().task, ROUND, 0, 1, bytes(64)).correction_words * 8
    reply = pb.JoinReply(key=bytes(32), epoch=bytes(16), wire_version=WIRE_VERSION)
    pieces = [pb.DealPiece(words=bytes(words)), pb.DealPiece(words=bytes(8))]
    return [join(*(m.SerializeToString() for m in [reply, *pieces[:n]])) for n in (1, 2)]


@target("deal-words", _words)
def _deal_words(data: bytes) -> None:
    first, *others = [*split(data), b""]
    reply = parsed(pb.JoinReply, first)
    pieces = [parsed(pb.DealPiece, piece) for piece in others]
    if reply is not None and None not in pieces:
        dealer = stage().remote_dealer(pieces, reply)
        dealer.join()
        dealer.deal(deal_request(stage().task, ROUND, 0, 1, bytes(64)))
