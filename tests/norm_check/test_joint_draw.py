"""The joint coin: once per version, whatever breaks; opened as committed; and whom it draws."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from tests.conftest import TaskMaker
from tests.rig.aggregators import aggregator, link_over
from tests.rig.breaking import Breaking
from tests.rig.keys import signatures
from tests.rig.rounds import roster_of

from precad.aggregator.peer_link import memory_pair
from precad.aggregator.rounds.aggregator import Aggregator, CoinKey
from precad.aggregator.rounds.start_attempt import (
    NeedsOperators,
    agree_coin,
    cohort_of,
    commitment_to,
    joint_coin,
)
from precad.aggregator.server_messages import CoinReveal, CoinState
from precad.aggregator.store import Store, open_store
from precad.aggregator.store.schema import Permission
from precad.common.errors import PeerUnavailable, PeerViolation, PrecadError, StorageFailure
from precad.common.identifiers import ClientId, Digest, Role, Secret
from precad.common.identity.signatures import SignedKind
from precad.common.task import Task

A, B = Role.SERVER_A, Role.SERVER_B
SERVERS = (A, B)
OTHER_TASK = Digest(bytes(32))


class Pair:
    """Two servers with databases and coin keys; every ``agree`` is a link of its own."""

    def __init__(self, task: Task, folder: Path) -> None:
        self.task = task
        self._folder = folder
        self.keys = {role: CoinKey(Secret.random()) for role in SERVERS}
        self.stores: dict[Role, Store] = {}
        for role in SERVERS:
            self.stores[role] = self._open(role)

    def _open(self, role: Role) -> Store:
        return open_store(f"sqlite:///{self._folder}/{role.value}.db", self.task, role)

    def lose_database(self, role: Role) -> None:
        self.stores[role].close()
        for file in self._folder.glob(f"{role.value}.db*"):
            file.unlink()
        self.stores[role] = self._open(role)

    def lose_key(self, role: Role) -> None:
        self.keys[role] = CoinKey(Secret.random())

    def server(self, role: Role, end: Any) -> Aggregator:
        given = {"coin_key": self.keys[role], "store": self.stores[role]}
        return aggregator(self.task, role, end, **given)

    def against(self, role: Role, version: int = 0, **said: bytes) -> None:
        """One server alone, and what the other has said."""
        ends = dict(zip(SERVERS, memory_pair(), strict=True))
        link = link_over(ends[B if role is A else A], self.task)
        for step, message in said.items():
            link.send(f"coin-{step}", message)
        agree_coin(self.server(role, ends[role]), version)

    def agree(self, version: int = 0, cut: int | None = None) -> list[Secret | PrecadError]:
        """What each server ends with; the link breaks before message ``cut`` of either."""
        ends = [Breaking(end, cut) for end in memory_pair()]

        def play(role: Role, end: Any) -> Secret | PrecadError:
            try:
                return agree_coin(self.server(role, end), version)
            except PrecadError as error:
                return error
            finally:
                end.hang_up()

        with ThreadPoolExecutor(2) as threads:
            return list(threads.map(play, SERVERS, ends))

    def coin(self, version: int = 0) -> bytes:
        """The coin that both agree on."""
        a, b = self.agree(version)
        assert isinstance(a, Secret), a
        assert a == b
        return a.reveal()


@pytest.fixture
def pair(make_task: TaskMaker, tmp_path: Path) -> Iterator[Pair]:
    made = Pair(make_task(8), tmp_path)
    yield made
    for store in made.stores.values():
        store.close()


# --- the same, whatever breaks -----------------------------------------------------------------


def test_both_servers_get_one_coin_for_each_version(pair: Pair) -> None:
    coins = [pair.coin(version) for version in range(4)]
    assert len(set(coins)) == 4
    assert all(len(coin) == 32 for coin in coins)


def test_asked_again_a_version_has_the_same_coin(pair: Pair) -> None:
    first = pair.coin(2)
    assert [pair.coin(2) for _ in range(3)] == [first] * 3
    # Later versions between them change nothing.
    pair.coin(3)
    assert pair.coin(2) == first


@pytest.mark.parametrize("cut", [0, 1])
def test_whoever_cuts_the_link_draws_nobody_anew(pair: Pair, cut: int) -> None:
    """Before the commitments cross, and between commitment and opening: any number of times."""
    for _ in range(3):
        for outcome in pair.agree(0, cut):
            assert isinstance(outcome, PrecadError)
    first = pair.coin(0)
    pair.agree(0, cut)
    assert pair.coin(0) == first
    # And it is what the keys alone say.
    a, b = (pair.keys[role].opening(pair.task.digest, 0) for role in SERVERS)
    assert joint_coin(a, b).reveal() == first


def test_neither_server_decides_the_coin_alone(pair: Pair) -> None:
    first = pair.coin(0)
    for role in SERVERS:
        pair.lose_database(A)
        pair.lose_database(B)
        before = pair.keys[role]
        pair.lose_key(role)
        assert pair.coin(0) != first
        pair.keys[role] = before
        pair.lose_database(A)
        pair.lose_database(B)
        assert pair.coin(0) == first


# --- opened as committed -----------------------------------------------------------------------


def commitment(pair: Pair, body: Any, of: Role = B, **more: Any) -> bytes:
    """``body`` committed to under the seal of ``of``."""
    signed = signatures(pair.task.digest, of).sign(SignedKind.COIN_COMMITMENT, body)
    return CoinState(commitment=signed, **more).to_bytes()


def opening(pair: Pair, body: Any, of: Role = B) -> bytes:
    """``body`` opened under the seal of ``of``."""
    return CoinReveal(
        opening=signatures(pair.task.digest, of).sign(SignedKind.COIN_OPENING, body)
    ).to_bytes()


def test_an_opening_of_another_coin_is_a_violation(pair: Pair) -> None:
    """B saw A's bytes first: it may not choose its own after."""
    own = pair.keys[B].opening(pair.task.digest, 0)
    committed = commitment(pair, commitment_to(own, B))
    for changed in ({"coin": "00" * 32}, {"salt": "00" * 32}, {"version": 1}, {"task": "00" * 32}):
        other = opening(pair, own.model_copy(update=changed))
        with pytest.raises(PeerViolation, match="another coin"):
            pair.against(A, commitment=committed, opening=other)
        # Nothing of it was kept: the opening that was committed to is still taken.
        assert pair.stores[A].versions.coin_opening(0, own=False) is None
    # Nor is it taken from a stranger, or from the asker itself.
    with pytest.raises(PeerViolation):
        pair.against(A, commitment=committed, opening=opening(pair, own, of=A))
    pair.against(A, commitment=committed, opening=opening(pair, own))


