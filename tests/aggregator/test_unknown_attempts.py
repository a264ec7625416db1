"""Attempts that both servers have forgotten, and that an owner or the dealer still knows of."""

from pathlib import Path
from typing import Any

import pytest
from tests.rig.keys import signatures, verifier
from tests.rig.meeting import ANN, BEN, CLEO, SERVERS, A, B, Servers
from tests.rig.norm_check import other

from precad.aggregator.rounds.aggregator import Aggregator
from precad.aggregator.rounds.start_attempt import NeedsOperators, doubt
from precad.aggregator.rpc.operation_service import OperationService
from precad.aggregator.server_messages import Fact
from precad.aggregator.store import compare_ledgers
from precad.aggregator.store.schema import AttemptState, Permission
from precad.aggregator.training.reconcile import charge_unknown, hear_of, meet
from precad.aggregator.training.session import Session
from precad.common.errors import PeerViolation, StorageFailure
from precad.common.identifiers import Role
from precad.common.wire.messages import check_opening, sign_body
from precad.protos import precad_pb2 as pb

NOBODY: Any = (None, None)
EACH_ONCE = {ANN: 1, BEN: 1, CLEO: 1}
OF_EITHER = pytest.mark.parametrize("role", SERVERS, ids=lambda role: role.value)


def settle(servers: Servers, cuts: tuple[int | None, int | None] = NOBODY) -> list[Any]:
    """A link's beginning: meet, then charge what nobody but others remembers."""

    def play(session: Session, own: Aggregator) -> None:
        meet(session, own.link)
        charge_unknown(session, own)

    return servers.on_a_link(play, cuts)


def forgotten(servers: Servers, attempts: int) -> tuple[dict[Role, Path], Any]:
    """So many, then both databases and journals are put back: copies of these, and the model."""
    backups = {role: servers.copy(role) for role in SERVERS}
    for number in range(attempts):
        servers.attempt(number)
    model = servers.sessions[A].model_store.theta()
    for role in SERVERS:
        servers.put_back(role, backups[role], journal=True)
    return backups, model


def hear(servers: Servers, attempt: int) -> None:
    """As from the dealer, which tells both servers its number."""
    for role in SERVERS:
        servers.sessions[role].store.attempts.hear(attempt)


def attempts_of(servers: Servers, version: int) -> list[list[int]]:
    ledgers = [servers.sessions[role].store.ledger for role in SERVERS]
    return [[fact.attempt for fact in ledger.facts(version)] for ledger in ledgers]


def opening(servers: Servers, role: Role, attempt: int) -> bytes:
    body = pb.OpeningBody(
        task_digest=servers.task.digest.value, client=ANN.name, version=0, attempt=attempt
    )
    return sign_body(signatures(servers.task.digest, role).signer, role, body).SerializeToString()


def test_what_the_dealer_alone_remembers_charges_all_whom_it_may_have_held(
    servers: Servers,
) -> None:
    backups, _ = forgotten(servers, 1)
    assert servers.charged() == [{}, {}]
    hear(servers, 0)
    assert settle(servers) == [None, None]
    assert servers.charged() == [EACH_ONCE] * 2
    assert servers.states(0) == (AttemptState.LEARNED,) * 2
    servers.agree()
    # A second release of this version is one more for each, and the operators' affair.
    for role in SERVERS:
        session = servers.sessions[role]
        assert session.store.ledger.charges_in(0).get(CLEO, 0) == 1
        assert session.progress.next_attempt == session.store.attempts.next_number() == 1
        assert "left already" in doubt(session.store, servers.task, 1, 0)
    # Once is enough.
    assert settle(servers) == [None, None]
    assert servers.charged() == [EACH_ONCE] * 2
    # Nor does it get lost again with the database alone.
    for role in SERVERS:
        servers.put_back(role, backups[role])
    assert servers.charged() == [EACH_ONCE] * 2


def test_what_an_owners_opening_alone_names_is_charged(servers: Servers) -> None:
    forgotten(servers, 2)
    for role in SERVERS:
        hear_of(servers.sessions[role], ANN, opening(servers, role, 1))
    assert settle(servers) == [None, None]
    # Nobody knows any more whether the two were of one version.
    assert attempts_of(servers, 0) == [[0, 1]] * 2
    assert servers.charged() == [EACH_ONCE] * 2
    assert servers.sessions[A].store.ledger.re_releases()[CLEO] == {1: 1}
    servers.agree()


