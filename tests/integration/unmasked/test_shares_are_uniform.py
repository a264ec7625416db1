"""What each party holds alone is uniform on the ring, whatever the update."""

from collections import defaultdict
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats
from tests.conftest import small_task
from tests.rig.keys import signer
from tests.rig.submissions import Pair, body_of, words_of

from precad.common.identifiers import ClientId, Digest, Role, Secret
from precad.common.ring import dot, from_bytes, signed, to_bytes
from precad.common.share.submission import SubmissionContext, shard
from precad.dealer.dealer_role import DealerRole
from precad.norm_check.dealing import SquareRequest

D = 8
RUNS = 4000
LEAST_P = 1e-10
"""Of some 4,000 fits: a false alarm in one of 10^6 runs.

Of 32,000 words it tells nine times in ten where one value of a byte comes 2.4 times as often as it
should, where one half of a byte's values comes 9 % too often, or a pair of bits 5 %.
"""
CLIENT = ClientId("ward-1")
DIGEST = Digest(b"\1" * 32)
UPDATES = {
    "zero": np.zeros(D, dtype=np.int64),
    "wild": np.array([-(2**63), 2**63 - 1, 2**32, -1, 0, 1, 2**62, -(2**40)], dtype=np.int64),
}


def even(values: NDArray[Any], bins: int) -> float:
    """p of equal bins."""
    return float(stats.chisquare(np.bincount(values, minlength=bins)).pvalue)


def bytes_fit(words: NDArray[np.int64]) -> float:
    """Least p over the eight byte positions of a word, each against 256 equal bins."""
    table = np.ascontiguousarray(words, "<i8").view(np.uint8).reshape(-1, 8)
    return min(even(table[:, i], 256) for i in range(8))


def fit(words: NDArray[np.int64]) -> float:
    """Least p, also over neighbouring bits: no bit depends on the next."""
    bits = np.unpackbits(words.astype("<i8").view(np.uint8).reshape(-1, 8), axis=1)
    pairs = 2 * bits[:, :-1] + bits[:, 1:]
    return min(bytes_fit(words), *(even(pairs[:, i], 4) for i in range(63)))


def independent(one: NDArray[np.int64], other: NDArray[np.int64]) -> float:
    """p of the top three bits of each being a pair of coins' outcomes."""
    a, b = (
        (np.ascontiguousarray(each).reshape(-1).view(np.uint64) >> np.uint64(61)).astype(int)
        for each in (one, other)
    )
    return even(8 * a + b, 64)


@pytest.fixture(scope="module", params=list(UPDATES))
def shares(request: pytest.FixtureRequest) -> dict[str, NDArray[np.int64]]:
    """Of one update shared again and again: what each party has of it, ``[runs, n]``."""
    x = UPDATES[request.param]
    seen: dict[str, list[NDArray[np.int64]]] = defaultdict(list)
    pen, dealer = signer(CLIENT), DealerRole(DIGEST, D)
    for _ in range(RUNS):
        pair = shard(x, SubmissionContext(DIGEST, 0, 0, CLIENT, DIGEST), pen)
        a_a, a_b = (each.mask().words(D) for each in pair)
        b = from_bytes(words_of(pair[1]))
        assert (b + a_a + a_b == x).all()
        keys, r = squared(dealer, pair)
        assert signed(sum(r)) == dot(a_a + a_b, a_a + a_b)
        for name, words in (("a_A", a_a), ("a_B", a_b), ("b", b), ("b + a_B", b + a_b)):
            seen[name].append(words)
        for name, number in (("r_A", r[0]), ("r_B", r[1])):
            seen[name].append(np.array([number]))
        secrets = [each.seed.reveal() + each.salt.reveal() for each in pair]
        seen["seeds and salts"].append(from_bytes(b"".join(secrets)))
        seen["salt_h"].append(from_bytes(body_of(pair[1])[:32]))
        seen["nonce"].append(from_bytes(pair[0].context.nonce))
        seen["row key"].append(from_bytes(keys[0]))
        assert keys[0] == keys[1]
    return {name: np.array(rows) for name, rows in seen.items()}


