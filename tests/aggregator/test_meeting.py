"""Two servers meet on a new link: what they compare, learn and remedy, and whom they
charge."""

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest.mock import DEFAULT, Mock

import pytest
from tests.rig.aggregators import head_of, link_over
from tests.rig.documents import Document
from tests.rig.keys import earlier_identity, identity, revoke, signatures, verifier
from tests.rig.meeting import ANN, BEN, CLEO, SERVERS, VALID_SET, A, B, Cuts, Servers
from tests.rig.memory_link import memory_pair
from tests.rig.norm_check import other

from precad.aggregator import server_messages
from precad.aggregator.rounds.aggregator import Aggregator
from precad.aggregator.rounds.start_attempt import NeedsOperators, doubt
from precad.aggregator.rpc.notices import statement_of
from precad.aggregator.rpc.operation_service import OperationService
from precad.aggregator.server_messages import Fact, HeadBody, ModelBody
from precad.aggregator.store import Store, compare_ledgers
from precad.aggregator.store.schema import AttemptState, Permission
from precad.aggregator.training.reconcile import charge_unknown, hear_of, meet, remember
from precad.aggregator.training.recovery import Recovery, Remedy
from precad.aggregator.training.session import Session
from precad.common.errors import PeerUnavailable, PeerViolation, StorageFailure
from precad.common.identifiers import ClientId, Digest, Role
from precad.common.identity.party_certificate import Principal
from precad.common.identity.signatures import (
    CertificateSigner,
    CertificateVerifier,
    SignedKind,
)
from precad.common.model import ModelVector
from precad.common.submission import Signer
from precad.common.wire.messages import sign_body
from precad.protos import precad_pb2 as pb

MODEL_FILE = "model.safetensors"
OF_EITHER = pytest.mark.parametrize("role", SERVERS, ids=lambda role: role.value)


def test_servers_that_stand_alike_have_nothing_to_do(servers: Servers) -> None:
    for number in range(3):
        assert servers.attempt(number) == [None, None]
        assert servers.meet() == [Recovery(Remedy.NOTHING)] * 2
    mended(servers, {ANN: 3, BEN: 3}, (3, 3))
    # The newest attempt and the larger count are both servers'.
    a, b = (servers.sessions[role] for role in SERVERS)
    begun(a.store, 6, 3)
    for count in (5, 6):
        b.store.versions.count_opened(3, count)
    servers.meet()
    for session in (a, b):
        assert (session.progress.next_attempt, session.store.versions.opened(3)) == (
            7,
            2,
        )


def begun(store: Store, number: int, version: int) -> None:
    store.attempts.begin(
        attempt=number, version=version, cohort_size=0, model=VALID_SET
    )
    store.attempts.abandon_open()


def greeted(servers: Servers, **said: object) -> None:
    a = servers.sessions[A]
    ours, theirs = (
        link_over(end, servers.task, timeout_s=0.1) for end in memory_pair()
    )
    position: Document = {
        "role": "server-b",
        "model": a.model_store.current.digest.value,
    }
    position |= dict.fromkeys(("version", "next_attempt", "opened", "ledger_length"), 0)
    position |= dict.fromkeys(("ledger_head", "nonce"), bytes(32))
    theirs.send("position", server_messages.Position(**position | said).to_bytes())
    meet(a, ours)


def test_no_more_attempts_were_opened_than_either_server_knows_of(
    servers: Servers,
) -> None:
    a = servers.sessions[A]
    begun(a.store, 6, 0)
    with pytest.raises(PeerViolation, match=r"8 opened attempts .* at most 7"):
        greeted(servers, next_attempt=3, opened=8)
    with pytest.raises(PeerViolation, match="server-a too"):
        greeted(servers, role="server-a", opened=7)
    assert a.store.versions.opened(0) == 0
    # It may know of attempts by this server alone.
    with pytest.raises(PeerUnavailable, match="sent nothing"):
        greeted(servers, next_attempt=3, opened=7)
    assert a.store.versions.opened(0) == 7


def test_histories_are_compared_under_a_salt(servers: Servers) -> None:
    """Whoever overhears greetings can test no guess of a cohort, and can replay
    none."""
    servers.attempt(0)
    servers.frames.clear()
    for _ in range(3):
        servers.meet()
    seen = [frame.payload for frame in servers.frames if frame.step == "history"]
    assert (len(seen), len(set(seen))) == (6, 3)
    assert servers.sessions[A].store.ledger.history(1).value not in seen


