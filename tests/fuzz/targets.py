"""Every parser of bytes from outside, as a function of bytes that raises PrecadError alone.

A target has seeds: well-formed inputs, from which both hypothesis (tests/property) and the
coverage-guided run (run.py beside this file) start. ``check`` is what holds for every input.
"""

import hashlib
import io
import json
import struct
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import zip_longest
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar, get_args

import grpc
import numpy as np
from safetensors.numpy import save
from tests.fuzz.stage import (
    CLIENT,
    OPENINGS,
    ROUND,
    SEED_HOLDER,
    VERSION,
    Aborted,
    D,
    Stage,
    join,
    parsed,
    split,
    streamed,
)
from tests.rig.halves import halves
from tests.rig.submissions import body_of

from precad.aggregator import server_messages as messages
from precad.aggregator.collect.upload import Spool
from precad.aggregator.enrol.admission import new_token, token_digest
from precad.aggregator.peer_link import SETUP_ATTEMPT, Frame, PeerLink
from precad.aggregator.rounds.aggregator import CoinKey
from precad.aggregator.rounds.client_lists import Alike, HeldList, Offer, Places
from precad.aggregator.rounds.recovery import adoptable
from precad.aggregator.rpc.dealer_client import (
    answer_from_wire,
    request_to_wire,
    square_request_to_wire,
)
from precad.aggregator.rpc.peer_transport import frame_from_wire, frame_to_wire
from precad.aggregator.server_messages import Ask, ServerSignatures
from precad.aggregator.settings import ServerASettings, ServerBSettings
from precad.aggregator.store.journal_file import JournalFile
from precad.aggregator.store.ledger import history_start
from precad.aggregator.store.summary import read_task
from precad.aggregator.validate.check_by_proof import ByProof
from precad.aggregator.validate.validation import deal_request
from precad.certify.curves import Floats
from precad.certify.finished_runs import FinishedRun
from precad.certify.inefficacy import expected_loss
from precad.certify.intervals import ScoreBound, vote_counts
from precad.cli.certify import Loss, Prediction, UnitName, certify
from precad.cli.certify_files import read_array
from precad.cli.certify_inputs import Trained, expectation, true_labels, vote_intervals
from precad.cli.local_deployment import task_to_toml, to_toml
from precad.client.own_account import Account, OwnAccount
from precad.client.owner_settings import JoinSettings
from precad.client.pending_update import Pending
from precad.client.records.read_records import read_client_data
from precad.common.errors import MAX_TEXT, PeerViolation, PrecadError, Rejection
from precad.common.identifiers import ClientId, Digest, Role
from precad.common.identity.authority import make_request, new_key, read_request, to_pem
from precad.common.identity.coin_key import COIN_FILE, read_coin_key
from precad.common.identity.credentials import REVOCATION_FILE, Identity
from precad.common.identity.deployment_keys import summarise
from precad.common.identity.party_certificate import (
    Principal,
    check_algorithm,
    check_purpose,
    has_chain,
    principal_of,
    read_certificates,
    validity_fault,
)
from precad.common.identity.revocation_list import RevocationList, read_revocation_lists
from precad.common.identity.signatures import CertificateSigner, CertificateVerifier, SignedKind
from precad.common.keystream import KEY_BYTES
from precad.common.model import from_bytes as model_from_bytes
from precad.common.model import load_model, save_model
from precad.common.roster import Enrolment, Roster
from precad.common.secret import Secret
from precad.common.share.header import Signature, SubmissionContext
from precad.common.share.proof_submission import AnySubmission, ForProof, ProofSubmission
from precad.common.task import Task
from precad.common.wire.calls import error_of
from precad.common.wire.serving import NOT_NOW
from precad.common.wire.signed_statements import check_opening, check_statement, sign_body
from precad.common.wire.submission_messages import header_from_wire, header_to_wire
from precad.common.wire.version import WIRE_VERSION
from precad.dealer.dealing_service import request_from_wire, square_requests_from_wire
from precad.dealer.process import DealerSettings
from precad.norm_check.dealing import DealerConversation
from precad.norm_check.dealt_triples import SquareRequest
from precad.norm_check.share_with_proof import share
from precad.protos import precad_pb2 as pb

