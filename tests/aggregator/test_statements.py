"""What a server says to owners: its statements, which they show again, and its notices."""

from contextlib import AbstractContextManager
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import Connection
from tests.rig.keys import identity
from tests.rig.meeting import ANN, BEN, A, B, Servers

from precad.aggregator.rounds.states import Opened
from precad.aggregator.rpc import notices
from precad.aggregator.training.model_store import StoredModel
from precad.aggregator.training.reconcile import remember
from precad.aggregator.training.session import (
    Event,
    LastSigned,
    RoundDone,
    RoundOpened,
    Session,
    SignedKind,
    TrainingDone,
    TrainingPaused,
)
from precad.common.errors import NotOnOffer, PeerViolation, Rejection
from precad.common.identifiers import ClientId, Digest
from precad.common.identity.party_certificate import Principal
from precad.common.identity.signatures import CertificateSigner
from precad.common.wire.messages import Statement, read_notice, sign_body
from precad.protos import precad_pb2 as pb


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What was shown to a server that it didn't just take for its own."""
    seen: list[bytes] = []

    def noting(session: Session, client: ClientId, shown: bytes) -> Statement | None:
        seen.append(shown)
        return remember(session, client, shown)

    monkeypatch.setattr("precad.aggregator.rpc.notices.remember", noting)
    return seen


def test_its_last_word_is_not_looked_up_until_a_restart(
    servers: Servers, checked: list[bytes]
) -> None:
    session = servers.sessions[A]
    first = notices.statement_of(session, ANN, None)
    notices.statement_of(session, ANN, pb.Signed.FromString(first.SerializeToString()))
    assert checked == []
    session.store.close()
    servers.open(A)
    notices.statement_of(servers.sessions[A], ANN, first)
    assert checked == [first.SerializeToString()]
    # Of each owner and each kind it knows the last one.
    signed = LastSigned()
    kinds: tuple[SignedKind, ...] = ("opening", "statement")
    signed.note(ANN, "opening", b"1")
    for said in (b"0", b"2"):
        signed.note(ANN, "statement", said)
    known = {each for each in product((ANN, BEN), kinds, (b"0", b"1", b"2")) if signed.knows(*each)}
    assert known == {(ANN, "opening", b"1"), (ANN, "statement", b"2")}


def test_a_word_that_it_never_said_or_to_another_owner_is_checked_and_refused(
    servers: Servers, checked: list[bytes]
) -> None:
    session, of_b = servers.sessions[A], notices.statement_of(servers.sessions[B], BEN, None)
    first = notices.statement_of(session, ANN, None)
    other_body, other_signature = (pb.Signed.FromString(first.SerializeToString()) for _ in "12")
    other_body.body = first.body[:-1] + b"\0\1"
    other_signature.signature = first.signature[:-1] + b"\0\1"
    shown = [(ANN, other_body), (ANN, other_signature), (BEN, first), (BEN, of_b)]
    for client, word in shown:
        with pytest.raises(PeerViolation):
            notices.statement_of(session, client, word)
    assert checked == [word.SerializeToString() for _, word in shown]