def mended(
    servers: Servers, charged: dict[ClientId, int], versions: tuple[int, int]
) -> None:
    assert servers.mend() == [Remedy.NOTHING] * 2
    assert (servers.charged(), servers.versions()) == ([charged] * 2, versions)
    servers.agree()


@OF_EITHER
@pytest.mark.parametrize("further", [1, 2])
@pytest.mark.parametrize("cut", range(1, 4))
def test_who_stands_two_versions_back_learns_the_charges_before_it_catches_up(
    servers: Servers, role: Role, further: int, cut: int
) -> None:
    """With its own attempt still pending both histories look alike, and it lacks
    some."""
    servers.attempt(0)
    servers.attempt(1, cuts=(cut, cut))
    backup = servers.copy(role)
    assert servers.mend() == [Remedy.NOTHING] * 2
    for number in range(2, 2 + further):
        servers.attempt(number)
    servers.put_back(role, backup, journal=True)
    rounds = 2 + further
    mended(servers, {ANN: rounds, BEN: rounds}, (rounds, rounds))


@pytest.mark.parametrize("at_a", range(4))
@pytest.mark.parametrize("at_b", range(4))
def test_a_release_goes_on_where_it_was_cut(
    servers: Servers, at_a: int, at_b: int
) -> None:
    """Before each of head, countersignature, noisy share and model, on either side."""
    first = servers.sessions[A].model_store.current.digest
    servers.attempt(0, cuts=(at_a, at_b))
    mended(servers, {ANN: 1, BEN: 1}, (1, 1))
    assert servers.states(0) == (AttemptState.DONE,) * 2
    assert first != servers.sessions[A].model_store.current.digest
    # What left, before the cut and after, is one noisy share of each.
    left = {f.payload for f in servers.frames if f.step == "noisy-share"}
    assert left == {bytes([value, *bytes(7)]) * 8 for value in (3, 4)}


@OF_EITHER
@pytest.mark.parametrize("sent", [*range(8), None])
def test_what_one_prepared_alone_both_void(
    servers: Servers, role: Role, sent: int | None
) -> None:
    """The one that isn't prepared says so durably, then the other voids."""
    servers.attempt(0, prepared=(role,))
    assert {each.remedy for each in servers.meet()} == {
        Remedy.VOID,
        Remedy.CONFIRM_VOID,
    }
    servers.mend(cuts=(sent, sent))
    # Never is it voided where it was prepared and open where it wasn't.
    states = dict(zip(SERVERS, servers.states(0), strict=True))
    if states[role] is AttemptState.VOIDED:
        assert states[other(role)] is AttemptState.VOIDED
    mended(servers, {}, (0, 0))
    assert servers.states(0) == (AttemptState.VOIDED,) * 2
    # The version goes on with another attempt.
    servers.attempt(1)
    mended(servers, {ANN: 1, BEN: 1}, (1, 1))


@OF_EITHER
def test_what_one_countersigned_alone_waits_for_operators(
    servers: Servers, role: Role
) -> None:
    servers.attempt(0)
    backup = servers.copy(role)
    # Cut before either noisy share: both are bound, neither is done.
    servers.attempt(1, cuts=(2, 2))
    assert servers.states(1) == (AttemptState.SENT, AttemptState.SENT)
    servers.put_back(role, backup, journal=True)
    assert servers.states(1)[SERVERS.index(role)] is None
    stores = {each: servers.sessions[each].store for each in SERVERS}

    def allow(*roles: Role, attempt: int = 1) -> None:
        for each in roles:
            stores[each].versions.allow(Permission.WRITE_OFF, 1, attempt)

    for words in ((), (A,), (B,)):
        allow(*SERVERS, attempt=-1)
        allow(*words)
        for error in servers.mend():
            assert isinstance(error, NeedsOperators), words
            assert (error.permission, error.version) == (Permission.WRITE_OFF, 1)
        # The charge stands at once on both, whatever the operators say.
        assert servers.charged() == [{ANN: 2, BEN: 2}] * 2
    # A word for an older attempt reaches this one no more than none.
    allow(*SERVERS, attempt=0)
    assert all(isinstance(error, NeedsOperators) for error in servers.mend())
    allow(*SERVERS)
    mended(servers, {ANN: 2, BEN: 2}, (1, 1))
    states = dict(zip(SERVERS, servers.states(1), strict=True))
    assert states == {other(role): AttemptState.WRITTEN_OFF, role: AttemptState.LEARNED}
    # Released again, the version costs those who may have left twice a second release.
    servers.attempt(2, valid=(BEN, CLEO))
    assert servers.charged() == [{ANN: 2, BEN: 2, CLEO: 1}] * 2
    assert [store.ledger.re_releases() for store in stores.values()] == [
        {BEN: {1: 1}}
    ] * 2
    servers.agree()