ROOT = Path(__file__).parents[2]
BUGS = (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN)
"""How a call ends whose handler raised something unforeseen; or as ``NOT_NOW``."""


@dataclass(frozen=True, slots=True)
class Target:
    """A parser and what it usually reads."""

    parse: Callable[[bytes], object]
    seeds: Callable[[], Sequence[bytes]]

    def check(self, data: bytes) -> None:
        """Parse; any error but ours, or one of ours without bounds, is raised."""
        try:
            self.parse(data)
        except PrecadError as error:
            _check_text(str(error))
        except Aborted as ended:
            if ended.code in BUGS or ended.details == NOT_NOW:
                raise
            _check_text(ended.details)


def _check_text(text: str) -> None:
    if len(text) > MAX_TEXT:
        raise AssertionError(f"an error of {len(text)} characters")


@cache
def stage(validation: str = "crypten") -> Stage:
    """Made at first use, once a process."""
    return Stage(validation)


# --- calls to the servers and the dealer --------------------------------------------------------


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


def _pair(validation: str = "crypten") -> tuple[AnySubmission, AnySubmission]:
    """What an owner sends for the open attempt."""
    here = stage(validation)
    model = here.sessions[Role.SERVER_A].model_store.current.digest
    context = SubmissionContext(here.task.digest, VERSION, ROUND, CLIENT, model)
    stated = ForProof(OPENINGS, SEED_HOLDER)
    return share(here.task, np.arange(D, dtype=np.int64), context, here.signer, stated)


def _submissions(role: Role, validation: str = "crypten") -> list[bytes]:
    own = _pair(validation)[0 if role is Role.SERVER_A else 1]
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


def _call(kind: Any, service: str, method: str, party: str) -> Callable[[bytes], None]:
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


# --- between the servers ------------------------------------------------------------------------


class _Frames:
    """A transport that brings these frames, then nothing."""

    def __init__(self, frames: list[Frame]) -> None:
        self._frames = frames

    def put(self, frame: Frame) -> None:
        """What is said back is nobody's."""

    def get(self, timeout_s: float) -> Frame:
        del timeout_s
        if not self._frames:
            raise PeerViolation("no more frames")
        return self._frames.pop(0)

    def require_alive(self) -> None:
        """Nothing that brings frames is gone."""


def _link(data: bytes) -> None:
    frames = [frame_from_wire(piece) for piece in split(data)]
    link = PeerLink(_Frames(frames), stage().task.digest, max_message_bytes=64, timeout_s=1)
    while True:
        link.receive("cohort")


@cache
def _seed_part() -> ProofSubmission:
    part = _pair("proof")[0]
    assert isinstance(part, ProofSubmission)
    return part


def _proof_words(data: bytes) -> None:
    """What server A makes of B's coin and words about one submission."""
    task, own = stage("proof").task, _seed_part()
    frames = [
        Frame(task.digest, SETUP_ATTEMPT, step, number, piece, last=True)
        for number, (step, piece) in enumerate(zip(_PROOF_STEPS, split(data), strict=False))
    ]
    link = PeerLink(_Frames(frames), task.digest, max_message_bytes=1 << 16, timeout_s=1)
    server: Any = SimpleNamespace(link=link, task=task, role=Role.SERVER_A)
    check = ByProof(server, ROUND, [CLIENT])
    check.take([own])
    assert check.decide().rejections.keys() == {CLIENT}, "random words were accepted"


_PROOF_STEPS = ("proof-coin/0", "proof/0")


def _proof_word_seeds() -> list[bytes]:
    proof = stage("proof").task.proof
    assert proof is not None
    words = bytes(8 * (proof.columns + 2))
    return [join(bytes(32), b"w" + words), join(bytes(32), b"d" + words)]


