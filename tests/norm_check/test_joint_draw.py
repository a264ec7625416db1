"""The joint coin: once per version, whatever breaks; opened as committed; and whom it
draws."""

from collections.abc import Iterator
from pathlib import Path
from random import Random
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from tests.rig.aggregators import aggregator, link_over
from tests.rig.keys import signatures
from tests.rig.meeting import SERVERS, A, B, Servers
from tests.rig.memory_link import memory_pair
from tests.rig.norm_check import other
from tests.rig.rounds import roster_of
from tests.rig.tasks import task_with

from precad.aggregator.rounds import start_attempt
from precad.aggregator.rounds.aggregator import Aggregator, CoinKey
from precad.aggregator.server_messages import (
    CoinOpening,
    CoinReveal,
    CoinState,
    Message,
    SignedMessage,
)
from precad.aggregator.store import Store
from precad.aggregator.store.schema import Permission
from precad.common.errors import (
    PeerUnavailable,
    PeerViolation,
    PrecadError,
    StorageFailure,
)
from precad.common.identifiers import ClientId, Digest, Role, Secret
from precad.common.identity.signatures import SignedKind


class Pair(Servers):
    """Two servers with databases and coin keys; every ``draw`` is a link of its own."""

    @property
    def stores(self) -> dict[Role, Store]:
        return {role: session.store for role, session in self.sessions.items()}

    def lose_key(self, role: Role) -> None:
        self.keys[role] = CoinKey(Secret.random())

    def allow(self, *roles: Role) -> None:
        for role in roles:
            self.stores[role].versions.allow(Permission.COIN, 0, 0)

    def own(self, role: Role, version: int = 0) -> CoinOpening:
        return self.keys[role].opening(self.task.digest, version)

    def against_a(self, **said: bytes) -> None:
        end, other = memory_pair()
        link = link_over(other, self.task)
        for step, message in said.items():
            link.send(f"coin-{step}", message)
        given = {"coin_key": self.keys[A], "store": self.stores[A]}
        start_attempt.agree_coin(aggregator(self.task, A, end, **given), 0)

    def draw(self, version: int = 0, cut: int | None = None) -> list[object]:
        """What each server ends with; the link breaks before message ``cut`` of
        either."""
        return self.on_a_link(
            lambda _, own: start_attempt.agree_coin(own, version), (cut, cut)
        )

    def fails(self, *expected: type[PrecadError], cut: int | None = None) -> list[str]:
        outcomes = self.draw(0, cut)
        assert all(isinstance(each, expected or PrecadError) for each in outcomes), (
            outcomes
        )
        return [str(each) for each in outcomes]

    def coin(self, version: int = 0) -> bytes:
        a, b = self.draw(version)
        assert isinstance(a, Secret), a
        assert a == b
        return a.reveal()


OF_EITHER = pytest.mark.parametrize("role", SERVERS, ids=lambda role: role.value)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    made = Pair(task_with({}), tmp_path)
    yield made
    made.close()


def test_both_servers_get_one_coin_for_each_version_whenever_they_are_asked(
    pair: Pair,
) -> None:
    coins = [pair.coin(version) for version in range(4)]
    assert len(set(coins)) == 4
    assert all(len(coin) == 32 for coin in coins)
    assert [pair.coin(version) for version in (2, 2, 3, 2)] == [
        coins[i] for i in (2, 2, 3, 2)
    ]


def test_neither_server_decides_the_coin_alone(pair: Pair) -> None:
    empty = {role: pair.copy(role) for role in SERVERS}

    def coin() -> bytes:
        for role in SERVERS:
            pair.put_back(role, empty[role], journal=True)
        return pair.coin()

    first, keys = coin(), dict(pair.keys)
    for role in SERVERS:
        pair.lose_key(role)
        assert coin() != first
        pair.keys[role] = keys[role]
        assert coin() == first


def commitment(
    pair: Pair,
    body: Message,
    of: Role = B,
    *,
    held: SignedMessage | None = None,
    known: bytes | None = None,
) -> bytes:
    signed = signatures(pair.task.digest, of).sign(SignedKind.COIN_COMMITMENT, body)
    return CoinState(commitment=signed, held=held, known=known).to_bytes()


def opening(pair: Pair, body: Message, of: Role = B) -> bytes:
    signed = signatures(pair.task.digest, of).sign(SignedKind.COIN_OPENING, body)
    return CoinReveal(opening=signed).to_bytes()