@OF_EITHER
@pytest.mark.parametrize(
    "kept", ["journal", "model", "nothing", "signed before a renewal"]
)
def test_who_was_put_back_learns_what_it_signed(
    servers: Servers, role: Role, kept: str
) -> None:
    """The ledger noticed nothing once, and the next charges stood beside three lost
    ones."""
    servers.attempt(0)
    backup = servers.copy(role)
    servers.attempt(1, prepared=(A,))
    servers.mend()
    for number in (2, 3):
        servers.attempt(number, valid=(ANN, CLEO))
    if kept == "model":
        shutil.copy(servers.folder / role.value / MODEL_FILE, backup / MODEL_FILE)
    elif "renewal" in kept:
        as_signed_earlier(servers, role)
    servers.put_back(role, backup, journal=kept != "journal")
    everything = {ANN: 3, BEN: 1, CLEO: 2}
    known = everything if kept == "journal" else {ANN: 1, BEN: 1}
    assert servers.charged()[SERVERS.index(role)] == known
    if kept == "journal":
        # The model went back too: it is taken from the other, on the own signature.
        assert sorted(servers.versions()) == [1, 3]
        assert {each.remedy for each in servers.meet()} == {
            Remedy.SERVE,
            Remedy.CATCH_UP,
        }
    mended(servers, everything, (3, 3))
    # Number 1 was voided: forgotten, and learned again as that.
    (voided,) = servers.sessions[role].store.ledger.facts(1)[:1]
    assert voided == Fact(version=1, attempt=1, voided=True)
    # No number is used twice, whoever forgot it.
    assert all(
        session.progress.next_attempt >= 4 for session in servers.sessions.values()
    )
    servers.attempt(4)
    servers.agree()


@OF_EITHER
def test_a_model_that_one_server_has_again_is_waited_for(
    servers: Servers, role: Role
) -> None:
    """Both were put back: nobody has to restore anything, and the next look finds
    it."""
    _, lost = forgotten(servers, 2)
    servers.sessions[role].model_store.put(2, lost)
    errors = servers.mend()
    assert {type(error) for error in errors} == {PeerUnavailable}
    assert "waits for an owner to give it" in str(errors)
    servers.sessions[other(role)].model_store.put(2, lost)
    assert servers.mend() == [Remedy.NOTHING] * 2


@OF_EITHER
def test_one_servers_word_charges_one_attempt_a_version(
    servers: Servers, role: Role
) -> None:
    """It claims, link after link, that another attempt may have left."""
    for attempt in range(5):
        claim = Fact(version=0, attempt=attempt, voided=False, clients=(ANN.name,))
        servers.sessions[role].store.attempts.learn([claim])
        servers.meet()
    assert servers.sessions[other(role)].store.ledger.charges_in(0).get(ANN, 0) <= 1


@pytest.mark.parametrize("shows", ["its own head", "a head of another task"])
def test_a_charge_that_a_server_never_signed_is_not_learned(
    servers: Servers, shows: str
) -> None:
    servers.attempt(0)
    shown = servers.sessions[A].store
    shown.attempts.learn(
        [Fact(version=0, attempt=7, voided=False, clients=(CLEO.name,))]
    )
    if another := "another" in shows:
        pen = signatures(servers.task.digest, B)
        foreign = pen.sign(SignedKind.HEAD, head_of(Digest(bytes(32))))
        shown.attempts.their_head = lambda: foreign  # type: ignore[method-assign]
    _, at_b = servers.meet()
    assert isinstance(at_b, PeerViolation)
    assert ("another task" if another else "different charges") in str(at_b)
    assert servers.charged()[1] == {ANN: 1, BEN: 1}


