"""Two servers meet on a new link: what they compare, learn and remedy."""

import shutil
from itertools import product
from typing import Any

import pytest
from tests.rig.aggregators import head_of, link_over
from tests.rig.keys import signatures
from tests.rig.meeting import ANN, BEN, CLEO, SERVERS, VALID_SET, A, B, Servers
from tests.rig.norm_check import other

from precad.aggregator.peer_link import memory_pair
from precad.aggregator.rounds.start_attempt import NeedsOperators
from precad.aggregator.server_messages import Fact, ModelBody, Position
from precad.aggregator.store.schema import AttemptState, Permission
from precad.aggregator.training.reconcile import meet
from precad.aggregator.training.recovery import Recovery, Remedy
from precad.common.errors import PeerUnavailable, PeerViolation
from precad.common.identifiers import Digest, Role
from precad.common.identity.signatures import SignedKind

DONE = (AttemptState.DONE, AttemptState.DONE)
MODEL_FILE = "model.safetensors"
OF_EITHER = pytest.mark.parametrize("role", SERVERS, ids=lambda role: role.value)


def test_servers_that_stand_alike_have_nothing_to_do(servers: Servers) -> None:
    for number in range(3):
        assert servers.attempt(number) == [None, None]
        assert servers.meet() == [Recovery(Remedy.NOTHING)] * 2
    assert (servers.versions(), servers.charged()) == ((3, 3), [{ANN: 3, BEN: 3}] * 2)
    servers.agree()
    # The newest attempt and the larger count are both servers'.
    a, b = (servers.sessions[role] for role in SERVERS)
    a.store.attempts.begin(6, 3, 0, VALID_SET)
    a.store.attempts.abandon_open()
    b.store.versions.count_opened(3, 5)
    b.store.versions.count_opened(3, 6)
    servers.meet()
    assert (a.progress.next_attempt, b.progress.next_attempt) == (7, 7)
    assert (a.store.versions.opened(3), b.store.versions.opened(3)) == (2, 2)


def greeted(servers: Servers, **said: Any) -> None:
    """Server A, to whom another says where it stands."""
    a = servers.sessions[A]
    ours, theirs = (link_over(end, servers.task, timeout_s=0.1) for end in memory_pair())
    position: dict[str, Any] = {"role": "server-b", "model": str(a.model_store.current.digest)}
    position |= dict.fromkeys(("version", "next_attempt", "opened", "ledger_length"), 0)
    position |= dict.fromkeys(("ledger_head", "nonce"), "00" * 32)
    theirs.send("position", Position(**position | said).to_bytes())
    meet(a, ours)


def test_no_more_attempts_were_opened_than_either_server_knows_of(servers: Servers) -> None:
    a = servers.sessions[A]
    a.store.attempts.begin(6, 0, 0, VALID_SET)
    a.store.attempts.abandon_open()
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
    """Whoever overhears greetings can test no guess of a cohort, and can replay none."""
    servers.attempt(0)
    servers.frames.clear()
    for _ in range(3):
        servers.meet()
    seen = [frame.payload for frame in servers.frames if frame.step == "history"]
    assert (len(seen), len(set(seen))) == (6, 3)
    assert servers.sessions[A].store.ledger.history(1).value not in seen


@pytest.mark.parametrize(("at_a", "at_b"), list(product(range(4), repeat=2)))
def test_a_release_goes_on_where_it_was_cut(servers: Servers, at_a: int, at_b: int) -> None:
    """Before each of head, countersignature, noisy share and model, on either side."""
    first = servers.sessions[A].model_store.current.digest
    servers.attempt(0, cuts=(at_a, at_b))
    assert servers.mend() == [Remedy.NOTHING] * 2
    assert (servers.versions(), servers.states(0)) == ((1, 1), DONE)
    assert servers.charged() == [{ANN: 1, BEN: 1}] * 2
    servers.agree()
    assert first != servers.sessions[A].model_store.current.digest
    # What left, before the cut and after, is one noisy share of each.
    left = {f.payload for f in servers.frames if f.step == "noisy-share"}
    assert left == {bytes([value, *bytes(7)]) * 8 for value in (3, 4)}