def _frames() -> list[bytes]:
    digest = stage().task.digest
    frames = [
        Frame(digest, SETUP_ATTEMPT, "cohort", number, b"x" * 8, last=number != 1)
        for number in range(4)
    ]
    return [join(*(frame_to_wire(frame) for frame in frames))]


MESSAGES: tuple[type[messages.Message], ...] = (
    messages.Position,
    messages.RosterProposal,
    messages.Cohort,
    messages.Verdict,
    messages.SetCheck,
    messages.Evidence,
    messages.CoinState,
    messages.CoinReveal,
    messages.ModelTransfer,
    messages.OpenedCount,
    messages.Fact,
    messages.SignedMessage,
    messages.WorkerCount,
    messages.Workers,
)


def _peer_message(data: bytes) -> None:
    message = MESSAGES[data[0] % len(MESSAGES)].from_bytes(data[1:]) if data else None
    match message:
        case messages.SignedMessage():
            _read_seal(message)
        case messages.Evidence():
            signed = None if message.signed is None else _read_seal(message.signed)
            start = history_start(stage().task.digest)
            adoptable(start, [message], signed)
        case messages.RosterProposal():
            claims = [
                Enrolment(ClientId(e.client), e.records, e.record_rate) for e in message.entries
            ]
            for claim in claims:
                claim.check(stage().task)
            Roster({claim.client: claim for claim in claims}).digest()
        case messages.Position() | messages.Cohort() | messages.Fact() | messages.OpenedCount():
            # Numbers end up in the database and in digests.
            for value in message.model_dump().values():
                if isinstance(value, int):
                    struct.pack("<q", value)
        case _:
            pass


_COHORT = Places(ClientId(f"ward-{number}") for number in range(5))


def _lists(data: bytes) -> None:
    """What the other server says of who is held, offered and alike."""
    kind, rest = data[:1], data[1:]
    match kind:
        case b"\0":
            Ask.from_bytes(rest)
        case b"\1":
            found = Offer.from_bytes(rest, _COHORT)
            assert Offer.from_bytes(found.to_bytes(_COHORT), _COHORT) == found
        case b"\2":
            alike = Alike.from_bytes(rest, _COHORT)
            assert Alike.from_bytes(alike.to_bytes(_COHORT), _COHORT) == alike
        case b"\3":
            held = HeldList.from_bytes(rest)
            assert HeldList.from_bytes(held.to_bytes()) == held
        case _:
            pass


def _list_seeds() -> list[bytes]:
    one, two = ClientId("ward-1"), ClientId("ward-4")
    digest = Digest.of(b"signed")
    return [
        b"\0" + Ask(patient=True).to_bytes(),
        b"\1" + Offer({one: digest, two: digest}).to_bytes(_COHORT),
        b"\2" + Alike((one, two)).to_bytes(_COHORT),
        b"\3" + HeldList((digest, *Rejection)).to_bytes(),
    ]


def _read_seal(message: messages.SignedMessage) -> messages.HeadBody:
    """As server B reads what server A signed."""
    return _seals(Role.SERVER_B).check(Role.SERVER_A, SignedKind.HEAD, message, messages.HeadBody)


def _seals(role: Role) -> ServerSignatures:
    session = stage().sessions[role]
    return ServerSignatures(session.task.digest, role, session.signer, session.verifier)


def _head() -> dict[str, Any]:
    """A's newest head, signed."""
    start = str(history_start(stage().task.digest))
    head = messages.HeadBody(
        task=str(stage().task.digest),
        version=0,
        attempt=1,
        valid_set="ab" * 32,
        length=1,
        head="cd" * 32,
        history=start,
    )
    return _seals(Role.SERVER_A).sign(SignedKind.HEAD, head).model_dump()


def _outside(data: bytes) -> None:
    JournalFile(stage().file(data, ".jsonl"), stage().task.digest).read()