def test_an_opening_of_another_coin_is_a_violation(pair: Pair) -> None:
    """B saw A's bytes first: it may not choose its own after."""
    own = pair.own(B)
    committed = commitment(pair, start_attempt.commitment_to(own, B))
    for changed in (
        {"coin": bytes(32)},
        {"salt": bytes(32)},
        {"version": 1},
        {"task": bytes(32)},
    ):
        other = opening(pair, own.model_copy(update=changed))
        with pytest.raises(PeerViolation, match="another coin"):
            pair.against_a(commitment=committed, opening=other)
        # Nothing of it was kept: the opening that was committed to is still taken.
        assert pair.stores[A].versions.coin_opening(0, own=False) is None
    # Nor is it taken from a stranger, or from the asker itself.
    with pytest.raises(PeerViolation):
        pair.against_a(commitment=committed, opening=opening(pair, own, of=A))
    pair.against_a(commitment=committed, opening=opening(pair, own))


def test_a_commitment_binds_one_server_task_and_version_and_hides_the_coin(
    pair: Pair,
) -> None:
    own = pair.own(B)
    for changed in ({"version": 1}, {"task": bytes(32)}):
        committed = start_attempt.commitment_to(own, B).model_copy(update=changed)
        with pytest.raises(PeerViolation, match="another task or version"):
            pair.against_a(commitment=commitment(pair, committed))
    # B can't give A's commitment back as its own and open it after A has.
    mine = pair.own(A)
    assert start_attempt.commitment_to(mine, A) != start_attempt.commitment_to(mine, B)
    with pytest.raises(PeerViolation):
        pair.against_a(
            commitment=commitment(pair, start_attempt.commitment_to(mine, A), of=A)
        )
    # Salted: who guesses the coin can't test the guess against the commitment.
    salted = own.model_copy(update={"salt": b"\x11" * 32})
    assert (
        start_attempt.commitment_to(own, B).digest
        != start_attempt.commitment_to(salted, B).digest
    )
    for shown_as in (repr, bytes.hex):
        assert shown_as(own.coin) not in repr(own)
        assert shown_as(own.salt) not in f"{own}"


def test_nothing_is_opened_before_the_others_commitment_is_durable(pair: Pair) -> None:
    order = Mock()

    def watched(_: object, own: Aggregator) -> Secret:
        if own.role is A:
            link, versions = own.link, own.store.versions
            order.attach_mock(Mock(wraps=link.send), "send")
            order.attach_mock(Mock(wraps=versions.keep_commitment), "keep")
            link.send = order.send  # type: ignore[method-assign]
            versions.keep_commitment = order.keep  # type: ignore[method-assign]
        return start_attempt.agree_coin(own, 0)

    assert pair.on_a_link(watched, (None, None))[0] == pair.draw()[0]
    first, kept, second = order.method_calls[:3]
    assert (first[1][0], second[1][0]) == ("coin-commitment", "coin-opening")
    assert (first[0], kept[0]) == ("send", "keep")


@OF_EITHER
@pytest.mark.parametrize("words", [0, 1])
def test_a_lost_coin_key_is_given_its_bytes_back(
    pair: Pair, role: Role, words: int
) -> None:
    """The other holds the opening, under the loser's own signature, whatever operators
    allow."""
    first = pair.coin()
    pair.lose_key(role)
    pair.allow(*[role] * words)
    pair.fails(PeerUnavailable)
    assert pair.coin() == first
    # The next version has the new key's coin.
    assert (
        pair.coin(1)
        == start_attempt.joint_coin(pair.own(A, 1), pair.own(B, 1)).reveal()
    )


@OF_EITHER
def test_bytes_that_nobody_opened_are_lost_until_both_say_so(
    pair: Pair, role: Role
) -> None:
    """Committed to, not opened, and the key is gone: nobody draws anew on one server's
    word."""
    pair.fails(cut=1)
    pair.lose_key(role)
    for words in ((), (A,)):
        pair.allow(*words)
        for error in pair.draw():
            assert isinstance(error, start_attempt.NeedsOperators), words
            assert (error.permission, error.version) == (Permission.COIN, 0)
            assert "precad allow coin HOST:PORT --server a|b --version 0" in str(error)
    # Both have given it: both servers take new coins, the one that lost nothing too.
    pair.allow(B)
    before = [pair.own(each) for each in SERVERS]
    assert all("new coins" in error for error in pair.fails(PeerUnavailable))
    # The certificate counts it.
    assert [pair.stores[each].versions.redrawn_coins() for each in SERVERS] == [1, 1]
    after = [pair.own(each) for each in SERVERS]
    assert all(old != new for old, new in zip(before, after, strict=True))
    assert pair.coin() == start_attempt.joint_coin(*after).reveal()


