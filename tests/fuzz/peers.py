"""What one server says to the other, as bytes; and its own files of secrets."""

import struct
from collections.abc import Iterable
from functools import cache, partial
from types import SimpleNamespace
from typing import cast

from tests.fuzz.stage import CLIENT, ROUND, join, pair, split, stage, target
from tests.rig.aggregators import head_of
from tests.rig.documents import Document

from precad.aggregator import server_messages as messages
from precad.aggregator.collect.matching import Alike, Ask, HeldList, Offer, Places
from precad.aggregator.peer_link import SETUP_ATTEMPT, Frame, FrameTransport, PeerLink
from precad.aggregator.rounds.aggregator import CoinKey
from precad.aggregator.rpc.peer_transport import frame_from_wire, frame_to_wire
from precad.aggregator.server_messages import ServerSignatures
from precad.aggregator.store.journal_file import JournalFile
from precad.aggregator.store.ledger import history_start
from precad.aggregator.training.recovery import adoptable
from precad.aggregator.validate.check_by_proof import ByProof
from precad.aggregator.validate.validation import Server
from precad.common.errors import PeerViolation, Rejection
from precad.common.identifiers import ClientId, Digest, Role
from precad.common.identity.credentials import COIN_FILE, read_coin_key
from precad.common.identity.signatures import CertificateVerifier, SignedKind
from precad.common.roster import Enrolment, Roster
from precad.common.task import Task
from precad.common.wire.messages import Opening, sign_body
from precad.norm_check.proof_submission import ProofSubmission
from precad.protos import precad_pb2 as pb


def _link_of(frames: Iterable[Frame], task: Task, most: int) -> PeerLink:
    left = iter(frames)

    def get(timeout_s: float) -> Frame:  # noqa: ARG001
        for frame in left:
            return frame
        raise PeerViolation("no more frames")

    transport = SimpleNamespace(get=get, put=lambda _: None, require_alive=lambda: None)
    end = cast("FrameTransport", transport)
    return PeerLink(
        transport=end, task=task.digest, max_message_bytes=most, timeout_s=1
    )


def _frames() -> list[bytes]:
    frames = [
        Frame(
            task=stage().task.digest,
            attempt=SETUP_ATTEMPT,
            step="cohort",
            sequence=number,
            payload=b"x" * 8,
            last=number != 1,
        )
        for number in range(4)
    ]
    return [join(*(frame_to_wire(frame) for frame in frames))]


@target("link", _frames)
def _link(data: bytes) -> None:
    link = _link_of([frame_from_wire(piece) for piece in split(data)], stage().task, 64)
    while True:
        link.receive("cohort")


_own_pair = cache(partial(pair, "proof"))


def _proof_word_seeds() -> list[bytes]:
    proof = stage("proof").task.proof
    assert proof is not None
    words = bytes(8 * (proof.columns + 2))
    return [join(bytes(32), b"w" + words), join(bytes(32), b"d" + words)]


@target("proof-words", _proof_word_seeds)
def _proof_words(data: bytes) -> None:
    """What server A makes of B's coin and words about one submission."""
    task, own = stage("proof").task, _own_pair()[0]
    pieces = enumerate(zip(("proof-coin/0", "proof/0"), split(data), strict=False))
    frames = [
        Frame(
            task=task.digest,
            attempt=SETUP_ATTEMPT,
            step=s,
            sequence=n,
            payload=p,
            last=True,
        )
        for n, (s, p) in pieces
    ]
    link = _link_of(frames, task, 1 << 16)
    server = SimpleNamespace(
        link=link,
        task=task,
        role=Role.SERVER_A,
        bound_of=lambda _: task.mechanism.bound,
    )
    check = ByProof(cast("Server", server), ROUND, [CLIENT])
    check.take([cast("ProofSubmission", own)])
    assert check.decide().rejections.keys() == {CLIENT}, "random words were accepted"


MESSAGES: tuple[type[messages.Message], ...] = (
    *(messages.Position, messages.RosterProposal, messages.Cohort, messages.Verdict),
    *(messages.SetCheck, messages.Evidence, messages.CoinState, messages.CoinReveal),
    *(
        messages.ModelTransfer,
        messages.OpenedCount,
        messages.Fact,
        messages.SignedMessage,
    ),
    *(messages.WorkerCount, messages.Workers),
)