@pytest.mark.parametrize("lie", ["bytes", "digest", "signature"])
def test_a_model_that_this_server_never_signed_is_not_taken(
    servers: Servers, lie: str
) -> None:
    backup = servers.copy(B)
    servers.attempt(0)
    servers.put_back(B, backup)
    a = servers.sessions[A]
    if lie == "signature":
        # A's own word in place of B's.
        own = signatures(servers.task.digest, A)
        signed = a.store.versions.model_seal(1)
        assert signed is not None
        body = own.check(B, SignedKind.MODEL, signed, ModelBody)
        a.store.versions.keep_model_seal(1, own.sign(SignedKind.MODEL, body))
    else:
        theta = a.model_store.theta()
        theta[0] += 1
        a.model_store.put(1, theta)
    at_a, at_b = servers.mend()
    # A server that holds no signature over its model doesn't offer it.
    assert isinstance(at_b, PeerViolation if lie == "signature" else PeerUnavailable)
    assert isinstance(at_a, PeerUnavailable)
    assert servers.versions() == (1, 0)


def test_a_model_without_its_charges_is_not_taken(servers: Servers) -> None:
    """Model and ledger belong together: a model from after doesn't go on a ledger from
    before."""
    servers.attempt(0)
    backups = {role: servers.copy(role) for role in SERVERS}
    servers.attempt(1)
    signed = servers.sessions[A].store.versions.model_seal(2)
    assert signed is not None
    shutil.copy(servers.folder / A.value / MODEL_FILE, backups[A] / MODEL_FILE)
    for role, backup in backups.items():
        servers.put_back(role, backup, journal=True)
    # Not even A's word that B has signed it is kept; and with it B still has no charge
    # for it.
    at_a, _ = servers.mend()
    assert "its signature over it isn't kept" in str(at_a)
    servers.sessions[A].store.versions.keep_model_seal(2, signed)
    _, at_b = servers.mend()
    assert isinstance(at_b, PeerViolation)
    assert "don't belong together" in str(at_b)
    assert servers.versions() == (2, 1)


EACH_ONCE = {ANN: 1, BEN: 1, CLEO: 1}


def settle(servers: Servers, cuts: Cuts = (None, None)) -> list[object]:
    """A link's beginning: meet, then charge what nobody but others remembers."""

    def play(session: Session, own: Aggregator) -> None:
        meet(session, own.link)
        charge_unknown(session, own)

    return servers.on_a_link(play, cuts)


def forgotten(servers: Servers, attempts: int) -> tuple[dict[Role, Path], ModelVector]:
    """So many, then both databases and journals are put back: copies of these, and the
    model."""
    backups = {role: servers.copy(role) for role in SERVERS}
    for number in range(attempts):
        servers.attempt(number)
    model = servers.sessions[A].model_store.theta()
    for role in SERVERS:
        servers.put_back(role, backups[role], journal=True)
    return backups, model


def hear(servers: Servers, attempt: int) -> None:
    for role in SERVERS:
        servers.sessions[role].store.attempts.hear(attempt)


def attempts_of(servers: Servers, version: int) -> list[list[int]]:
    ledgers = [servers.sessions[role].store.ledger for role in SERVERS]
    return [[fact.attempt for fact in ledger.facts(version)] for ledger in ledgers]


def for_ann(
    servers: Servers,
    kind: Callable[..., pb.OpeningBody | pb.StatementBody],
    attempt: int,
    role: Role = A,
    pen: Signer | None = None,
    **more: object,
) -> pb.Signed:
    """What ``role`` signed for her in version 0, with its pen of today unless another
    is given."""
    names: Document = {
        "task_digest": servers.task.digest.value,
        "client": ANN.name,
        "version": 0,
    }
    pen = pen or signatures(servers.task.digest, role).signer
    return sign_body(pen, role, kind(**names, attempt=attempt, **more))


def opening(servers: Servers, role: Role, attempt: int) -> bytes:
    return for_ann(servers, pb.OpeningBody, attempt, role).SerializeToString()


def test_what_the_dealer_alone_remembers_charges_all(servers: Servers) -> None:
    """Whom it may have held."""
    backups, _ = forgotten(servers, 1)
    assert servers.charged() == [{}, {}]
    hear(servers, 0)
    settled(servers, [[0]] * 2)
    assert servers.states(0) == (AttemptState.LEARNED,) * 2
    # A second release of this version is one more for each, and the operators' affair.
    for role in SERVERS:
        session = servers.sessions[role]
        assert session.store.ledger.charges_in(0).get(CLEO, 0) == 1
        assert (
            session.progress.next_attempt == session.store.attempts.next_number() == 1
        )
        assert "left already" in doubt(
            session.store, servers.task, attempt=1, version=0
        )
    # Once is enough.
    settled(servers, [[0]] * 2)
    # Nor does it get lost again with the database alone.
    for role in SERVERS:
        servers.put_back(role, backups[role])
    assert servers.charged() == [EACH_ONCE] * 2