@pytest.mark.parametrize("at_a", range(8))
@pytest.mark.parametrize("at_b", [None, 3])
def test_a_cut_between_the_two_ledgers_leaves_one_entry_an_attempt(
    servers: Servers, at_a: int, at_b: int | None
) -> None:
    forgotten(servers, 2)
    hear(servers, 1)
    settle(servers, (at_a, at_b))
    assert settle(servers) == [None, None]
    assert servers.charged() == [EACH_ONCE] * 2
    servers.agree()
    urls = [f"sqlite:///{servers.folder / role.value / 'state.db'}" for role in SERVERS]
    assert compare_ledgers(*urls) == ()
    assert attempts_of(servers, 0) == [[0, 1]] * 2


@OF_EITHER
@pytest.mark.parametrize("first", [0, 1])
def test_who_dies_before_its_entry_takes_it_over(servers: Servers, role: Role, first: int) -> None:
    """Where its version is over no other rule helps: this server has heard of the attempt."""
    _, model = forgotten(servers, 1)
    for each in SERVERS:
        # From an owner.
        servers.sessions[each].model_store.put(1, model)
    hear(servers, 1)
    store: Any = servers.sessions[role].store
    charge, calls = store.attempts.charge_unknown, iter(range(first + 1))

    def dies(fact: Fact) -> None:
        if next(calls) == first:
            raise StorageFailure("killed")
        charge(fact)

    store.attempts.charge_unknown = dies
    settle(servers)
    assert servers.charged()[0] != servers.charged()[1]
    store.attempts.charge_unknown = charge
    assert settle(servers) == [None, None]
    assert (attempts_of(servers, 0), attempts_of(servers, 1)) == ([[0]] * 2, [[1]] * 2)
    servers.agree()


def test_an_opening_of_another_server_or_owner_names_no_attempt(servers: Servers) -> None:
    for shown, client in ((opening(servers, B, 5), ANN), (opening(servers, A, 5), BEN)):
        with pytest.raises(PeerViolation):
            hear_of(servers.sessions[A], client, shown)
    assert servers.sessions[A].store.attempts.next_number() == 0
    assert check_opening(verifier(), A, opening(servers, A, 5)).attempt == 5


@OF_EITHER
def test_what_one_server_alone_says_charges_nobody(servers: Servers, role: Role) -> None:
    """It may have heard it from an owner, or have made it up: a thousand attempts."""
    servers.attempt(0)
    before = servers.charged()
    liar, honest = (servers.sessions[each].store for each in (role, other(role)))
    liar.attempts.hear(999)
    for error in settle(servers):
        assert isinstance(error, NeedsOperators)
        assert error.permission is Permission.CLAIMED
        assert "attempts 1 to 999" in str(error)
    assert servers.charged() == before
    # One operator's word isn't enough, nor that for fewer attempts.
    liar.versions.allow(Permission.CLAIMED, 1, 999)
    honest.versions.allow(Permission.CLAIMED, 1, 3)
    assert all(isinstance(each, NeedsOperators) for each in settle(servers))
    assert servers.charged() == before
    # What the dealer or an owner tells the other server too is charged, without a word.
    honest.attempts.hear(999)
    model = servers.sessions[other(role)].model_store.current.digest
    honest.attempts.begin(998, 1, 3, model)
    assert settle(servers) == [None, None]
    assert servers.charged() == [{ANN: 2, BEN: 2, CLEO: 1}] * 2


def test_one_word_has_three_attempts_charged_and_others_as_many_more(servers: Servers) -> None:
    """By what operators call; whatever a server claims between their look and their word."""
    servers.attempt(0)
    servers.sessions[A].store.attempts.hear(7)
    offices = {role: OperationService(servers.sessions[role]) for role in SERVERS}
    for reached in (3, 6, 9):
        assert all(isinstance(each, NeedsOperators) for each in settle(servers))
        assert servers.charged() == [{ANN: 1, BEN: 1}] * 2
        offices[A]._allow(Permission.CLAIMED, 1)
        assert offices[B]._allow(Permission.CLAIMED, 1) == reached
    assert settle(servers) == [None, None]
    assert servers.charged() == [{ANN: 2, BEN: 2, CLEO: 1}] * 2
    servers.agree()
    # A version's other attempts take a word each time: it doesn't add up.
    assert [offices[B]._allow(Permission.ATTEMPTS, 1) for _ in range(2)] == [10, 10]


@OF_EITHER
def test_numbers_that_one_server_says_to_be_used_are_no_evidence_later(
    servers: Servers, role: Role, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At one link it has used a thousand attempts, at the next it has forgotten them."""
    servers.attempt(0)
    before = servers.charged()
    monkeypatch.setattr(servers.sessions[role].store.attempts, "unused_here", lambda: 1000)
    assert settle(servers) == [None, None]
    monkeypatch.undo()
    settle(servers)
    assert servers.charged() == before
    assert servers.sessions[other(role)].store.attempts.next_number() == 1