@OF_EITHER
def test_where_no_new_key_can_be_kept_no_old_coin_is_drawn_again(
    pair: Pair, role: Role
) -> None:
    """The other server may have seen it: it could choose its own after."""
    key, kept = Secret.random(), list[Secret]()
    pair.keys[role] = CoinKey(key, Mock(side_effect=StorageFailure("no room")))
    old = pair.own(role)
    pair.fails(cut=1)
    pair.lose_key(other(role))
    pair.allow(*SERVERS)
    outcomes = dict(zip(SERVERS, pair.draw(), strict=True))
    assert isinstance(outcomes[role], StorageFailure)
    assert (pair.stores[role].versions.redrawn_coins(), pair.own(role)) == (0, old)
    # With room again, and started again: the operators of both are asked once more.
    pair.keys[role] = CoinKey(key, kept.append)
    pair.fails(start_attempt.NeedsOperators)
    pair.allow(*SERVERS)
    pair.fails(PeerUnavailable)
    assert pair.coin()
    assert pair.own(role) == CoinKey(kept[0]).opening(pair.task.digest, 0) != old
    assert len(kept) == 1


def shown(pair: Pair, held: SignedMessage, known: bytes = b"\xab" * 32) -> None:
    committed = start_attempt.commitment_to(pair.own(B), B)
    pair.against_a(commitment=commitment(pair, committed, known=known, held=held))


def test_an_opening_from_before_the_operators_word_is_not_taken_back(
    pair: Pair,
) -> None:
    """Else the other server would choose between the new coin and one with this one's
    old bytes."""
    pair.coin()
    old = pair.own(A)
    held = signatures(pair.task.digest, A).sign(SignedKind.COIN_OPENING, old)
    for store in pair.stores.values():
        store.versions.discard_coin(0)
    pair.keys[A].renew()
    new = pair.coin()
    with pytest.raises(start_attempt.NeedsOperators):
        shown(pair, held, start_attempt.commitment_to(old, A).digest)
    assert pair.stores[A].versions.coin_opening(0, own=True) is None
    assert pair.coin() == new


@pytest.mark.parametrize(
    "what", ["another version", "another task", "the other server's"]
)
def test_what_is_given_back_must_be_ones_own(pair: Pair, what: str) -> None:
    """A server that shows some other opening can't make this one draw by it."""
    pair.coin()
    task = Digest(bytes(32)) if what == "another task" else pair.task.digest
    own = pair.keys[A].opening(task, int(what == "another version"))
    pens = signatures(pair.task.digest, B if what == "the other server's" else A)
    pair.lose_key(A)
    with pytest.raises(PeerViolation):
        shown(pair, pens.sign(SignedKind.COIN_OPENING, own))
    assert pair.stores[A].versions.coin_opening(0, own=True) is None


MANY = roster_of(ClientId(f"c{i}") for i in range(20_000))
EVERYBODY = [ClientId(f"c{i}") for i in range(30)]


@pytest.mark.parametrize("rate", [0.01, 0.5])
def test_clients_are_drawn_at_the_rate(rate: float) -> None:
    """Two-sided binomial test; a right sampler fails once in a million."""
    drawn = len(start_attempt.cohort_of(Secret.random(), MANY, rate, 0))
    assert stats.binomtest(drawn, len(MANY), rate).pvalue > 1e-6
    # The test can fail: at half the odds.
    wrong = rate / (2 - rate)
    assert stats.binomtest(drawn, len(MANY), wrong).pvalue < 1e-6


@settings(max_examples=50)
@given(
    coin=st.binary(min_size=32, max_size=32).map(Secret),
    names=st.sets(st.sampled_from(EVERYBODY)),
    order=st.randoms(use_true_random=False),
    version=st.integers(0, 2**32),
)
def test_a_draw_depends_on_nobody_else(
    coin: Secret, names: set[ClientId], order: Random, version: int
) -> None:
    """Neither on who else is enrolled, nor on their order: an owner's presence moves
    nobody."""
    everybody, some = list(EVERYBODY), sorted(names)
    order.shuffle(everybody)
    order.shuffle(some)
    whole = start_attempt.cohort_of(coin, roster_of(everybody), 0.5, version)
    drawn = start_attempt.cohort_of(coin, roster_of(some), 0.5, version)
    assert (len(set(drawn)), set(drawn)) == (len(drawn), set(whole) & names)


def test_each_client_and_each_version_is_drawn_by_itself() -> None:
    """Neither neighbours nor versions depend on each other."""
    coin, few = Secret.random(), roster_of(map(ClientId, "ab"))
    first, second = few
    counts, runs, previous = [[0, 0], [0, 0]], [[0, 0], [0, 0]], False
    for version in range(4000):
        drawn = start_attempt.cohort_of(coin, few, 0.5, version)
        counts[first in drawn][second in drawn] += 1
        runs[previous][first in drawn] += 1
        previous = first in drawn
    for table in (counts, runs):
        assert stats.chi2_contingency(table).pvalue > 1e-6