def settled(servers: Servers, attempts: list[list[int]]) -> None:
    assert settle(servers) == [None, None]
    assert (servers.charged(), attempts_of(servers, 0)) == ([EACH_ONCE] * 2, attempts)
    servers.agree()


def test_what_an_owners_opening_alone_names_is_charged(servers: Servers) -> None:
    """But for one of another server, or of another owner."""
    forgotten(servers, 2)
    a = servers.sessions[A]
    for shown, client in ((opening(servers, B, 5), ANN), (opening(servers, A, 5), BEN)):
        with pytest.raises(PeerViolation):
            hear_of(a, client, shown)
    assert a.store.attempts.next_number() == 0
    for role in SERVERS:
        hear_of(servers.sessions[role], ANN, opening(servers, role, 1))
    # Nobody knows any more whether the two were of one version.
    settled(servers, [[0, 1]] * 2)
    assert a.store.ledger.re_releases()[CLEO] == {1: 1}


@pytest.mark.parametrize("at_a", range(8))
@pytest.mark.parametrize("at_b", [None, 3])
def test_a_cut_leaves_one_entry_an_attempt(
    servers: Servers, at_a: int, at_b: int | None
) -> None:
    forgotten(servers, 2)
    hear(servers, 1)
    settle(servers, (at_a, at_b))
    settled(servers, [[0, 1]] * 2)
    urls = [f"sqlite:///{servers.folder / role.value / 'state.db'}" for role in SERVERS]
    assert compare_ledgers(*urls) == ()


@OF_EITHER
@pytest.mark.parametrize("first", [0, 1])
def test_who_dies_before_its_entry_takes_it_over(
    servers: Servers, role: Role, first: int
) -> None:
    """Where its version is over no other rule helps: this server has heard of the
    attempt."""
    _, model = forgotten(servers, 1)
    for each in SERVERS:
        # From an owner.
        servers.sessions[each].model_store.put(1, model)
    hear(servers, 1)
    attempts = servers.sessions[role].store.attempts
    charge, dies = attempts.charge_unknown, StorageFailure("killed")
    killed = Mock(wraps=charge, side_effect=[DEFAULT] * first + [dies])
    attempts.charge_unknown = killed  # type: ignore[method-assign]
    settle(servers)
    assert servers.charged()[0] != servers.charged()[1]
    attempts.charge_unknown = charge  # type: ignore[method-assign]
    assert settle(servers) == [None, None]
    assert (attempts_of(servers, 0), attempts_of(servers, 1)) == ([[0]] * 2, [[1]] * 2)
    servers.agree()


@OF_EITHER
def test_what_one_server_alone_says_charges_nobody(
    servers: Servers, role: Role
) -> None:
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
    honest.attempts.begin(attempt=998, version=1, cohort_size=3, model=model)
    assert (settle(servers), servers.charged()) == (
        [None, None],
        [{ANN: 2, BEN: 2, CLEO: 1}] * 2,
    )


def test_one_word_has_three_attempts_charged_and_others_as_many_more(
    servers: Servers,
) -> None:
    """By what operators call; whatever a server claims between their look and their
    word."""
    servers.attempt(0)
    servers.sessions[A].store.attempts.hear(7)
    offices = {role: OperationService(servers.sessions[role]) for role in SERVERS}
    for reached in (3, 6, 9):
        assert all(isinstance(each, NeedsOperators) for each in settle(servers))
        assert servers.charged() == [{ANN: 1, BEN: 1}] * 2
        offices[A]._allow(Permission.CLAIMED, 1)
        assert offices[B]._allow(Permission.CLAIMED, 1) == reached
    assert (settle(servers), servers.charged()) == (
        [None, None],
        [{ANN: 2, BEN: 2, CLEO: 1}] * 2,
    )
    servers.agree()
    # A version's other attempts take a word each time: it doesn't add up.
    assert [offices[B]._allow(Permission.ATTEMPTS, 1) for _ in range(2)] == [10, 10]