def squared(dealer: DealerRole, pair: Pair) -> tuple[list[bytes], list[int]]:
    """What the dealer answers A and B about a submission: row keys, then shares of r."""
    keys: list[bytes] = []
    shares: dict[Role, int] = {}
    for each in pair:
        header, ctx = each.header, each.context.digest.value
        c_a, c_b = header.commitment_a.value, header.commitment_b.value
        half = SquareRequest(DIGEST, 0, ctx, c_a, c_b, each.seed, each.salt)

        def deliver(_: bytes, answer: Any, role: Role = each.role) -> None:
            if isinstance(answer, Secret):
                keys.append(answer.reveal())
            else:
                shares[role] = answer

        if work := dealer.ask(each.role, half, deliver):
            work()
    return keys, [shares[Role.SERVER_A], shares[Role.SERVER_B]]


SHARES = ["a_A", "a_B", "b", "b + a_B", "r_A", "r_B"]
"""The first two and the last two are one server's each; of b A sees what B sees."""


@pytest.mark.parametrize("share", [*SHARES, "seeds and salts", "salt_h", "nonce", "row key"])
def test_each_share_alone_is_uniform(shares: Any, share: str) -> None:
    words = shares[share]
    # Each coordinate by itself too, and no share twice.
    assert min(fit(words), *(bytes_fit(coordinate) for coordinate in words.T)) > LEAST_P
    assert np.unique(words).size == words.size
    # Nor do neighbouring coordinates and neighbouring runs depend on each other.
    for one, other in ((words[:, :-1], words[:, 1:]), (words[:-1], words[1:])):
        if share in SHARES and one.size:
            assert independent(one, other) > LEAST_P


@pytest.mark.parametrize("party", ["A", "B"])
def test_what_one_server_holds_together_is_uniform_together(shares: Any, party: str) -> None:
    """b with one mask is as good as alone; also their sums and differences are uniform."""
    own, r, b = (shares[each] for each in (f"a_{party}", f"r_{party}", "b"))
    assert min(fit(b + own), fit(b - own), independent(own, b)) > LEAST_P
    assert min(independent(r, own[:, 0]), independent(r, b[:, 0])) > LEAST_P


def test_what_the_dealer_holds_together_is_uniform_together(shares: Any) -> None:
    whole = shares["a_A"] + shares["a_B"]
    assert min(bytes_fit(whole), independent(shares["a_A"], shares["a_B"])) > LEAST_P
    # The control: with b they are the update, which each of the three lacks something of.
    x = whole + shares["b"]
    assert max(bytes_fit(x), independent(x[:-1], x[1:])) < LEAST_P


def test_what_crosses_between_the_servers_is_uniform_too(watch: Any) -> None:
    """Bodies, the words of the comparisons and of the AND: all but the last message, the bits."""
    task = small_task(D, {"enrolment.clients": 200})
    x = np.array([2**20, 0, -5, 7, 0, 0, 0, 1], dtype=np.int64)
    clients = {ClientId(f"c{i}"): x for i in range(200)}
    received: dict[str, list[NDArray[np.int64]]] = defaultdict(list)
    for watched in [watch(task, clients) for _ in range(2)]:
        received["b"] += [watched.a.body(client)[1] for client in clients]
        for view in watched:
            messages = view.messages(view.received, "decide/")
            assert len(messages) == 15
            server = view.role.value
            received[f"signs to {server}"] += [from_bytes(m) for m in messages[:7]]
            received[f"and to {server}"] += [from_bytes(m) for m in messages[7:-1]]
    assert len(received) == 5
    assert min(fit(np.concatenate(words)) for words in received.values()) > LEAST_P


@pytest.mark.parametrize("broken", ["update", "mask-of-63-bits", "mask-of-a-float", "one-byte"])
def test_the_tests_see_what_is_not_uniform(broken: str) -> None:
    random = np.random.default_rng(1)
    words = random.integers(-(2**63), 2**63, RUNS * D, dtype=np.int64)
    if broken == "update":
        words = np.tile(UPDATES["wild"], RUNS)
    elif broken == "mask-of-63-bits":
        words = words >> 1
    elif broken == "mask-of-a-float":
        words = (random.random(RUNS * D) * 2.0**63).astype(np.int64)
    else:
        shown = np.frombuffer(to_bytes(words), np.uint8).copy()
        shown[3::80] = 7
        words = from_bytes(shown.tobytes())
    assert fit(words) < LEAST_P