def test_a_commitment_to_another_task_or_version_is_a_violation(pair: Pair) -> None:
    own = pair.keys[B].opening(pair.task.digest, 0)
    for changed in ({"version": 1}, {"task": "00" * 32}):
        committed = commitment_to(own, B).model_copy(update=changed)
        with pytest.raises(PeerViolation, match="another task or version"):
            pair.against(A, commitment=commitment(pair, committed))


def test_a_servers_commitment_is_not_the_others(pair: Pair) -> None:
    """B can't give A's commitment back as its own and open it after A has."""
    own = pair.keys[A].opening(pair.task.digest, 0)
    assert commitment_to(own, A) != commitment_to(own, B)
    with pytest.raises(PeerViolation):
        pair.against(A, commitment=commitment(pair, commitment_to(own, A), of=A))


def test_a_commitment_tells_nothing_of_the_coin(pair: Pair) -> None:
    """Salted: who guesses the coin can't test the guess against the commitment."""
    own = pair.keys[A].opening(pair.task.digest, 0)
    other = own.model_copy(update={"salt": "11" * 32})
    assert commitment_to(own, A).digest != commitment_to(other, A).digest
    assert own.coin not in repr(own)
    assert own.salt not in f"{own}"


def test_nothing_is_opened_before_the_others_commitment_is_durable(pair: Pair) -> None:
    order: list[str] = []
    a_end, b_end = memory_pair()

    class Watched(Breaking):
        def put(self, frame: Any) -> None:
            order.append(f"sends {frame.step}")
            super().put(frame)

    def keep(version: int, signed: Any) -> None:
        kept(version, signed)
        order.append("keeps")

    store: Any = pair.stores[A]
    kept = store.versions.keep_commitment
    store.versions.keep_commitment = keep
    with ThreadPoolExecutor(2) as threads:
        at_b = threads.submit(agree_coin, pair.server(B, b_end), 0)
        agree_coin(pair.server(A, Watched(a_end, None)), 0)
        at_b.result()
    assert order == ["sends coin-commitment", "keeps", "sends coin-opening"]