def _outside_seeds() -> list[bytes]:
    path = stage().folder / "seed.jsonl"
    path.unlink(missing_ok=True)
    journal = JournalFile(path, stage().task.digest)
    journal.countersigned(1, 2, [CLIENT])
    journal.opened(1, 2)
    return [path.read_bytes()]


def _coin_key(data: bytes) -> None:
    path = stage().folder / "coin" / COIN_FILE
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    key = read_coin_key(path.parent, path.parent, stage().task.digest)
    CoinKey(key).opening(stage().task.digest, 0)


def _signed_opening(data: bytes) -> None:
    """What an owner makes of a server's word on an attempt, whatever was signed."""
    check_opening(CertificateVerifier(stage().client_identity), Role.SERVER_A, data)


def _signed_openings() -> list[bytes]:
    pen, digest = stage().sessions[Role.SERVER_A].signer, stage().task.digest.value
    body = pb.OpeningBody(task_digest=digest, client=CLIENT.name, version=1, attempt=2)
    stated = pb.OpeningBody(proof_opening=bytes(32), seed_holder="server-a")
    stated.MergeFrom(body)
    return [sign_body(pen, Role.SERVER_A, each).SerializeToString() for each in (body, stated)]


def _peer_messages() -> list[bytes]:
    digest, seal = "ab" * 32, _head()
    prepared = {"version": 1, "attempt": 1, "valid_set": digest, "bound": True}
    fact = {"version": 0, "attempt": 0, "voided": False, "clients": ["ward-1"]}
    values: list[dict[str, Any]] = [
        {
            "role": "server-a",
            "version": 1,
            "model": digest,
            "next_attempt": 2,
            "opened": 1,
            "ledger_length": 3,
            "ledger_head": digest,
            "nonce": digest,
        },
        {"entries": [{"client": "ward-1", "records": 9, "record_rate": 0.1}]},
        {"attempt": 1, "clients": [1, 3], "model": digest, "over": False},
        {"refusal": "no"},
        {"digest": digest, "count": 3},
        {"versions": 1, "facts": [fact], "signed": seal, "pending": {**fact, "attempt": 1}},
        {"commitment": seal, "known": digest, "held": seal, "discard": True},
        {"opening": seal},
        {"version": 1, "signed": seal, "own": seal},
        {"count": 1},
        fact,
        seal,
        {"count": 2},
        {"workers": [{"address": ":7311", "ready": True}]},
    ]
    values.append({**values[0], "prepared": prepared})
    kinds = (*MESSAGES, MESSAGES[0])
    return [
        bytes([number % len(MESSAGES)]) + kind.model_validate(value).to_bytes()
        for number, (kind, value) in enumerate(zip(kinds, values, strict=True))
    ]


# --- what servers say to a client ---------------------------------------------------------------

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


def _client(data: bytes, validation: str = "crypten") -> None:
    pieces = [*split(data), *[b""] * len(_REPLIES)]
    answers: dict[str, Any] = {}
    for (method, kind), piece in zip(_REPLIES, pieces, strict=False):
        answers[method] = parsed(kind, piece)
    answers["FetchModel"] = [answers["FetchModel"]]
    notices = [parsed(pb.Notice, piece) for piece in pieces[len(_REPLIES) :] if piece]
    if None not in [*answers.values(), *answers["FetchModel"], *notices]:
        stage(validation).take_part(answers | {"Watch": notices})


def _conversations(validation: str = "crypten") -> list[bytes]:
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


def _statement(data: bytes) -> None:
    check_statement(stage().verifier, Role.SERVER_A, data)


def _statements() -> list[bytes]:
    body = pb.StatementBody(task_digest=stage().task.digest.value, client=CLIENT.name)
    pen = CertificateSigner(stage().identity)
    return [sign_body(pen, Role.SERVER_A, body).SerializeToString()]


def _account(data: bytes) -> None:
    Account(stage().file(data, ".log"))


