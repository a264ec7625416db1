"""Calls to the servers and the dealer, their answers, an owner's files, as bytes."""

import hashlib
from functools import partial
from typing import Any

import grpc
import numpy as np
from google.protobuf.message import Message
from tests.fuzz.stage import (
    CLIENT,
    ROUND,
    D,
    Refusing,
    join,
    pair,
    parsed,
    split,
    stage,
    target,
)
from tests.rig import norm_check, submissions
from tests.rig.documents import Arguments

from precad.aggregator.rpc import dealer_client
from precad.aggregator.validate.validation import deal_request
from precad.client.account_file import AccountFile
from precad.client.account_plan import Plan, PlanLimit
from precad.client.data_set_account import Account
from precad.client.own_account import OwnAccount
from precad.client.pending_update import Pending
from precad.common import identifiers, ring
from precad.common.identity import mutual_tls, signatures
from precad.common.wire import calls, messages
from precad.dealer.dealing_service import request_from_wire, square_requests_from_wire
from precad.norm_check.dealing import DealerConversation, SquareRequest
from precad.norm_check.submission_messages import header_from_wire, header_to_wire
from precad.protos import precad_pb2 as pb

A, B = identifiers.Role.SERVER_A, identifiers.Role.SERVER_B


@target(
    "submission-header",
    lambda: [
        header_to_wire(part).SerializeToString() for part in (*pair(), *pair("proof"))
    ],
)
def _header(data: bytes) -> None:
    message = parsed(pb.SubmissionHeader, data)
    for role in (A, B):
        read = header_from_wire(message, role)
        assert read.header.whole_digest != read.context.digest
        assert header_from_wire(header_to_wire(read), role) == read
        read.opens  # noqa: B018 -- computing it must not raise


def _submit(role: identifiers.Role, validation: str, data: bytes) -> bool:
    pieces = [parsed(pb.SubmissionPiece, piece) for piece in split(data)]
    return stage(validation).submit(role, pieces)


def _submissions(role: identifiers.Role, validation: str) -> list[bytes]:
    own = pair(validation)[0 if role is A else 1]
    body = submissions.body_of(own)
    whole = [
        pb.SubmissionPiece(header=header_to_wire(own)),
        pb.SubmissionPiece(body=body[:70]),
        pb.SubmissionPiece(body=body[70:]),
    ]
    return [
        join(*(piece.SerializeToString() for piece in whole[:n])) for n in (1, 2, 3)
    ]


for _name, _role, _check in (
    *(("submit-a", A, "crypten"), ("submit-b", B, "crypten")),
    *(("submit-seed", A, "proof"), ("submit-body", B, "proof")),
):
    target(_name, partial(_submissions, _role, _check))(partial(_submit, _role, _check))


def _call(kind: type[Message], where: str, party: str, data: bytes) -> None:
    (service, method), here = where.split("."), stage()
    made = {"aggregation": here.aggregation[A], "operation": here.operation}
    handler = getattr(made.get(service) or here.dealer(), method)
    here.call(handler, parsed(kind, data), party)


def _with_digest(*requests: Any) -> list[bytes]:
    for request in requests:
        request.task_digest = stage().task.digest.value
    return [request.SerializeToString() for request in requests]


