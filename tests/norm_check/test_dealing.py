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


# --- once ---------------------------------------------------------------------------------------


def test_a_batch_is_dealt_once_to_each_server() -> None:
    """A server that was put back from a copy would open two updates under one mask."""
    dealer = DealerRole(TASK, D)
    for role in KEYS:
        dealer.corrections(role, REQUEST)
    for role in KEYS:
        with pytest.raises(PeerUnavailable, match="attempt 2 is dealt for once"):
            dealer.corrections(role, REQUEST)
    # Other batches of the attempt still are.
    for role in KEYS:
        dealer.corrections(role, replace(REQUEST, batch=2))


def test_nobody_deals_for_a_task_without_a_dealer() -> None:
    """It would wait for servers that never come, and say that it deals."""
    with pytest.raises(Misconfiguration, match='validation = "proof" has no dealer'):
        DealerRole.of(task_with({"validation": "proof"}))
    assert DealerRole.of(task_with({})).newest_attempt == -1


def test_an_older_attempt_is_never_dealt_for_again() -> None:
    dealer = DealerRole(TASK, D)
    assert dealer.newest_attempt == -1
    both(REQUEST, dealer)
    both(replace(REQUEST, attempt=4), dealer)
    assert dealer.newest_attempt == 4
    for attempt in (0, 2, 3):
        for role in KEYS:
            with pytest.raises(PeerUnavailable, match=f"attempt {attempt} is dealt for once"):
                dealer.corrections(role, replace(REQUEST, attempt=attempt, batch=7))
    # What was refused leaves the newest attempt as it was.
    with pytest.raises(PeerUnavailable):
        dealer.corrections(Role.SERVER_A, replace(REQUEST, attempt=4))
    both(replace(REQUEST, attempt=4, batch=3), dealer)


@pytest.mark.parametrize("refused", [TASK, Digest.of(b"other")])
def test_a_request_that_is_refused_spends_nothing(refused: Digest) -> None:
    dealer = DealerRole(TASK, D)
    role = Role.CLIENT if refused == TASK else Role.SERVER_A
    with pytest.raises((TaskMismatch, PeerViolation)):
        dealer.corrections(role, replace(REQUEST, task=refused, attempt=9))
    assert dealer.newest_attempt == -1
    both(REQUEST, dealer)


@pytest.mark.parametrize(
    ("field", "changed"), [("clients", 6), ("comparisons", 9), ("nonces", NONCES[::-1])]
)
def test_the_second_server_gets_the_firsts_batch_or_none(field: str, changed: Any) -> None:
    dealer = DealerRole(TASK, D)
    dealer.corrections(Role.SERVER_A, REQUEST)
    with pytest.raises(PeerViolation, match="was asked for before"):
        dealer.corrections(Role.SERVER_B, replace(REQUEST, **{field: changed}))


# --- nonces -------------------------------------------------------------------------------------


def masks_of(request: DealRequest) -> set[int]:
    """Every word of both servers' parts at a dealer that forgot what it dealt."""
    found: set[int] = set()
    for randomness in both(request, DealerRole(request.task, D, KEYS)):
        for triple in randomness.binary_triples():
            found |= {*triple.a.ravel().tolist(), *triple.b.ravel().tolist()}
    return found


# --- who ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", [Role.DEALER, Role.CLIENT, Role.OPERATOR])
def test_nobody_but_the_servers_is_dealt_to(role: Role) -> None:
    dealer = DealerRole(TASK, D)
    with pytest.raises(PeerViolation, match="only servers"):
        dealer.key_for(role)
    with pytest.raises(PeerViolation, match="only servers"):
        dealer.corrections(role, REQUEST)


@pytest.mark.parametrize("change", [-1, 1])
def test_a_wrong_number_of_correction_words_is_the_dealers_violation(change: int) -> None:
    words = np.zeros(REQUEST.correction_words + change, dtype=np.int64)
    with pytest.raises(PeerViolation, match="correction words"):
        DealtRandomness(Role.SERVER_B, KEYS[Role.SERVER_B], REQUEST, words)


def test_triples_are_handed_out_once() -> None:
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


@pytest.mark.parametrize(
    "change",
    [
        {"attempt": -1},
        {"batch": -1},
        {"clients": 0},
        {"comparisons": 0},
        {"clients": 2**40},
        {"comparisons": 7},
        {"comparisons": 2**40},
        {"clients": 1.0},
        {"batch": True},
    ],
    ids=str,
)
def test_requests_out_of_range_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(Misconfiguration, match=next(iter(change))):
        replace(REQUEST, **change)


# --- for every shape -----------------------------------------------------------------------------

COMPARISONS = 7
"""ANDs before the first conjunction."""
keys = st.binary(min_size=32, max_size=32).map(Secret)


@st.composite
def requests(draw: st.DrawFn) -> DealRequest:
    clients = draw(st.integers(1, 4))
    return DealRequest(
        task=TASK,
        attempt=draw(st.integers(0, ATTEMPTS - 1)),
        batch=draw(st.integers(0, 2**31 - 1)),
        clients=clients,
        comparisons=clients * draw(st.integers(1, 50)),
        nonces=draw(st.binary(min_size=64, max_size=64)),
    )


@settings(max_examples=25)
@given(request=requests(), key_a=keys, key_b=keys)
def test_c_is_a_and_b(request: DealRequest, key_a: Secret, key_b: Secret) -> None:
    if key_a == key_b:
        return
    dealer = DealerRole(TASK, 1, {Role.SERVER_A: key_a, Role.SERVER_B: key_b})
    (of_a, of_b), shapes = both(request, dealer), []
    for one, other in zip(of_a.binary_triples(), of_b.binary_triples(), strict=True):
        shapes.append(one.a.shape)
        assert one.b.shape == other.a.shape == one.a.shape
        expected = (one.a ^ other.a) & (one.b ^ other.b)
        assert np.array_equal(one.c ^ other.c, expected)
    assert tuple(shapes) == program(request.clients, request.comparisons)


@given(clients=st.integers(1, 5), width=st.integers(1, 600))
def test_a_conjunctions_tree_leaves_one_value_a_client(clients: int, width: int) -> None:
    values, levels = width, 0
    for trees, pairs in program(clients, clients * width)[COMPARISONS:]:
        assert trees == clients
        assert pairs == values // 2
        values = pairs + values % 2
        levels += 1
    assert values == 1
    assert levels == (width - 1).bit_length()


def test_the_tree_of_a_tasks_81_signs_takes_seven_exchanges_and_80_words_a_client() -> None:
    shapes = program(10, 810)
    assert shapes[:COMPARISONS] == ((810,), *[(2, 810)] * 6)
    assert shapes[COMPARISONS:] == tuple((10, pairs) for pairs in (40, 20, 10, 5, 3, 1, 1))