def _accounts() -> list[bytes]:
    path = stage().folder / "seed.log"
    if not path.exists():
        own = OwnAccount(stage().task, 0.2, 4.0, path, CLIENT)
        for version in range(3):
            own.charge(version, version)
    whole = path.read_bytes()
    return [whole, whole[:-20] + b"~\n" + whole]


def _pending(data: bytes) -> None:
    # With a right digest behind it: chance never finds one.
    path = stage().file(data + hashlib.sha256(data).digest(), ".pending")
    for check in ("crypten", "proof"):
        Pending(stage(check).task, CLIENT, path)


def _pending_seeds() -> list[bytes]:
    found = []
    for check in ("crypten", "proof"):
        path, x = stage().folder / "seed.pending", np.arange(D, dtype=np.int64)
        path.unlink(missing_ok=True)
        Pending(stage(check).task, CLIENT, path).keep(3, x, _pair(check), 0)
        found.append(path.read_bytes()[:-32])
    return found


def _error_text(data: bytes) -> None:
    """Whatever a hostile server ends a call with becomes an error of ours."""

    class Ended(grpc.RpcError):
        def code(self) -> grpc.StatusCode:
            codes = list(grpc.StatusCode)
            return codes[len(data) % len(codes)]

        def details(self) -> str:
            return data.decode(errors="replace")

    raise error_of("server A", "a.example:1", Ended())


# --- shares, models, tasks, settings ------------------------------------------------------------


def _held(data: bytes) -> None:
    """A spooled body whose file differs by ``data``: its bytes come back as they were, or none."""
    body = bytes(range(8 * D))
    file = Spool(stage().folder).begin(CLIENT)
    file.add(memoryview(body))
    kept = file.finish(Secret(bytes(32)))
    pairs = zip_longest(kept.path.read_bytes(), data, fillvalue=0)
    kept.path.write_bytes(bytes(one ^ other for one, other in pairs))
    try:
        assert b"".join(kept.pieces()) == body
    finally:
        kept.discard()


def _settings(data: bytes) -> None:
    kinds = (ServerASettings, ServerBSettings, DealerSettings, JoinSettings)
    kind = kinds[data[0] % len(kinds)] if data else DealerSettings
    settings = kind.load(stage().file(data[1:], ".toml"))
    Task.load(settings.task)
    Identity.load(settings.identity)


def _settings_seeds() -> list[bytes]:
    folder = stage().folder
    keys = folder / "keys" / "dealer"
    common: dict[str, object] = {"task": str(folder / "task.toml"), "identity": str(keys)}
    server = {**common, "listen": "[::1]:1", "dealer": "b:2", "state": "s"}
    client = {"client": "ward-1", "server_a": "a:1", "server_b": "b:1", "data": "x", "state": "s"}
    values: list[dict[str, object]] = [
        {**server, "server_b": "c:3", "linger": 1.5, "enrolment": "token"},
        {**server, "roster": "r.toml", "database": "sqlite://"},
        {"task": "t", "identity": "keys/dealer", "listen": "127.0.0.1:1"},
        {**common, **client, "epsilon_limit": 1.0, "record_rate": 0.5, "token": "t"},
    ]
    return [bytes([i]) + to_toml(value).encode() for i, value in enumerate(values)]


def _roster(data: bytes) -> None:
    Roster.load(stage().file(data, ".toml"), stage().task)


# --- certificates, lists, keys, signatures, tokens ----------------------------------------------


def _certificate(data: bytes) -> None:
    path = stage().file(data, ".pem")
    summarise(path)
    found = read_certificates(data, source="input")
    authorities = read_certificates(stage().identity.ca, source="ca")
    has_chain(found[0], found[1:], authorities, None)
    validity_fault(found[0])
    check_algorithm(found[0].public_key(), source="input")
    check_purpose(found[0], principal_of(found[0]), source="input")


def _identity_file(name: str) -> Callable[[bytes], None]:
    def parse(data: bytes) -> None:
        folder = stage().folder / "keys" / CLIENT.name
        path = folder / name
        before = path.read_bytes()
        try:
            path.write_bytes(data)
            Identity.load(folder)
        finally:
            path.write_bytes(before)

    return parse