# --- a lost coin key ---------------------------------------------------------------------------


@pytest.mark.parametrize("lost", SERVERS, ids=lambda role: role.value)
def test_a_lost_coin_key_is_given_its_bytes_back(pair: Pair, lost: Role) -> None:
    """The other holds the opening, under the loser's own signature: the coin stays."""
    first = pair.coin(0)
    pair.lose_key(lost)
    for error in pair.agree(0):
        assert isinstance(error, PeerUnavailable)
    assert pair.coin(0) == first
    # The next version has the new key's coin.
    fresh = {role: pair.keys[role].opening(pair.task.digest, 1) for role in SERVERS}
    assert pair.coin(1) == joint_coin(fresh[A], fresh[B]).reveal()


@pytest.mark.parametrize("lost", SERVERS, ids=lambda role: role.value)
def test_bytes_that_nobody_opened_are_lost_until_both_operators_say_so(
    pair: Pair, lost: Role
) -> None:
    """Committed to, not opened, and the key is gone: nobody draws anew on one server's word."""
    for outcome in pair.agree(0, cut=1):
        assert isinstance(outcome, PrecadError)
    pair.lose_key(lost)
    for words in ((), (A,), (B,)):
        for role in words:
            pair.stores[role].versions.allow(Permission.COIN, 0, 0)
        if words == (B,):
            break
        for error in pair.agree(0):
            assert isinstance(error, NeedsOperators), words
            assert (error.permission, error.version) == (Permission.COIN, 0)
            assert "precad allow coin HOST:PORT --server a|b --version 0" in str(error)
    # Both have given it: both servers take new coins, the one that lost nothing too.
    before = [key.opening(pair.task.digest, 0) for key in pair.keys.values()]
    for error in pair.agree(0):
        assert isinstance(error, PeerUnavailable)
        assert "new coins" in str(error)
    # The certificate counts it.
    assert [pair.stores[role].versions.redrawn_coins() for role in SERVERS] == [1, 1]
    after = [key.opening(pair.task.digest, 0) for key in pair.keys.values()]
    assert all(old != new for old, new in zip(before, after, strict=True))
    assert pair.coin(0) == joint_coin(after[0], after[1]).reveal()


def test_a_renewed_key_is_durable_before_it_is_used() -> None:
    kept: list[bytes] = []
    key = CoinKey(Secret(bytes(32)), lambda fresh: kept.append(fresh.reveal()))
    key.renew()
    assert len(kept) == 1
    assert kept[0] != bytes(32)

    def fail(_fresh: Secret) -> None:
        raise OSError("no room")

    broken = CoinKey(Secret(bytes(32)), fail)
    before = broken.opening(OTHER_TASK, 0)
    with pytest.raises(OSError, match="no room"):
        broken.renew()
    assert broken.opening(OTHER_TASK, 0) == before


@pytest.mark.parametrize("full", SERVERS, ids=lambda role: role.value)
def test_where_no_new_key_can_be_kept_no_old_coin_is_drawn_again(pair: Pair, full: Role) -> None:
    """The other server may have seen it: it could choose its own after."""

    def fail(_fresh: Secret) -> None:
        raise StorageFailure("no room")

    key = Secret.random()
    old = CoinKey(key).opening(pair.task.digest, 0)
    pair.keys[full] = CoinKey(key, fail)
    for outcome in pair.agree(0, cut=1):
        assert isinstance(outcome, PrecadError)
    pair.lose_key(B if full is A else A)
    for role in SERVERS:
        pair.stores[role].versions.allow(Permission.COIN, 0, 0)
    outcomes = dict(zip(SERVERS, pair.agree(0), strict=True))
    assert isinstance(outcomes[full], StorageFailure)
    assert pair.stores[full].versions.redrawn_coins() == 0
    # With room again, and started again: the operators of both are asked once more.
    pair.keys[full] = CoinKey(key)
    for error in pair.agree(0):
        assert isinstance(error, NeedsOperators)
    for role in SERVERS:
        pair.stores[role].versions.allow(Permission.COIN, 0, 0)
    for error in pair.agree(0):
        assert isinstance(error, PeerUnavailable)
    assert pair.coin(0)
    assert pair.keys[full].opening(pair.task.digest, 0) != old