_MOST = 2**64 - 1
_WARD, _OPERATOR = CLIENT.name, "operator"
# Service and method, who calls, and requests to which the task's digest comes.
_CALLS: dict[str, tuple[str, str, *tuple[Message, ...]]] = {
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
    "call-statement": (
        "aggregation.Statement",
        _WARD,
        pb.StatementRequest(client="ward-1"),
    ),
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
    half = norm_check.halves(here.task.digest, "x", here.task.dimension, ROUND).of[A]
    request = dealer_client.square_request_to_wire(half, bytes(16)).SerializeToString()
    return [join(request), join(request, request)]


@target("squares", _square_requests)
def _squares(data: bytes) -> None:
    requests = [parsed(pb.SquareRequest, piece) for piece in split(data)]
    stage().stream(stage().dealer().Square, requests, "server-a")


@target("square-request", lambda: [split(_square_requests()[0])[0]])
def _square_request(data: bytes) -> None:
    message = parsed(pb.SquareRequest, data)
    for request in square_requests_from_wire(message):
        assert dealer_client.square_request_to_wire(
            request, message.epoch
        ).SerializeToString()


_CONTEXT = b"\5" * 32


def _square_answers() -> list[bytes]:
    """A row key and a share, and each other kind of answer in its place."""
    others: list[Arguments] = [
        {"share": -5},
        {"context": _CONTEXT[:-1], "share": -5},
    ]
    others += [{"violation": "no"}, {"unavailable": "no"}, {}]
    usual: Arguments = {"context": _CONTEXT}
    answers = [pb.SquareAnswer(**usual | each) for each in others]
    row_key = pb.SquareAnswer(context=_CONTEXT, row_key=bytes(32))

    def reply(*some: pb.SquareAnswer) -> bytes:
        return pb.SquareReply(answers=some).SerializeToString()

    apart = (join(reply(row_key), reply(each)) for each in answers)
    return [*apart, join(reply(row_key, answers[0]))]


@target("square-replies", _square_answers)
def _square_replies(data: bytes) -> None:
    """What a server makes of the dealer's answers; nothing waits for longer."""
    replies = [parsed(pb.SquareReply, piece) for piece in split(data)]
    answers, own = (
        DealerConversation(attempt=ROUND, send=lambda _: None, timeout_s=0.0),
        identifiers.Secret(bytes(32)),
    )
    answers.ask(
        SquareRequest(
            task=stage().task.digest,
            attempt=ROUND,
            context=_CONTEXT,
            commitment_a=bytes(32),
            commitment_b=bytes(32),
            seed=own,
            salt=own,
        )
    )
    for each in (each for reply in replies for each in reply.answers):
        answers.put(each.context, dealer_client.answer_from_wire(each))
    assert len(answers.row_key(_CONTEXT)) == ring.KEY_BYTES
    answers.share(_CONTEXT)


def _deals() -> list[bytes]:
    wanted = deal_request(
        stage().task, attempt=ROUND, batch=0, clients=2, nonces=bytes(64)
    )
    return [
        dealer_client.request_to_wire(wanted, "server-b", bytes(16)).SerializeToString()
    ]


target("deal", _deals)(partial(_call, pb.DealRequest, "dealing.Deal", "server-b"))


target("deal-request", _deals)(
    lambda data: request_from_wire(parsed(pb.DealRequest, data))
)


def _words() -> list[bytes]:
    words = (
        deal_request(
            stage().task, attempt=ROUND, batch=0, clients=1, nonces=bytes(64)
        ).correction_words
        * 8
    )
    reply = pb.JoinReply(
        key=bytes(32), epoch=bytes(16), wire_version=mutual_tls.WIRE_VERSION
    )
    pieces = [pb.DealPiece(words=bytes(words)), pb.DealPiece(words=bytes(8))]
    return [
        join(*(m.SerializeToString() for m in [reply, *pieces[:n]])) for n in (1, 2)
    ]


@target("deal-words", _words)
def _deal_words(data: bytes) -> None:
    first, *others = [*split(data), b""]
    pieces = [parsed(pb.DealPiece, piece) for piece in others]
    dealer = stage().remote_dealer(pieces, parsed(pb.JoinReply, first))
    dealer.join()
    dealer.deal(
        deal_request(stage().task, attempt=ROUND, batch=0, clients=1, nonces=bytes(64))
    )


# What servers say to an owner, and what the owner keeps.

_REPLIES: tuple[tuple[str, type[Message]], ...] = (
    *(("Describe", pb.DescribeReply), ("Enrol", pb.EnrolReply)),
    *(
        ("ModelDigest", pb.ModelDigestReply),
        ("FetchModel", pb.ModelPiece),
        ("Submit", pb.Receipt),
    ),
    *(("Opening", pb.OpeningBody), ("Statement", pb.StatementBody)),
)
_STATED: Arguments = {"proof_opening": bytes(32), "seed_holder": "server-b"}


def _client(validation: str, data: bytes) -> None:
    pieces = [*split(data), *[b""] * len(_REPLIES)]
    read = zip(_REPLIES, pieces, strict=False)
    answers: Arguments = {method: parsed(kind, piece) for (method, kind), piece in read}
    answers["FetchModel"] = [answers["FetchModel"]]
    notices = [parsed(pb.Notice, piece) for piece in pieces[len(_REPLIES) :] if piece]
    stage(validation).take_part(answers | {"Watch": notices})


def _conversations(validation: str) -> list[bytes]:
    here = stage(validation)
    model = here.sessions[A].model_store.current.digest.value
    mine: Arguments = {
        "task_digest": here.task.digest.value,
        "client": CLIENT.name,
    }
    task = mine["task_digest"]
    opened = pb.RoundOpen(
        attempt=1, model_digest=model, selected=True, collect_seconds=9
    )
    stated = {} if here.task.proof is None else _STATED
    notices = [
        pb.Notice(open=opened, serves_first="server-a"),
        pb.Notice(over=pb.RoundOver(attempt=1, counted=True), serves_first="server-b"),
        pb.Notice(
            over=pb.RoundOver(attempt=1, rejection="absent"), serves_first="server-a"
        ),
        pb.Notice(
            finished=pb.TrainingOver(version=0, model_digest=model),
            serves_first="server-b",
        ),
    ]
    replies = [
        pb.DescribeReply(
            role="server-a", task_digest=task, wire_version=mutual_tls.WIRE_VERSION
        ),
        pb.EnrolReply(enrolled=1),
        pb.ModelDigestReply(model_digest=model),
        pb.ModelPiece(data=bytes(4 * D)),
        pb.Receipt(rejection="absent", detail="x"),
        pb.OpeningBody(**mine, **stated, attempt=1, charges=1, model_digest=model),
        pb.StatementBody(**mine, model_digest=model, charged=[0, 0]),
    ]
    return [
        join(*(m.SerializeToString() for m in [*replies, *notices[:count]]))
        for count in range(len(notices) + 1)
    ]


for _check, _name in (("crypten", "client"), ("proof", "client-with-proof")):
    target(_name, partial(_conversations, _check))(partial(_client, _check))


def _statements() -> list[bytes]:
    body = pb.StatementBody(task_digest=stage().task.digest.value, client=CLIENT.name)
    pen = signatures.CertificateSigner(stage().identity)
    return [messages.sign_body(pen, A, body).SerializeToString()]


@target("statement", _statements)
def _statement(data: bytes) -> None:
    messages.Statement.checked(stage().verifier, A, data)


def _accounts() -> list[bytes]:
    path = stage().folder / "seed.log"
    if not path.exists():
        own = OwnAccount(stage().task, 0.2, 20.0, path, CLIENT)
        for version in range(3):
            own.charge(version, version)
    whole = path.read_bytes()
    planned = stage().folder / "planned.log"
    if not planned.exists():
        rounds = {"noise_multiplier": 1.0, "record_rate": 0.2, "rounds": 3}
        plan = Plan.model_validate({"delta": 1e-5, "purse": 1, "training": [rounds]})
        AccountFile(planned).append(PlanLimit(9.0, plan))
    return [whole, whole[:-20] + b"~\n" + whole, planned.read_bytes() + whole]


@target("account", _accounts)
def _account(data: bytes) -> None:
    Account(stage().file(data, ".log"))


def _kept() -> list[bytes]:
    found = []
    for check in ("crypten", "proof"):
        path, x = stage().folder / "seed.pending", np.arange(D, dtype=np.int64)
        path.unlink(missing_ok=True)
        Pending(stage(check).task, CLIENT, path).keep(3, x, pair(check), 0)
        found.append(path.read_bytes()[:-32])
    return found


@target("pending", _kept)
def _pending(data: bytes) -> None:
    # With a right digest behind it: chance never finds one.
    path = stage().file(data + hashlib.sha256(data).digest(), ".pending")
    for check in ("crypten", "proof"):
        Pending(stage(check).task, CLIENT, path)


@target("error-text", lambda: [b"no", b"x" * 5000])
def _error_text(data: bytes) -> None:
    """Whatever a hostile server ends a call with becomes an error of ours."""
    codes = [code.name for code in grpc.StatusCode]
    raise calls.error_of(
        "server A", "a.example:1", Refusing(codes[len(data) % len(codes)], data)
    )