@OF_EITHER
@pytest.mark.parametrize("sent", [*range(8), None])
def test_an_attempt_that_one_server_prepared_alone_is_voided_by_both_wherever_it_is_cut(
    servers: Servers, role: Role, sent: int | None
) -> None:
    """The one that isn't prepared says so durably, then the other voids."""
    servers.attempt(0, prepared=(role,))
    assert {each.remedy for each in servers.meet()} == {Remedy.VOID, Remedy.CONFIRM_VOID}
    servers.mend(cuts=(sent, sent))
    # Never is it voided where it was prepared and open where it wasn't.
    states = dict(zip(SERVERS, servers.states(0), strict=True))
    if states[role] is AttemptState.VOIDED:
        assert states[other(role)] is AttemptState.VOIDED
    assert servers.mend() == [Remedy.NOTHING] * 2
    assert servers.states(0) == (AttemptState.VOIDED, AttemptState.VOIDED)
    assert servers.charged() == [{}, {}]
    servers.agree()
    # The version goes on with another attempt.
    servers.attempt(1)
    assert servers.charged() == [{ANN: 1, BEN: 1}] * 2
    servers.agree()


@OF_EITHER
def test_an_attempt_that_one_countersigned_and_the_other_lost_waits_for_both_operators(
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
    assert servers.mend() == [Remedy.NOTHING] * 2
    states = dict(zip(SERVERS, servers.states(1), strict=True))
    assert states == {other(role): AttemptState.WRITTEN_OFF, role: AttemptState.LEARNED}
    assert servers.charged() == [{ANN: 2, BEN: 2}] * 2
    servers.agree()
    # Released again, the version costs those who may have left twice a second release.
    servers.attempt(2, valid=(BEN, CLEO))
    assert servers.charged() == [{ANN: 2, BEN: 2, CLEO: 1}] * 2
    assert [store.ledger.re_releases() for store in stores.values()] == [{BEN: {1: 1}}] * 2
    servers.agree()


@OF_EITHER
def test_with_its_journal_a_server_learns_before_it_meets(servers: Servers, role: Role) -> None:
    servers.attempt(0)
    backup = servers.copy(role)
    for number in (1, 2):
        servers.attempt(number)
    servers.put_back(role, backup)
    assert servers.charged() == [{ANN: 3, BEN: 3}] * 2
    # The model went back too: it is taken from the other, on the own signature.
    assert sorted(servers.versions()) == [1, 3]
    assert {each.remedy for each in servers.meet()} == {Remedy.SERVE, Remedy.CATCH_UP}
    assert servers.mend() == [Remedy.NOTHING] * 2
    assert servers.versions() == (3, 3)
    servers.attempt(3)
    servers.agree()


@OF_EITHER
@pytest.mark.parametrize("kept", ["model", "nothing"])
def test_without_its_journal_it_learns_from_the_other_what_it_had_signed(
    servers: Servers, role: Role, kept: str
) -> None:
    """The ledger noticed nothing once, and the next charges stood beside three lost ones."""
    servers.attempt(0)
    backup = servers.copy(role)
    servers.attempt(1, prepared=(A,))
    servers.mend()
    for number in (2, 3):
        servers.attempt(number, valid=(ANN, CLEO))
    if kept == "model":
        shutil.copy(servers.folder / role.value / MODEL_FILE, backup / MODEL_FILE)
    servers.put_back(role, backup, journal=True)
    assert servers.charged()[SERVERS.index(role)] == {ANN: 1, BEN: 1}
    assert servers.mend() == [Remedy.NOTHING] * 2
    assert servers.charged() == [{ANN: 3, BEN: 1, CLEO: 2}] * 2
    assert servers.versions() == (3, 3)
    # Number 1 was voided: forgotten, and learned again as that.
    (voided,) = servers.sessions[role].store.ledger.facts(1)[:1]
    assert voided == Fact(version=1, attempt=1, voided=True)
    servers.agree()
    # No number is used twice, whoever forgot it.
    assert all(session.progress.next_attempt >= 4 for session in servers.sessions.values())
    servers.attempt(4)
    servers.agree()


@OF_EITHER
def test_a_model_that_one_server_has_again_is_waited_for(servers: Servers, role: Role) -> None:
    """Both were put back: nobody has to restore anything, and the next look finds it."""
    backups = {each: servers.copy(each) for each in SERVERS}
    servers.attempt(0)
    servers.attempt(1)
    lost = servers.sessions[A].model_store.theta()
    for each, backup in backups.items():
        servers.put_back(each, backup, journal=True)
    servers.sessions[role].model_store.put(2, lost)
    errors = servers.mend()
    assert all(isinstance(error, PeerUnavailable) for error in errors)
    assert any("waits for an owner to give it" in str(error) for error in errors)
    servers.sessions[other(role)].model_store.put(2, lost)
    assert servers.mend() == [Remedy.NOTHING] * 2


@OF_EITHER
def test_one_servers_word_charges_one_attempt_a_version(servers: Servers, role: Role) -> None:
    """It claims, link after link, that another attempt may have left."""
    for attempt in range(5):
        claim = Fact(version=0, attempt=attempt, voided=False, clients=(ANN.name,))
        servers.sessions[role].store.attempts.learn([claim])
        servers.meet()
    assert servers.sessions[other(role)].store.ledger.charges_in(0).get(ANN, 0) <= 1


@pytest.mark.parametrize("shows", ["its own head", "a head of another task"])
def test_a_charge_that_a_server_never_signed_is_not_learned(servers: Servers, shows: str) -> None:
    servers.attempt(0)
    shown: Any = servers.sessions[A].store
    shown.attempts.learn([Fact(version=0, attempt=7, voided=False, clients=(CLEO.name,))])
    says = "different charges"
    if shows == "a head of another task":
        head = head_of(Digest(bytes(32)))
        foreign = signatures(servers.task.digest, B).sign(SignedKind.HEAD, head)
        shown.attempts.their_head = lambda: foreign
        says = "another task"
    _, at_b = servers.meet()
    assert isinstance(at_b, PeerViolation)
    assert says in str(at_b)
    assert servers.charged()[1] == {ANN: 1, BEN: 1}


@pytest.mark.parametrize("lie", ["bytes", "digest", "signature"])
def test_a_model_that_this_server_never_signed_is_not_taken(servers: Servers, lie: str) -> None:
    backup = servers.copy(B)
    servers.attempt(0)
    servers.put_back(B, backup)
    a: Any = servers.sessions[A]
    if lie == "signature":
        # A's own word in place of B's.
        own = signatures(servers.task.digest, A)
        signed = a.store.versions.model_seal(1)
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
    """Model and ledger belong together: a model from after doesn't go on a ledger from before."""
    servers.attempt(0)
    backups = {role: servers.copy(role) for role in SERVERS}
    servers.attempt(1)
    signed = servers.sessions[A].store.versions.model_seal(2)
    assert signed is not None
    shutil.copy(servers.folder / A.value / MODEL_FILE, backups[A] / MODEL_FILE)
    for role, backup in backups.items():
        servers.put_back(role, backup, journal=True)
    assert servers.versions() == (2, 1)
    # Not even A's word that B has signed it is kept; and with it B still has no charge for it.
    at_a, _ = servers.mend()
    assert "its signature over it isn't kept" in str(at_a)
    servers.sessions[A].store.versions.keep_model_seal(2, signed)
    _, at_b = servers.mend()
    assert isinstance(at_b, PeerViolation)
    assert "don't belong together" in str(at_b)
    assert servers.versions() == (2, 1)
