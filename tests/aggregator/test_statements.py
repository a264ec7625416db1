"""A server's statements: what it said itself a moment ago costs it nothing when it is shown."""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import pytest
from sqlalchemy import Connection
from tests.conftest import TaskMaker
from tests.rig.meeting import ANN, BEN, A, B, Servers

from precad.aggregator.rounds.states import Opened
from precad.aggregator.rpc.notices import opening_of, statement_of
from precad.aggregator.training.model_store import StoredModel
from precad.aggregator.training.reconcile import remember
from precad.aggregator.training.session import LastSigned, Session, SignedKind
from precad.common.errors import NotOnOffer, PeerViolation
from precad.common.identifiers import ClientId
from precad.common.wire.messages import Statement
from precad.protos import precad_pb2 as pb


@pytest.fixture
def servers(make_task: TaskMaker, tmp_path: Path) -> Iterator[Servers]:
    made = Servers(make_task(8), tmp_path)
    yield made
    made.close()


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What was shown to a server that it didn't just take for its own."""
    seen: list[bytes] = []

    def noting(session: Session, client: ClientId, shown: bytes) -> Statement | None:
        seen.append(shown)
        return remember(session, client, shown)

    monkeypatch.setattr("precad.aggregator.rpc.notices.remember", noting)
    return seen


def test_its_last_word_to_an_owner_is_not_looked_up_again(
    servers: Servers, checked: list[bytes]
) -> None:
    session = servers.sessions[A]
    first = statement_of(session, ANN, None)
    statement_of(session, ANN, pb.Signed.FromString(first.SerializeToString()))
    assert checked == []


def test_after_a_restart_it_is(servers: Servers, checked: list[bytes]) -> None:
    first = statement_of(servers.sessions[A], ANN, None)
    servers.sessions[A].store.close()
    servers.open(A)
    statement_of(servers.sessions[A], ANN, first)
    assert checked == [first.SerializeToString()]


@pytest.mark.parametrize("field", ["body", "signature"])
def test_a_word_that_it_never_said_is_checked_and_refused(
    servers: Servers, checked: list[bytes], field: str
) -> None:
    session = servers.sessions[A]
    forged = pb.Signed.FromString(statement_of(session, ANN, None).SerializeToString())
    setattr(forged, field, getattr(forged, field)[:-1] + b"\0\1")
    with pytest.raises(PeerViolation):
        statement_of(session, ANN, forged)
    assert checked == [forged.SerializeToString()]


def test_what_it_said_to_one_owner_is_no_word_to_another(
    servers: Servers, checked: list[bytes]
) -> None:
    session = servers.sessions[A]
    of_ann, of_b = statement_of(session, ANN, None), statement_of(servers.sessions[B], BEN, None)
    for shown in (of_ann, of_b):
        with pytest.raises(PeerViolation):
            statement_of(session, BEN, shown)
    assert checked == [each.SerializeToString() for each in (of_ann, of_b)]


# --- while the training goes on ------------------------------------------------------------------


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
    shown = statement_of(session, ANN, None)
    assert servers.versions() == (2, 2)
    session.store.close()
    servers.open(A)
    statement_of(servers.sessions[A], ANN, shown)
    assert servers.charged() == [{ANN: 2, BEN: 2}] * 2


def test_a_charge_learned_from_the_other_while_an_owner_shows_it_counts_once(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers.attempt(0)
    backup = servers.copy(A)
    servers.attempt(1)
    servers.sessions[A].store.versions.confirm(2)
    shown = statement_of(servers.sessions[A], ANN, None)
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
    statement_of(session, ANN, shown)
    assert servers.charged() == [{ANN: 2, BEN: 2}] * 2


def test_what_is_signed_for_an_attempt_is_of_its_version_and_without_its_own_charge(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = servers.sessions[A]
    opened = Opened(0, 0, (ANN,), session.model_store.current.digest, frozenset())
    inbox = SimpleNamespace(opened=opened, proof_opening=lambda *_: None)
    object.__setattr__(session, "inbox", inbox)
    said = pb.OpeningBody.FromString(opening_of(session, ANN, 0).body)
    assert (said.version, said.charges) == (0, 0)
    charges_in = session.store.ledger.charges_in

    def meanwhile(version: int) -> dict[ClientId, int]:
        monkeypatch.undo()
        servers.attempt(0)
        inbox.opened = None
        return charges_in(version)

    monkeypatch.setattr(session.store.ledger, "charges_in", meanwhile)
    with pytest.raises(NotOnOffer):
        opening_of(session, ANN, 0)
    assert servers.charged()[0] == {ANN: 1, BEN: 1}


# --- what it remembers of its last words ---------------------------------------------------------


def test_the_last_word_of_each_kind_alone_is_known_for_the_owner_that_heard_it() -> None:
    signed = LastSigned()
    assert not signed.knows(ANN, "opening", b"")
    signed.note(ANN, "opening", b"1")
    signed.note(ANN, "statement", b"0")
    signed.note(ANN, "statement", b"2")
    kinds: tuple[SignedKind, ...] = ("opening", "statement")
    known = {each for each in product((ANN, BEN), kinds, (b"0", b"1", b"2")) if signed.knows(*each)}
    assert known == {(ANN, "opening", b"1"), (ANN, "statement", b"2")}