@OF_EITHER
def test_numbers_that_one_server_calls_used_are_no_evidence(
    servers: Servers, role: Role
) -> None:
    """At one link it has used a thousand attempts, at the next it has forgotten
    them."""
    servers.attempt(0)
    before = servers.charged()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            servers.sessions[role].store.attempts, "unused_here", lambda: 1000
        )
        assert settle(servers) == [None, None]
    settle(servers)
    assert servers.charged() == before
    assert servers.sessions[other(role)].store.attempts.next_number() == 1


def earlier_pen(role: Role) -> CertificateSigner:
    return CertificateSigner(earlier_identity(Principal.service(role)))


def as_signed_earlier(servers: Servers, loser: Role) -> None:
    """What the other server keeps of ``loser`` was signed before its certificate was
    renewed."""
    holder = B if loser is A else A
    old = server_messages.ServerSignatures(
        task=servers.task.digest,
        role=loser,
        signer=earlier_pen(loser),
        verifier=verifier(),
    )
    now = signatures(servers.task.digest, holder)

    def again(
        kept: bytes, kind: SignedKind, body: type[server_messages.Message]
    ) -> bytes:
        return old.sign(
            kind,
            now.check(loser, kind, server_messages.SignedMessage.from_json(kept), body),
        ).to_json()

    servers.sessions[holder].store.close()
    with (
        closing(
            sqlite3.connect(servers.folder / holder.value / "state.db")
        ) as database,
        database,
    ):
        for table, column, kind, body in (
            ("attempt", "their_head", SignedKind.HEAD, HeadBody),
            ("version", "model_seal", SignedKind.MODEL, ModelBody),
        ):
            database.create_function("again", 1, partial(again, kind=kind, body=body))
            change = (
                f"UPDATE {table} SET {column} = again({column}) WHERE {column} IS NOT"
                " NULL"
            )
            assert database.execute(change).rowcount > 0
    seal = servers.folder / holder.value / "model.seal"
    if seal.exists():
        seal.write_bytes(again(seal.read_bytes(), SignedKind.MODEL, ModelBody))
    servers.open(holder)


def shown_by_ann(
    servers: Servers, pen: CertificateSigner
) -> tuple[pb.Signed, pb.Signed]:
    model = servers.sessions[A].model_store.current.digest.value
    more: Document = {"model_digest": model, "charged": [2]}
    statement = for_ann(servers, pb.StatementBody, 5, pen=pen, **more)
    return statement, for_ann(servers, pb.OpeningBody, 6, pen=pen)


def test_what_was_signed_before_a_renewal_counts_where_it_is_kept(
    servers: Servers,
) -> None:
    old = server_messages.ServerSignatures(
        task=servers.task.digest, role=B, signer=earlier_pen(B), verifier=verifier()
    )
    body = ModelBody(task=servers.task.digest.value, version=1, digest=bytes(32))
    signed = old.sign(SignedKind.MODEL, body)
    # A signature of now needs a certificate of now.
    with pytest.raises(PeerUnavailable, match="expired"):
        signatures(servers.task.digest, A).check(B, SignedKind.MODEL, signed, ModelBody)
    for reader, how in ((A, {"kept": True}), (B, {})):
        eye = signatures(servers.task.digest, reader)
        assert eye.check(B, SignedKind.MODEL, signed, ModelBody, **how) == body
    # As an owner's old statement and opening do.
    session = servers.sessions[A]
    statement, opening = shown_by_ann(servers, earlier_pen(A))
    said = remember(session, ANN, statement.SerializeToString())
    assert said is not None
    assert session.store.attempts.next_number() == said.attempt + 1 == 6
    hear_of(session, ANN, opening.SerializeToString())
    assert session.store.attempts.next_number() == 7
    assert session.store.ledger.participations() == {ANN: 2}


def test_a_revoked_certificates_statements_are_not_believed_and_keep_nobody_out(
    servers: Servers, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever stole the key can sign anything; its honest owners must still get on."""
    stolen, current = (
        earlier_identity(Principal.service(A)),
        identity(Principal.service(A)),
    )
    eye = CertificateVerifier(
        replace(current, revocations=revoke(stolen, folder=tmp_path))
    )
    session = replace(servers.sessions[A], verifier=eye)
    statement, opening = shown_by_ann(servers, CertificateSigner(stolen))
    said = pb.StatementBody.FromString(
        statement_of(session, ANN, shown=statement, opening=opening).body
    )
    assert (list(said.charged), session.store.attempts.next_number()) == ([], 0)
    assert "isn't believed" in caplog.text
