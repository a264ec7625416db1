"""Each server's shares alone are uniform on the ring, whatever the update."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats
from tests.rig.keys import signer
from tests.rig.submissions import expanded

from precad.common.identifiers import ClientId, Digest
from precad.common.ring import from_bytes, to_bytes
from precad.common.share.submission import shard
from precad.common.task import Task

D = 8
RUNS = 4000
# One in a million for each of a few hundred tests.
LEAST_P = 1e-8
CLIENT = ClientId("ward-1")
DIGEST = Digest(b"\1" * 32)
UPDATES = {
    "zero": np.zeros(D, dtype=np.int64),
    "small": np.arange(-4, 4, dtype=np.int64),
    "at-the-bound": np.array([2**25] + [0] * (D - 1), dtype=np.int64),
    "wild": np.array([-(2**63), 2**63 - 1, 2**32, -1, 0, 1, 2**62, -(2**40)], dtype=np.int64),
}


def byte_fits(words: NDArray[np.int64]) -> float:
    """Least p over the eight byte positions of a word, each against 256 equal bins."""
    table = words.astype("<i8").view(np.uint8).reshape(-1, 8)
    return min(
        float(stats.chisquare(np.bincount(table[:, i], minlength=256)).pvalue) for i in range(8)
    )


def bit_pairs_fit(words: NDArray[np.int64]) -> float:
    """Least p over neighbouring bits: no bit depends on the next."""
    bits = np.unpackbits(words.astype("<i8").view(np.uint8).reshape(-1, 8), axis=1)
    pairs = 2 * bits[:, :-1] + bits[:, 1:]
    return min(
        float(stats.chisquare(np.bincount(pairs[:, i], minlength=4)).pvalue) for i in range(63)
    )


@pytest.fixture(scope="module", params=list(UPDATES))
def shares(request: pytest.FixtureRequest) -> tuple[NDArray[np.int64], NDArray[np.int64], bytes]:
    """Both servers' shares, ``[runs, d]``, and A's seeds, of one update shared again and again."""
    x = UPDATES[request.param]
    of_a, of_b, seeds = [], [], []
    pen = signer(CLIENT)
    for _ in range(RUNS):
        a, b = shard(x, task=DIGEST, version=0, attempt=0, client=CLIENT, model=DIGEST, signer=pen)
        of_a.append(expanded(a, D))
        of_b.append(expanded(b, D))
        seeds += [a.seed.reveal(), b.seed.reveal()]
        assert (of_a[-1] + of_b[-1] == x).all()
    return np.array(of_a), np.array(of_b), b"".join(seeds)


@pytest.mark.parametrize("server", [0, 1], ids=["a", "b"])
def test_a_servers_shares_are_uniform(shares: Any, server: int) -> None:
    words = shares[server]
    assert byte_fits(words.reshape(-1)) > LEAST_P
    assert bit_pairs_fit(words.reshape(-1)) > LEAST_P
    # Each coordinate by itself, and no share twice.
    for coordinate in words.T:
        assert byte_fits(np.ascontiguousarray(coordinate)) > LEAST_P
    assert np.unique(words).size == words.size


def test_the_seeds_are_uniform(shares: Any) -> None:
    assert byte_fits(from_bytes(shares[2])) > LEAST_P


def test_the_shares_of_one_server_do_not_depend_on_each_other(shares: Any) -> None:
    """Neighbouring coordinates and neighbouring runs, by the top three bits of each."""
    for words in shares[:2]:
        top = (words.view(np.uint64) >> np.uint64(61)).astype(np.int64)
        for one, other in ((top[:, :-1], top[:, 1:]), (top[:-1], top[1:])):
            pairs = (8 * one + other).reshape(-1)
            assert stats.chisquare(np.bincount(pairs, minlength=64)).pvalue > LEAST_P


def test_what_is_opened_is_uniform_too(watch: Any, make_task: Callable[..., Task]) -> None:
    """Both shares of x − a, their sum, and the words of the comparisons."""
    task = make_task(D, {"enrolment.clients": 200})
    x = np.array([2**20, 0, -5, 7, 0, 0, 0, 1], dtype=np.int64)
    clients = {ClientId(f"c{i}"): x for i in range(200)}
    received, opened, compared = [], [], []
    for watched in [watch(task, clients) for _ in range(4)]:
        for view in watched:
            for place in range(len(clients)):
                received.append(view.opening(place, view.received))
                if view is watched.a:
                    # Both servers see the same sum.
                    opened.append(received[-1] + view.opening(place, view.sent))
            # All but the last exchange, in which the sign bits themselves are opened.
            compared += [from_bytes(m) for m in view.messages(view.received, "/compare/")[:-1]]
    for words in (received, opened, compared):
        assert byte_fits(np.concatenate(words)) > LEAST_P
        assert bit_pairs_fit(np.concatenate(words)) > LEAST_P


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
    assert min(byte_fits(words), bit_pairs_fit(words)) < LEAST_P
