"""The dealer's correction words and what the servers expand from them."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.rig.tasks import task_with

from precad.common.errors import Misconfiguration, PeerUnavailable, PeerViolation, TaskMismatch
from precad.common.identifiers import ATTEMPTS, Digest, Role, Secret
from precad.dealer.dealer_role import DealerRole
from precad.norm_check.dealing import DealRequest, DealtRandomness, program

TASK = Digest.of(b"task")
D = 5
NONCES = bytes(range(64))
REQUEST = DealRequest(TASK, attempt=2, batch=1, clients=3, comparisons=6, nonces=NONCES)
KEYS = {Role.SERVER_A: Secret(bytes(32)), Role.SERVER_B: Secret(bytes([1]) * 32)}


def both(request: DealRequest, dealer: DealerRole) -> tuple[DealtRandomness, DealtRandomness]:
    a, b = (
        DealtRandomness(role, dealer.key_for(role), request, dealer.corrections(role, request))
        for role in KEYS
    )
    return a, b


def test_a_batch_is_dealt_once_to_each_server() -> None:
    """A server that was put back from a copy would open two updates under one mask."""
    dealer = DealerRole(TASK, D)
    both(REQUEST, dealer)
    for role in KEYS:
        with pytest.raises(PeerUnavailable, match="attempt 2 is dealt for once"):
            dealer.corrections(role, REQUEST)
    # Other batches of the attempt still are, alike to both servers.
    changes: list[dict[str, Any]] = [{"clients": 6}, {"comparisons": 9}, {"nonces": NONCES[::-1]}]
    for batch, change in enumerate(changes, 2):
        other = replace(REQUEST, batch=batch)
        dealer.corrections(Role.SERVER_A, other)
        with pytest.raises(PeerViolation, match="was asked for before"):
            dealer.corrections(Role.SERVER_B, replace(other, **change))
    both(replace(REQUEST, batch=5), dealer)


def test_an_older_attempt_is_never_dealt_for_again() -> None:
    dealer = DealerRole(TASK, D)
    both(REQUEST, dealer)
    both(replace(REQUEST, attempt=4), dealer)
    for attempt in (0, 2, 3):
        for role in KEYS:
            with pytest.raises(PeerUnavailable, match=f"attempt {attempt} is dealt for once"):
                dealer.corrections(role, replace(REQUEST, attempt=attempt, batch=7))
    # What was refused leaves the newest attempt as it was.
    assert dealer.newest_attempt == 4
    both(replace(REQUEST, attempt=4, batch=3), dealer)


def masks_of(request: DealRequest) -> set[int]:
    """Every word of both servers' parts at a dealer that forgot what it dealt."""
    found: set[int] = set()
    for randomness in both(request, DealerRole(request.task, D, KEYS)):
        for triple in randomness.binary_triples():
            found |= {*triple.a.ravel().tolist(), *triple.b.ravel().tolist()}
    return found


def test_nobody_but_the_tasks_servers_is_dealt_to_and_a_refusal_spends_nothing() -> None:
    dealer, later = DealerRole(TASK, D), replace(REQUEST, attempt=9)
    for role in (Role.DEALER, Role.CLIENT, Role.OPERATOR):
        with pytest.raises(PeerViolation, match="only servers"):
            dealer.key_for(role)
        with pytest.raises(PeerViolation, match="only servers"):
            dealer.corrections(role, later)
    with pytest.raises(TaskMismatch):
        dealer.corrections(Role.SERVER_A, replace(later, task=Digest.of(b"other")))
    assert dealer.newest_attempt == -1
    both(REQUEST, dealer)
    # Nobody deals for a task without a dealer: it would wait for servers that never come.
    with pytest.raises(Misconfiguration, match='validation = "proof" has no dealer'):
        DealerRole.of(task_with({"validation": "proof"}))


def test_correction_words_are_as_many_as_the_triples_and_used_once() -> None:
    for change in (-1, 1):
        words = np.zeros(REQUEST.correction_words + change, dtype=np.int64)
        with pytest.raises(PeerViolation, match="correction words"):
            DealtRandomness(Role.SERVER_B, KEYS[Role.SERVER_B], REQUEST, words)
    randomness, _ = both(REQUEST, DealerRole(TASK, D))
    randomness.binary_triples()
    with pytest.raises(RuntimeError, match="used already"):
        randomness.binary_triples()


def test_different_batches_attempts_tasks_and_nonces_have_different_masks() -> None:
    other_nonces = [bytes(i == place for i in range(64)) for place in (0, 31, 32, 63)]
    changes: list[dict[str, Any]] = [
        {},
        {"batch": 2},
        {"attempt": 3},
        {"task": Digest.of(b"other")},
        # Both servers were put back to before an attempt: the same number, masks of its own.
        *({"nonces": nonces} for nonces in other_nonces),
    ]
    masks = [masks_of(replace(REQUEST, **change)) for change in changes]
    # No word twice, also not within one request.
    words = 2 * 2 * REQUEST.correction_words
    assert [len(each) for each in masks] == [words] * len(changes)
    assert len(set.union(*masks)) == len(changes) * words
    assert masks_of(REQUEST) == masks[0]


def test_parts_of_one_server_are_balanced_bits() -> None:
    request = replace(REQUEST, comparisons=300)
    for randomness in both(request, DealerRole(TASK, D, KEYS)):
        words = []
        for triple in randomness.binary_triples():
            words += [triple.a.ravel(), triple.b.ravel(), triple.c.ravel()]
        counts = np.bincount(np.concatenate(words).view(np.uint8), minlength=256)
        expected = counts.sum() / 256
        assert ((counts - expected) ** 2 / expected).sum() < 255 + 5 * np.sqrt(2 * 255)


BAD = {
    "attempt": (-1,),
    "batch": (-1, True),
    "clients": (0, 2**40, 1.0),
    "comparisons": (0, 7, 2**40),
}


@pytest.mark.parametrize(("field", "wrong"), [(f, value) for f in BAD for value in BAD[f]])
def test_requests_out_of_range_are_refused(field: str, wrong: Any) -> None:
    with pytest.raises(Misconfiguration, match=field):
        replace(REQUEST, **{field: wrong})


@settings(max_examples=25)
@given(
    keys=st.sets(st.binary(min_size=32, max_size=32), min_size=2, max_size=2),
    clients=st.integers(1, 4),
    width=st.integers(1, 90),
    attempt=st.integers(0, ATTEMPTS - 1),
    batch=st.integers(0, 2**31 - 1),
    nonces=st.binary(min_size=64, max_size=64),
)
def test_c_is_a_and_b_for_every_shape(
    keys: set[bytes], clients: int, width: int, attempt: int, batch: int, nonces: bytes
) -> None:
    request = DealRequest(TASK, attempt, batch, clients, clients * width, nonces)
    dealer = DealerRole(TASK, 1, dict(zip(KEYS, map(Secret, keys), strict=True)))
    (of_a, of_b), shapes = both(request, dealer), []
    for one, other in zip(of_a.binary_triples(), of_b.binary_triples(), strict=True):
        shapes.append(one.a.shape)
        assert one.b.shape == other.a.shape == one.a.shape
        expected = (one.a ^ other.a) & (one.b ^ other.b)
        assert np.array_equal(one.c ^ other.c, expected)
    assert tuple(shapes) == program(clients, clients * width)
    # After a comparison's seven exchanges a tree of conjunctions leaves one value a client.
    levels, values = shapes[7:], width
    for trees, pairs in levels:
        assert (trees, pairs) == (clients, values // 2)
        values -= pairs
    assert (values, len(levels)) == (1, (width - 1).bit_length())
