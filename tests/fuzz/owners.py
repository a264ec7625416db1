"""What servers say to an owner, and what the owner keeps, as bytes."""

import hashlib
from functools import partial
from typing import Any

import grpc
import numpy as np
from tests.fuzz.stage import CLIENT, D, Refusing, join, parsed, split
from tests.fuzz.target import pair, stage, target

from precad.client.own_account import Account, OwnAccount
from precad.client.pending_update import Pending
from precad.common.identifiers import Role
from precad.common.identity.mutual_tls import WIRE_VERSION
from precad.common.identity.signatures import CertificateSigner
from precad.common.wire.calls import error_of
from precad.common.wire.messages import check_statement, sign_body
from precad.protos import precad_pb2 as pb

_REPLIES: tuple[tuple[str, Any], ...] = (
    ("Describe", pb.DescribeReply),
    ("Enrol", pb.EnrolReply),
    ("ModelDigest", pb.ModelDigestReply),
    ("FetchModel", pb.ModelPiece),
    ("Submit", pb.Receipt),
    ("Opening", pb.OpeningBody),
    ("Statement", pb.StatementBody),
)


_STATED: dict[str, Any] = {"proof_opening": bytes(32), "seed_holder": "server-b"}


def _client(validation: str, data: bytes) -> None:
    pieces = [*split(data), *[b""] * len(_REPLIES)]
    read = zip(_REPLIES, pieces, strict=False)
    answers: dict[str, Any] = {method: parsed(kind, piece) for (method, kind), piece in read}
    answers["FetchModel"] = [answers["FetchModel"]]
    notices = [parsed(pb.Notice, piece) for piece in pieces[len(_REPLIES) :] if piece]
    if None not in [*answers.values(), *answers["FetchModel"], *notices]:
        stage(validation).take_part(answers | {"Watch": notices})


def _conversations(validation: str) -> list[bytes]:
    here = stage(validation)
    model = here.sessions[Role.SERVER_A].model_store.current.digest.value
    mine: dict[str, Any] = {"task_digest": here.task.digest.value, "client": CLIENT.name}
    described = pb.DescribeReply(
        role="server-a", task_digest=here.task.digest.value, wire_version=WIRE_VERSION
    )
    opened = pb.RoundOpen(
        attempt=1, model_digest=model, selected=True, collect_seconds=9, version=0
    )
    notices = [
        pb.Notice(open=opened, serves_first="server-a"),
        pb.Notice(over=pb.RoundOver(attempt=1, counted=True), serves_first="server-b"),
        pb.Notice(over=pb.RoundOver(attempt=1, rejection="absent"), serves_first="server-a"),
        pb.Notice(finished=pb.TrainingOver(version=0, model_digest=model), serves_first="server-b"),
    ]
    replies = [
        described,
        pb.EnrolReply(enrolled=1),
        pb.ModelDigestReply(model_digest=model),
        pb.ModelPiece(data=bytes(4 * D)),
        pb.Receipt(rejection="absent", detail="x"),
        pb.OpeningBody(
            **mine,
            **({} if here.task.proof is None else _STATED),
            version=0,
            attempt=1,
            charges=1,
            model_digest=model,
        ),
        pb.StatementBody(**mine, version=0, model_digest=model, charged=[0, 0]),
    ]
    return [
        join(*(m.SerializeToString() for m in [*replies, *notices[:count]]))
        for count in range(len(notices) + 1)
    ]


for _check, _name in (("crypten", "client"), ("proof", "client-with-proof")):
    target(_name, partial(_conversations, _check))(partial(_client, _check))


def _statements() -> list[bytes]:
    body = pb.StatementBody(task_digest=stage().task.digest.value, client=CLIENT.name)
    pen = CertificateSigner(stage().identity)
    return [sign_body(pen, Role.SERVER_A, body).SerializeToString()]


@target("statement", _statements)
def _statement(data: bytes) -> None:
    check_statement(stage().verifier, Role.SERVER_A, data)


def _accounts() -> list[bytes]:
    path = stage().folder / "seed.log"
    if not path.exists():
        own = OwnAccount(stage().task, 0.2, 4.0, path, CLIENT)
        for version in range(3):
            own.charge(version, version)
    whole = path.read_bytes()
    return [whole, whole[:-20] + b"~\n" + whole]


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
    raise error_of("server A", "a.example:1", Refusing(codes[len(data) % len(codes)], data))