def _peer_messages() -> list[bytes]:
    task = stage().task.digest
    head = head_of(task, attempt=1, history=history_start(task).value)
    seal = _seals(Role.SERVER_A).sign(SignedKind.HEAD, head).model_dump()
    digest = b"\xab" * 32
    prepared = {"version": 1, "attempt": 1, "valid_set": digest, "bound": True}
    fact = {"version": 0, "attempt": 0, "voided": False, "clients": ["ward-1"]}
    position = {"role": "server-a", "version": 1, "next_attempt": 2, "opened": 1}
    position |= {"ledger_length": 3} | dict.fromkeys(
        ("model", "ledger_head", "nonce"), digest
    )
    values: list[Document] = [
        position,
        {"entries": [{"client": "ward-1", "records": 9, "record_rate": 0.1}]},
        {"attempt": 1, "clients": [1, 3], "model": digest, "over": False},
        {"refusal": "no"},
        {"digest": digest, "count": 3},
        {
            "versions": 1,
            "facts": [fact],
            "signed": seal,
            "pending": {**fact, "attempt": 1},
        },
        {"commitment": seal, "known": digest, "held": seal, "discard": True},
        {"opening": seal},
        {"version": 1, "signed": seal, "own": seal},
        {"count": 1},
        fact,
        seal,
        {"count": 2},
        {"workers": [{"address": ":7311", "ready": True}]},
        position | {"prepared": prepared},
    ]
    kinds = (*MESSAGES, MESSAGES[0])
    return [
        bytes([number % len(MESSAGES)]) + kind.model_validate(value).to_bytes()
        for number, (kind, value) in enumerate(zip(kinds, values, strict=True))
    ]


@target("peer-messages", _peer_messages)
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
                Enrolment(ClientId(e.client), e.records, e.record_rate)
                for e in message.entries
            ]
            for claim in claims:
                claim.check(stage().task)
            Roster({claim.client: claim for claim in claims}).digest()
        case (
            messages.Position()
            | messages.Cohort()
            | messages.Fact()
            | messages.OpenedCount()
        ):
            # Numbers end up in the database and in digests.
            for value in message.model_dump().values():
                if isinstance(value, int):
                    struct.pack("<q", value)


_COHORT = Places(ClientId(f"ward-{number}") for number in range(5))


def _list_seeds() -> list[bytes]:
    one, two = ClientId("ward-1"), ClientId("ward-4")
    digest, steps = Digest.of(b"signed"), _COHORT.steps([one, two])
    return [
        b"\0" + Ask(patient=True).to_bytes(),
        b"\1" + Offer(clients=steps, signed=(digest.value,) * 2).to_bytes(),
        b"\2" + Alike(clients=steps).to_bytes(),
        b"\3" + HeldList.listing([digest.value, *Rejection]).to_bytes(),
    ]


@target("peer-lists", _list_seeds)
def _lists(data: bytes) -> None:
    rest = data[1:]
    match data[:1]:
        case b"\0":
            Ask.from_bytes(rest)
        case b"\1":
            offer = Offer.from_bytes(rest)
            assert _COHORT.steps(_COHORT.clients(offer.clients)) == offer.clients
            assert Offer.from_bytes(offer.to_bytes()) == offer
        case b"\2":
            alike = Alike.from_bytes(rest)
            assert _COHORT.steps(_COHORT.clients(alike.clients)) == alike.clients
        case b"\3":
            held = HeldList.from_bytes(rest)
            assert HeldList.from_bytes(held.to_bytes()) == held


def _read_seal(message: messages.SignedMessage) -> messages.HeadBody:
    return _seals(Role.SERVER_B).check(
        Role.SERVER_A, SignedKind.HEAD, message, messages.HeadBody
    )


def _seals(role: Role) -> ServerSignatures:
    session = stage().sessions[role]
    return ServerSignatures(
        task=session.task.digest,
        role=role,
        signer=session.signer,
        verifier=session.verifier,
    )


def _journals() -> list[bytes]:
    path = stage().folder / "seed.jsonl"
    path.unlink(missing_ok=True)
    journal = JournalFile(path, stage().task.digest)
    journal.countersigned(1, 2, [CLIENT])
    journal.opened(1, 2)
    return [path.read_bytes()]


@target("journal-file", _journals)
def _journal(data: bytes) -> None:
    JournalFile(stage().file(data, ".jsonl"), stage().task.digest).read()


@target("coin-key", lambda: [bytes(32), bytes(31)])
def _coin_key(data: bytes) -> None:
    path = stage().folder / "coin" / COIN_FILE
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    key = read_coin_key(path.parent, path.parent, stage().task.digest)
    CoinKey(key).opening(stage().task.digest, 0)


def _signed_openings() -> list[bytes]:
    pen, digest = stage().sessions[Role.SERVER_A].signer, stage().task.digest.value
    body = pb.OpeningBody(task_digest=digest, client=CLIENT.name, version=1, attempt=2)
    stated = pb.OpeningBody(proof_opening=bytes(32), seed_holder="server-a")
    stated.MergeFrom(body)
    return [
        sign_body(pen, Role.SERVER_A, each).SerializeToString()
        for each in (body, stated)
    ]


@target("opening", _signed_openings)
def _signed_opening(data: bytes) -> None:
    """What an owner makes of a server's word on an attempt, whatever was signed."""
    Opening.checked(CertificateVerifier(stage().client_identity), Role.SERVER_A, data)
