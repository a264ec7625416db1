"""The secret rows of the range test: their distribution, what they are bound to, exactness."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from precad.common.aggregator.validate.rows import BLOCK, project, row_blocks
from precad.common.encode.clip import CLIENT_MARGIN
from precad.common.headroom import TAU
from precad.common.identifiers import ClientId, Digest
from precad.common.ring import RingVector, dot
from precad.common.secret import Secret

SECRET = Secret(bytes(range(32)))
CONTEXT: dict[str, Any] = {
    "task": Digest.of(b"task"),
    "attempt": 3,
    "client": ClientId("ward-3"),
    "commitment_a": bytes(32),
    "commitment_b": bytes([1]) * 32,
}
BETA = 30 * 2**16
ADVERSARIAL: dict[str, Callable[[int], RingVector]] = {
    "one multiple of 2^32": lambda d: np.eye(1, d, dtype=np.int64)[0] << 32,
    "all multiples of 2^32": lambda d: np.full(d, 2**32, dtype=np.int64),
    "one -2^63": lambda d: np.eye(1, d, dtype=np.int64)[0] * np.int64(-(2**63)),
    "all -2^63": lambda d: np.full(d, -(2**63), dtype=np.int64),
    "two halves of the ring": lambda d: (np.arange(d) < 2).astype(np.int64) * np.int64(-(2**62)),
    "just beyond 2τβ": lambda d: np.eye(1, d, dtype=np.int64)[0] * (2 * TAU * BETA + 1),
    "64β spread evenly": lambda d: np.full(d, 64 * BETA // int(np.sqrt(d)), dtype=np.int64),
}


def rows(dimension: int, k: int, secret: Secret = SECRET, **changed: Any) -> NDArray[np.int64]:
    """All rows at once: ``[k, d] int64``."""
    blocks = row_blocks(secret, dimension, k, **{**CONTEXT, **changed})
    return np.concatenate([block.astype(np.int64) for block in blocks], axis=1)


def test_entries_are_minus_one_zero_one_with_a_quarter_a_half_a_quarter() -> None:
    s = rows(50_000, 40)
    assert s.shape == (40, 50_000)
    values, counts = np.unique(s, return_counts=True)
    assert values.tolist() == [-1, 0, 1]
    expected = np.array([0.25, 0.5, 0.25]) * s.size
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    assert chi_square < 20  # two degrees of freedom: 5e-5


def test_entries_are_unbiased_in_each_row_and_place_of_a_byte_and_uncorrelated() -> None:
    s = rows(40_000, 40)
    deviation = np.sqrt(0.5)
    assert np.abs(s.mean(axis=1)).max() < 5 * deviation / np.sqrt(40_000)
    for place in range(4):
        assert abs(s[:, place::4].mean()) < 5 * deviation / np.sqrt(400_000)
        assert abs((s[:, place::4] ** 2).mean() - 0.5) < 5 * 0.5 / np.sqrt(400_000)
    correlations = (s @ s.T) / (0.5 * 40_000)
    assert np.abs(correlations - np.eye(40)).max() < 6 / np.sqrt(40_000)
    neighbours = (s[:, 1:] * s[:, :-1]).mean()
    assert abs(neighbours) < 5 * 0.5 / np.sqrt(s.size)


@pytest.mark.parametrize(
    "changed",
    [
        {"task": Digest.of(b"other")},
        {"attempt": 4},
        {"client": ClientId("ward-4")},
        {"commitment_a": bytes([2]) * 32},
        {"commitment_b": bytes([2]) * 32},
        {"commitment_a": CONTEXT["commitment_b"], "commitment_b": CONTEXT["commitment_a"]},
        {"secret": Secret(bytes(32))},
    ],
    ids="+".join,
)
def test_rows_differ_wherever_their_context_or_secret_does(changed: dict[str, Any]) -> None:
    agree = (rows(1000, 40) == rows(1000, 40, **changed)).mean()
    assert abs(agree - 0.375) < 0.02  # what independent rows agree in: 1/16 + 1/4 + 1/16


@pytest.mark.parametrize("dimension", [1, 3, 4, 5, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 7])
def test_projections_are_exact_in_the_ring(dimension: int) -> None:
    rng = np.random.default_rng(1)
    x = rng.integers(-(2**63), 2**63 - 1, dimension, endpoint=True)
    x[: min(3, dimension)] = [-(2**63), 2**63 - 1, -1][: min(3, dimension)]
    z = project(SECRET, x, 40, **CONTEXT)
    assert z.dtype == np.int64
    assert z.tolist() == [dot(row, x) for row in rows(dimension, 40)]


def test_projections_of_extreme_words_are_exact() -> None:
    for value in (-(2**63), 2**63 - 1, -1, 2**32 - 1, -(2**32), 0):
        x = np.full(2 * BLOCK, value, dtype=np.int64)
        z = project(SECRET, x, 64, **CONTEXT)
        assert z.tolist() == [dot(row, x) for row in rows(x.size, 64)]


def test_projections_of_shares_add_up_to_the_projection_of_the_update() -> None:
    rng = np.random.default_rng(2)
    x, share = rng.integers(-(2**63), 2**63 - 1, (2, 5000), endpoint=True)
    total = project(SECRET, share, 40, **CONTEXT) + project(SECRET, x - share, 40, **CONTEXT)
    assert total.tolist() == project(SECRET, x, 40, **CONTEXT).tolist()


def test_the_share_is_left_as_it_was_and_may_be_read_only() -> None:
    share = np.arange(5000, dtype=np.int64)
    share.flags.writeable = False
    project(SECRET, share, 40, **CONTEXT)
    assert share.tolist() == list(range(5000))


@pytest.mark.parametrize("name", ADVERSARIAL)
def test_one_row_passes_a_long_vector_at_most_half_the_time(name: str) -> None:
    d, k, submissions = 256, 256, 16
    x = ADVERSARIAL[name](d)
    passed = 0
    for number in range(submissions):
        z = rows(d, k, client=ClientId(f"c-{number}")) @ x
        # Two one-sided comparisons, never abs: |−2^63| overflows.
        passed += int(((z >= -TAU * BETA) & (z <= TAU * BETA)).sum())
    trials = k * submissions
    assert passed / trials < 0.5 + 4 * 0.5 / np.sqrt(trials)


def plainly_valid(x: NDArray[np.int64], s: NDArray[np.int64], beta: int) -> NDArray[np.bool_]:
    """The predicate in plain integers for ``[d, n]`` vectors small enough not to wrap."""
    z = s @ x
    in_range = ((z >= -TAU * beta) & (z <= TAU * beta)).all(axis=0)
    valid: NDArray[np.bool_] = in_range & ((x * x).sum(axis=0) <= beta * beta)
    return valid


def test_a_hundred_thousand_honest_vectors_pass_the_plain_predicate() -> None:
    # Without MPC; test_corpus.py puts hundreds through it. 250 row sets, 400 vectors on each:
    # dense, sparse and one-hot directions, all as long as an honest client's may be.
    rng = np.random.default_rng(3)
    d, beta, accepted = 64, int(30.1 * 2**16), 0
    for number in range(250):
        s = rows(d, 40, client=ClientId(f"c-{number}"))
        real = rng.standard_normal((d, 400))
        real[:, 100:200] *= rng.random((d, 100)) < 0.1
        real[:, 200:300] = np.sign(real[:, 200:300])
        real[:, 300:] = np.eye(d)[rng.integers(d, size=100)].T
        norms = np.linalg.norm(real, axis=0)
        clipped = real * (beta * CLIENT_MARGIN / np.where(norms > 0, norms, 1))
        accepted += int(plainly_valid(np.trunc(clipped).astype(np.int64), s, beta).sum())
    assert accepted == 100_000