def _identity_seeds(name: str) -> Callable[[], list[bytes]]:
    def seeds() -> list[bytes]:
        keys = stage().folder / "keys"
        return [(keys / who / name).read_bytes() for who in (CLIENT.name, "server-a")]

    return seeds


def _revocations(data: bytes) -> None:
    authorities = read_certificates(stage().identity.ca, source="ca")
    RevocationList(stage().file(data, ".pem"), authorities)
    read_revocation_lists(data, authorities, source="input")


def _request(data: bytes) -> None:
    read_request(data, Principal.client("ward-1"), source="input")


def _signature(data: bytes) -> None:
    value, *certificates = [*split(data), b""]
    signature = Signature(value, tuple(each for each in certificates if each))
    stage().verifier.check(signature, b"signed")
    stage().verifier.admit(signature, CLIENT)


def _signatures() -> list[bytes]:
    good = stage().signer.sign(b"signed")
    return [join(good.value, *good.certificates)]


def _token(data: bytes) -> None:
    token_digest(data.decode(errors="surrogateescape"))


# --- files of models, records, votes and runs ---------------------------------------------------


def _models() -> list[bytes]:
    task = stage().task
    path = stage().folder / "seed.safetensors"
    save_model(path, task, 1, np.arange(D, dtype=np.float64))
    w = np.ones(D)
    return [path.read_bytes(), save({"w": w}), save({"w": w.astype(np.float16)}, {"version": "1"})]