def test_an_opening_from_before_the_operators_word_is_not_taken_back(pair: Pair) -> None:
    """Else the other server would choose between the new coin and one with this one's old bytes."""
    pair.coin(0)
    old = pair.keys[A].opening(pair.task.digest, 0)
    held = signatures(pair.task.digest, A).sign(SignedKind.COIN_OPENING, old)
    known = commitment_to(old, A).digest
    for store in pair.stores.values():
        store.versions.discard_coin(0)
    pair.keys[A].renew()
    new = pair.coin(0)
    committed = commitment_to(pair.keys[B].opening(pair.task.digest, 0), B)
    with pytest.raises(NeedsOperators):
        pair.against(A, commitment=commitment(pair, committed, known=known, held=held))
    assert pair.stores[A].versions.coin_opening(0, own=True) is None
    assert pair.coin(0) == new


@pytest.mark.parametrize("what", ["another version", "another task", "the other server's"])
def test_what_is_given_back_must_be_ones_own(pair: Pair, what: str) -> None:
    """A server that shows some other opening can't make this one draw by it."""
    pair.coin(0)
    key = pair.keys[A]
    own = key.opening(pair.task.digest, 0)
    pens = signatures(pair.task.digest, A)
    if what == "another version":
        own = key.opening(pair.task.digest, 1)
    elif what == "another task":
        own = key.opening(OTHER_TASK, 0)
    else:
        pens = signatures(pair.task.digest, B)
    held = pens.sign(SignedKind.COIN_OPENING, own)
    pair.lose_key(A)
    committed = commitment_to(pair.keys[B].opening(pair.task.digest, 0), B)
    with pytest.raises(PeerViolation):
        pair.against(A, commitment=commitment(pair, committed, known="ab" * 32, held=held))
    assert pair.stores[A].versions.coin_opening(0, own=True) is None


def test_a_server_that_commits_anew_alone_changes_nothing(pair: Pair) -> None:
    """Its operators' word alone, and an opening that the other holds: the old bytes stay."""
    first = pair.coin(0)
    pair.lose_key(B)
    pair.stores[B].versions.allow(Permission.COIN, 0, 0)
    for error in pair.agree(0):
        assert isinstance(error, PeerUnavailable)
    assert pair.coin(0) == first


# --- whom it draws -----------------------------------------------------------------------------


MANY = roster_of(ClientId(f"c{i}") for i in range(20_000))


@pytest.mark.parametrize("rate", [0.01, 0.5])
def test_clients_are_drawn_at_the_rate(rate: float) -> None:
    """Two-sided binomial test; a right sampler fails once in a million."""
    drawn = len(cohort_of(Secret.random(), MANY, rate, 0))
    assert stats.binomtest(drawn, len(MANY), rate).pvalue > 1e-6
    # The test can fail: at half the odds.
    wrong = rate / (2 - rate)
    assert stats.binomtest(drawn, len(MANY), wrong).pvalue < 1e-6


@settings(max_examples=50)
@given(
    coin=st.binary(min_size=32, max_size=32).map(Secret),
    names=st.sets(st.sampled_from([f"c{i}" for i in range(30)]), max_size=30),
    order=st.randoms(use_true_random=False),
    version=st.integers(0, 2**32),
)
def test_a_clients_draw_depends_on_nobody_else(
    coin: Secret, names: set[str], order: Any, version: int
) -> None:
    """Neither on who else is enrolled, nor on their order: an owner's presence moves nobody."""
    everybody = [ClientId(f"c{i}") for i in range(30)]
    order.shuffle(everybody)
    whole = set(cohort_of(coin, roster_of(everybody), 0.5, version))
    some = [ClientId(name) for name in names]
    order.shuffle(some)
    drawn = cohort_of(coin, roster_of(some), 0.5, version)
    assert len(set(drawn)) == len(drawn)
    assert set(drawn) == {client for client in whole if client.name in names}


def test_each_client_and_each_version_is_drawn_by_itself() -> None:
    """Neither neighbours nor versions depend on each other."""
    coin, few = Secret.random(), roster_of(map(ClientId, "ab"))
    first, second = few
    counts, runs = [[0, 0], [0, 0]], [[0, 0], [0, 0]]
    previous = False
    for version in range(4000):
        drawn = cohort_of(coin, few, 0.5, version)
        counts[first in drawn][second in drawn] += 1
        runs[previous][first in drawn] += 1
        previous = first in drawn
    for table in (counts, runs):
        assert stats.chi2_contingency(table).pvalue > 1e-6