def test_a_statement_signed_while_a_version_ends_counts_none_that_it_does_not_name(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shown after a restart it would count again, and the owner would share nothing more."""

    def over(attempt: int) -> None:
        servers.attempt(attempt)
        session.store.versions.confirm(attempt + 1)

    session = servers.sessions[A]
    get = session.model_store.get
    over(0)

    def meanwhile(version: int) -> StoredModel:
        monkeypatch.undo()
        over(1)
        return get(version)

    monkeypatch.setattr(session.model_store, "get", meanwhile)
    shown = notices.statement_of(session, ANN, None)
    assert servers.versions() == (2, 2)
    session.store.close()
    servers.open(A)
    notices.statement_of(servers.sessions[A], ANN, shown)
    assert servers.charged() == [{ANN: 2, BEN: 2}] * 2


def test_a_charge_learned_from_the_other_while_an_owner_shows_it_counts_once(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers.attempt(0)
    backup = servers.copy(A)
    servers.attempt(1)
    servers.sessions[A].store.versions.confirm(2)
    shown = notices.statement_of(servers.sessions[A], ANN, None)
    servers.put_back(A, backup, journal=True)
    session = servers.sessions[A]
    transaction = session.store.statements._transaction
    write = transaction.write

    def meanwhile() -> AbstractContextManager[Connection]:
        monkeypatch.undo()
        servers.mend()
        return write()

    assert servers.charged() == [{ANN: 1, BEN: 1}, {ANN: 2, BEN: 2}]
    monkeypatch.setattr(transaction, "write", meanwhile)
    notices.statement_of(session, ANN, shown)
    assert servers.charged() == [{ANN: 2, BEN: 2}] * 2


def test_what_is_signed_for_an_attempt_is_of_its_version_and_without_its_own_charge(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = servers.sessions[A]
    opened = Opened(0, 0, (ANN,), session.model_store.current.digest, frozenset())
    inbox = SimpleNamespace(opened=opened, proof_opening=lambda *_: None)
    object.__setattr__(session, "inbox", inbox)
    said = pb.OpeningBody.FromString(notices.opening_of(session, ANN, 0).body)
    assert (said.version, said.charges) == (0, 0)
    charges_in = session.store.ledger.charges_in

    def meanwhile(version: int) -> dict[ClientId, int]:
        monkeypatch.undo()
        servers.attempt(0)
        inbox.opened = None
        return charges_in(version)

    monkeypatch.setattr(session.store.ledger, "charges_in", meanwhile)
    with pytest.raises(NotOnOffer):
        notices.opening_of(session, ANN, 0)
    assert servers.charged()[0] == {ANN: 1, BEN: 1}


# --- notices, which have one size, whatever they say: on the wire nobody sees who was drawn ------

MODEL = Digest(b"\7" * 32)
SIGNER_A = identity(Principal.service(A))


def words(attempt: int) -> list[pb.Signed]:
    """The longest that a server signs for an owner."""
    names: dict[str, Any] = {"client": "w" * 63, "version": attempt, "attempt": attempt}
    names |= dict.fromkeys(("task_digest", "model_digest"), bytes(32))
    opening = pb.OpeningBody(**names, charges=attempt, opened=attempt)
    statement = pb.StatementBody(**names, charged=[attempt] * 8, counted=True)
    return [sign_body(CertificateSigner(SIGNER_A), A, body) for body in (opening, statement)]


def events(attempt: int) -> list[Event]:
    drawn = Opened(attempt, attempt, (ANN, BEN), MODEL, frozenset({ANN}))
    longest = max(Rejection, key=lambda reason: len(reason.value))
    return [
        RoundOpened(drawn, 60.0),
        RoundDone(drawn, frozenset({ANN}), {}, MODEL, 1),
        RoundDone(drawn, frozenset(), {ANN: longest}, MODEL, 1),
        TrainingDone(attempt, MODEL),
        TrainingPaused(),
    ]


@pytest.mark.parametrize("attempt", [0, 300, 2**62])
@pytest.mark.parametrize("room", [0, 2048, 6 * 2048])
def test_every_notice_has_the_same_size_for_everybody(attempt: int, room: int) -> None:
    sizes = {
        len(notices.notice_of(event, client, word, room).SerializeToString())
        for event, client, word in product(events(attempt), (ANN, BEN), (None, *words(attempt)))
    }
    assert sizes == {notices.NOTICE_BYTES + room}
    # Only who is drawn hears so.
    drawn = [notices.notice_of(events(attempt)[0], client).open.selected for client in (ANN, BEN)]
    assert drawn == [True, False]


def test_a_servers_word_has_room_whatever_it_says_and_one_too_long_is_left_for_who_asks() -> None:
    for word in (*words(0), *words(2**62)):
        assert (
            notices.notice_of(TrainingPaused(), ANN, word, notices.word_room(SIGNER_A.cert)).word
            == word
        )
        short = notices.notice_of(TrainingPaused(), ANN, word, word.ByteSize() - 1)
        assert not short.HasField("word")


def test_an_event_that_this_version_does_not_know_is_a_violation() -> None:
    """Both sides speak one wire version: who skipped it would wait for what never comes."""
    notice = pb.Notice.FromString(pb.Notice(padding=b"x").SerializeToString() + b"\xfa\x06\x01x")
    with pytest.raises(PeerViolation, match="a notice without an event"):
        read_notice(notice)