def _npz(**arrays: Any) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def _npy(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def _records() -> list[bytes]:
    x, y = np.ones((3, 2), dtype=np.float32), np.arange(3)
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", _npy(x))
        archive.writestr("y.npy", _npy(y))
    return [_npz(x=x, y=y), packed.getvalue(), _npy(x)]


_Request = TypeVar("_Request", Prediction, Loss)


def _asked(kind: type[_Request], *words: object) -> _Request:
    """What a command line asks of `precad certify`."""
    command = certify.commands[kind.__name__.lower()]
    return kind(**command.make_context(command.name, [str(word) for word in words]).params)


def _certify(suffix: str) -> Callable[[bytes], None]:
    def parse(data: bytes) -> None:
        path = stage().file(data[1:], suffix)
        given = path, "--confidence", 0.9
        match data[0] % 5 if data else 0:
            case 0:
                vote_intervals(_asked(Prediction, *given), None)
            case 1:
                vote_intervals(_asked(Prediction, *given, "--format", "labels"), None)
            case 2:
                vote_intervals(_asked(Prediction, *given, "--format", "scores"), None)
            case 3:
                true_labels(path, 3, None)
                vote_counts(read_array("votes", path, None, counted=True))
            case _:
                expectation(_asked(Loss, *given), None)

    return parse


def _arrays() -> list[bytes]:
    votes = np.array([[3, 1], [0, 4], [2, 2]])
    arrays = (votes, votes % 2, np.full((3, 2, 2), 0.5), np.arange(3), np.full((4, 2), 0.5))
    return [bytes([i]) + _npy(array) for i, array in enumerate(arrays)]


def _tables() -> list[bytes]:
    texts = ("a,b\n3,1\n0,4\n", "0,1\n1,1\n", "0,0,0.5,0.5\n0,1,1,0\n", "0\n1\n1\n", "0.5\n0.25\n")
    return [bytes([i]) + text.encode() for i, text in enumerate(texts)]


def _run(data: bytes) -> None:
    folder = stage().folder / "run"
    folder.mkdir(exist_ok=True)
    (folder / "summary.json").write_bytes(data)
    units: tuple[UnitName, ...] = get_args(UnitName)
    for unit in units:
        request = _asked(Prediction, "--runs", folder, "--unit", unit)
        Trained.of(request).guarantee("gdp", request)


def _run_arrays(data: bytes) -> None:
    folder = stage().folder / "run-arrays"
    folder.mkdir(exist_ok=True)
    (folder / "summary.json").write_bytes(_summaries()[0])
    for name in ("predictions.npy", "losses.npy"):
        (folder / name).write_bytes(data)
    run = FinishedRun.read(folder)
    if run.losses is not None:
        losses: Floats = run.losses
        if losses.min() >= 0 and losses.max() <= 1:
            expected_loss(losses, 1.0, 0.9, ScoreBound.HOEFFDING)


def _summaries() -> list[bytes]:
    inputs = {
        "task_digest": "ab" * 32,
        "noise_multiplier": 2.0,
        "record_clip": 1.0,
        "effective_record_clip": 1.001,
        "client_clip": 20.0,
        "client_rate": 1.0,
        "record_rate": 0.2,
        "rounds": 10,
        "delta": 1e-5,
        "clients": 10,
        "malicious_submission_soundness_bits": 40,
    }
    return [json.dumps({"certificate_inputs": inputs}).encode()]


def _toml_tasks() -> list[bytes]:
    return [task_to_toml(stage().task).encode(), (ROOT / "deploy" / "task.toml").read_bytes()]


def _file(parse: Callable[[Path], object], suffix: str) -> Callable[[bytes], None]:
    def parse_file(data: bytes) -> None:
        parse(stage().file(data, suffix))

    return parse_file


def _deal_seeds() -> list[bytes]:
    wanted = deal_request(stage().task, ROUND, 0, 2, bytes(64))
    return [request_to_wire(wanted, "server-b", bytes(16)).SerializeToString()]


def _deal_request(data: bytes) -> None:
    message = parsed(pb.DealRequest, data)
    if message is not None:
        request_from_wire(message)


def _request_seeds() -> list[bytes]:
    return [to_pem(make_request(new_key(), Principal.client("ward-1")))]


def _word_seeds() -> list[bytes]:
    words = deal_request(stage().task, ROUND, 0, 1, bytes(64)).correction_words * 8
    reply = pb.JoinReply(key=bytes(32), epoch=bytes(16), wire_version=WIRE_VERSION)
    pieces = [pb.DealPiece(words=bytes(words)), pb.DealPiece(words=bytes(8))]
    return [join(*(m.SerializeToString() for m in [reply, *pieces[:n]])) for n in (1, 2)]


TARGETS: dict[str, Target] = {
    "submission-header": Target(
        _header,
        lambda: [
            header_to_wire(part).SerializeToString()
            for check in ("crypten", "proof")
            for part in _pair(check)
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
    "proof-words": Target(_proof_words, _proof_word_seeds),
    "squares": Target(_squares, _square_requests),
    "square-request": Target(
        _square_request, lambda: [split(each)[0] for each in _square_requests()[:1]]
    ),
    "square-replies": Target(_square_replies, _square_answers),
    "enrol": Target(
        _call(pb.EnrolRequest, "aggregation", "Enrol", CLIENT.name),
        _requests(pb.EnrolRequest(client="ward-1", records=5, record_rate=0.1, token="x")),
    ),
    "watch": Target(
        _call(pb.WatchRequest, "aggregation", "Watch", CLIENT.name),
        _requests(pb.WatchRequest(client="ward-1")),
    ),
    "model-digest": Target(
        _call(pb.ModelRequest, "aggregation", "ModelDigest", CLIENT.name),
        _requests(pb.ModelRequest(), pb.ModelRequest(version=2**64 - 1)),
    ),
    "call-opening": Target(
        _call(pb.OpeningRequest, "aggregation", "Opening", CLIENT.name),
        _requests(pb.OpeningRequest(client="ward-1"), pb.OpeningRequest(attempt=2**64 - 1)),
    ),
    "call-statement": Target(
        _call(pb.StatementRequest, "aggregation", "Statement", CLIENT.name),
        _requests(pb.StatementRequest(client="ward-1")),
    ),
    "allow": Target(
        _call(pb.AllowRequest, "operation", "Allow", "operator"),
        _requests(
            pb.AllowRequest(word="attempts"),
            pb.AllowRequest(word="coin", version=2**64 - 1),
            pb.AllowRequest(word="x"),
        ),
    ),
    "opening": Target(_signed_opening, _signed_openings),
    "journal-file": Target(_outside, _outside_seeds),
    "coin-key": Target(_coin_key, lambda: [bytes(32), bytes(31)]),
    "fetch-model": Target(
        _call(pb.ModelRequest, "aggregation", "FetchModel", CLIENT.name),
        _requests(pb.ModelRequest()),
    ),
    "status": Target(
        _call(pb.StatusRequest, "operation", "Status", "operator"), _requests(pb.StatusRequest())
    ),
    "reports": Target(
        _call(pb.StatusRequest, "operation", "Reports", "operator"), _requests(pb.StatusRequest())
    ),
    "join": Target(
        _call(pb.JoinRequest, "dealing", "Join", "server-a"),
        _requests(pb.JoinRequest(role="server-a")),
    ),
    "leave": Target(
        _call(pb.LeaveRequest, "dealing", "Leave", "server-b"),
        _requests(pb.LeaveRequest(role="server-b")),
    ),
    "deal": Target(_call(pb.DealRequest, "dealing", "Deal", "server-b"), _deal_seeds),
    "deal-request": Target(_deal_request, _deal_seeds),
    "deal-words": Target(_deal_words, _word_seeds),
    "link": Target(_link, _frames),
    "peer-messages": Target(_peer_message, _peer_messages),
    "peer-lists": Target(_lists, _list_seeds),
    "client": Target(_client, _conversations),
    "client-with-proof": Target(
        lambda data: _client(data, "proof"), lambda: _conversations("proof")
    ),
    "statement": Target(_statement, _statements),
    "account": Target(_account, _accounts),
    "pending": Target(_pending, _pending_seeds),
    "error-text": Target(_error_text, lambda: [b"no", b"x" * 5000]),
    "spooled-body": Target(_held, lambda: [bytes(8 * D + 16)]),
    "model-vector": Target(lambda data: model_from_bytes(data, D), lambda: [bytes(8 * D)]),
    "task-toml": Target(_file(Task.load, ".toml"), _toml_tasks),
    "task-canonical": Target(read_task, lambda: [stage().task.canonical]),
    "settings": Target(_settings, _settings_seeds),
    "roster": Target(
        _roster, lambda: [b'[[clients]]\nclient = "ward-3"\nrecords = 120\nrecord_rate = 0.2\n']
    ),
    "certificate": Target(_certificate, _identity_seeds("cert.pem")),
    "identity-ca": Target(_identity_file("ca.pem"), _identity_seeds("ca.pem")),
    "identity-key": Target(_identity_file("key.pem"), _identity_seeds("key.pem")),
    "identity-crl": Target(_identity_file(REVOCATION_FILE), _identity_seeds(REVOCATION_FILE)),
    "revocations": Target(_revocations, _identity_seeds(REVOCATION_FILE)),
    "signing-request": Target(_request, _request_seeds),
    "signature": Target(_signature, _signatures),
    "token": Target(_token, lambda: [new_token().encode()]),
    "model-file": Target(
        _file(lambda path: load_model(path, stage().task), ".safetensors"), _models
    ),
    "client-data": Target(_file(read_client_data, ".npz"), _records),
    "certify-npy": Target(_certify(".npy"), _arrays),
    "certify-csv": Target(_certify(".csv"), _tables),
    "run-summary": Target(_run, _summaries),
    "run-arrays": Target(_run_arrays, lambda: [_npy(np.arange(3)), _npy(np.full(3, 0.5))]),
}


@cache
def seeds_of(name: str) -> Sequence[bytes]:
    """A target's seeds, the same throughout the process."""
    return TARGETS[name].seeds()
