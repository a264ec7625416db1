"""CrypTen's comparisons and their conjunction, over our communicator, and what they
decide."""

import json
import math
from collections import defaultdict
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.integration.validation.conftest import (
    task_of,
    validate_both,
    validate_with_proofs,
)
from tests.rig.aggregators import SERVERS, MemorySpentTriples
from tests.rig.commands import printed
from tests.rig.parties import play_both

from precad.aggregator.peer_link import PeerLink
from precad.aggregator.validate import crypten_comparisons as comparing
from precad.aggregator.validate.crypten_import import BinarySharedTensor, crypten
from precad.aggregator.validate.validation import deal_request
from precad.common import errors, task
from precad.common.fixed_point import encode
from precad.common.identifiers import Role
from precad.common.ring import RingVector
from precad.dealer.dealer_role import DealerRole
from precad.norm_check.dealing import (
    DealRequest,
    DealtRandomness,
    SpentTriples,
    program,
)

words = st.integers(-(2**63), 2**63 - 1) | st.sampled_from(
    [0, 1, -1, 2**63 - 1, -(2**63), -(2**63) + 1, 2**62, -(2**62), 2**32, -(2**32)]
)
Bits = NDArray[np.bool_]
Play = Callable[[Role, PeerLink], Bits]
TASK = task_of(16)


def randomness(dealer: DealerRole, role: Role, request: DealRequest) -> DealtRandomness:
    corrections = dealer.corrections(role, request)
    return DealtRandomness(role, dealer.key_for(role), request, corrections)


def compare(
    values: RingVector,
    share: RingVector,
    negative: Bits,
    provider: type[comparing.DealtProvider] = comparing.DealtProvider,
) -> Play:
    """Both servers' parts, A's share of the values given."""
    n, width = values.shape
    request = DealRequest(
        task=TASK.digest,
        attempt=0,
        batch=0,
        clients=n,
        comparisons=n * width,
        nonces=bytes(64),
    )
    dealer = DealerRole(TASK.digest, 1)

    def play(role: Role, link: PeerLink) -> Bits:
        triples = randomness(dealer, role, request).binary_triples()
        with comparing.acting_as(SERVERS.index(role), link, provider(triples)):
            return comparing.all_signs(
                share if role is Role.SERVER_A else values - share, negative
            )

    return play


def both(play: Play) -> list[list[bool]]:
    return [bits.tolist() for bits in play_both(play, task=TASK.digest)]


@settings(max_examples=40)
@given(
    pairs=st.lists(st.tuples(words, words), min_size=1, max_size=60),
    width=st.integers(1, 12),
    signs=st.lists(st.booleans(), min_size=12, max_size=12),
)
def test_a_row_passes_when_numpy_says_that_all_its_signs_are_right(
    pairs: list[tuple[int, int]], width: int, signs: list[bool]
) -> None:
    whole = pairs * width
    values, share = (
        np.array(whole, dtype=np.int64).reshape(-1, width, 2).transpose(2, 0, 1)
    )
    negative = np.array(signs[:width])
    expected = ((values < 0) == negative).all(axis=1).tolist()
    assert both(compare(values, share, negative)) == [expected, expected]


@pytest.mark.parametrize("width", [1, 2, 3, 5, 80, 81])
def test_one_wrong_sign_anywhere_is_enough(width: int) -> None:
    negative = np.arange(width) % 3 == 0
    rows = np.tile(np.where(negative, -7, 7), (width + 1, 1))
    for place in range(width):
        rows[place, place] *= -1
    assert both(compare(rows, rows * 99991, negative)) == [[False] * width + [True]] * 2


@pytest.mark.parametrize(
    ("n", "width", "exchanges"), [(7, 1, 8), (1, 81, 15), (5, 81, 15)]
)
def test_a_batch_is_fifteen_exchanges_and_shares_stay(
    n: int, width: int, exchanges: int
) -> None:
    share = np.full((n, width), 2**62)
    play = compare(np.full((n, width), 3), share, np.zeros(width, dtype=bool))
    counts: list[int] = []

    def counting(role: Role, link: PeerLink) -> Bits:
        bits = play(role, link)
        counts.append(link._sent)
        return bits

    both(counting)
    assert (counts, share.min(), share.max()) == ([exchanges] * 2, 2**62, 2**62)


@pytest.mark.parametrize("width", [1, 3])
def test_only_the_last_bit_travels_in_the_last_message(width: int) -> None:
    values = np.array([[5] * width, [-5] * width] * 500)
    last: dict[Role, bytes] = {}
    play = compare(values, values * 12345, np.zeros(width, dtype=bool))

    def watching(role: Role, link: PeerLink) -> Bits:
        receive = link.receive

        def record(step: str, **options: float) -> bytes:
            last[role] = receive(step, **options)
            return last[role]

        link.receive = record  # type: ignore[assignment,method-assign]
        return play(role, link)

    both(watching)
    for data in last.values():
        opened = np.frombuffer(data, dtype=np.int64)
        assert (opened.size, set(opened.tolist())) == (1000, {0, 1})
        # A share of the bit: uniform, whatever the value.
        assert 400 < opened.sum() < 600


@pytest.mark.parametrize(("n", "width"), [(1, 1), (1, 2), (2, 81), (7, 5)])
def test_the_program_of_triples_is_what_crypten_demands(n: int, width: int) -> None:
    demanded: dict[int, list[object]] = defaultdict(list)

    class Recording(comparing.DealtProvider):
        def generate_binary_triple(
            self, size0: torch.Size, size1: torch.Size, device: object = None
        ) -> tuple[comparing.BinarySharing, ...]:
            demanded[id(self)].append((tuple(size0), tuple(size1)))
            return super().generate_binary_triple(size0, size1, device)

    values = np.arange(n * width, dtype=np.int64).reshape(n, width)
    both(compare(values, values, np.zeros(width, dtype=bool), Recording))
    shapes = [(shape, shape) for shape in program(n, n * width)]
    assert list(demanded.values()) == [shapes] * 2


def test_crypten_has_no_party_no_provider_and_no_generators_outside() -> None:
    assert not crypten.communicator.is_initialized()
    for use in (
        crypten.communicator.get,
        crypten.mpc.get_default_provider,
        lambda: comparing.all_signs(np.zeros((1, 1), dtype=np.int64), np.array([True])),
    ):
        with pytest.raises(RuntimeError, match="acting_as"):
            use()
    # Whatever would draw from MT19937 finds no generator.
    with pytest.raises(KeyError):
        BinarySharedTensor.PRZS((1,))
    for method in ("generate_additive_triple", "square", "wrap_rng", "B2A_rng"):
        with pytest.raises(comparing.UnexpectedDemand, match="no randomness is dealt"):
            getattr(comparing.DealtProvider(()), method)((1,), (1,), "mul")


KEYS = {role: DealerRole.of(TASK).key_for(role) for role in SERVERS}


def decided(
    role: Role,
    link: PeerLink,
    n: int = 2,
    *,
    row: int = 0,
    z: int = 0,
    label: str = "same",
    spent: SpentTriples | None = None,
) -> Bits:
    """Of n submissions whose projections are 0, but for one, and whose excess is −1.

    The dealer has forgotten what it dealt before, so that only the servers notice.
    """
    dealer = DealerRole(TASK.digest, TASK.dimension, KEYS)
    values = np.zeros(TASK.projections + 1, dtype=np.int64)
    values[row], values[-1] = z, -1
    mask = np.full(values.size, 0x5DEECE66D1234567, dtype=np.int64)
    dealt = randomness(
        dealer,
        role,
        deal_request(TASK, attempt=0, batch=0, clients=n, nonces=bytes(64)),
    )
    shares = [mask if role is Role.SERVER_A else values - mask] * n
    return comparing.decide(
        shares,
        task=TASK,
        link=link,
        randomness=dealt,
        spent=MemorySpentTriples() if spent is None else spent,
        label=label,
    )


def test_other_submissions_or_another_number_are_a_violation() -> None:
    with pytest.raises(errors.PeerViolation, match="out of step"):
        both(lambda role, link: decided(role, link, label=role.value))
    with pytest.raises(errors.PeerViolation, match="bytes, expected"):
        both(lambda role, link: decided(role, link, 2 if role is Role.SERVER_A else 3))


def test_randomness_is_never_used_twice_and_nothing_is_opened_then() -> None:
    """It is spent before the first opening."""
    memories = {role: MemorySpentTriples() for role in SERVERS}
    spent: list[tuple[int, int, int]] = []
    sent: list[int] = []

    def play(role: Role, link: PeerLink) -> Bits:
        class Spent:
            def spend(self, attempt: int, batch: int) -> None:
                spent.append((attempt, batch, link.bytes_sent))
                memories[role].spend(attempt, batch)

        try:
            return decided(role, link, spent=Spent())
        finally:
            sent.append(link.bytes_sent)

    both(play)
    with pytest.raises(errors.PeerViolation, match="used before"):
        both(play)
    assert (min(sent[:2]) > 0, sent[2:]) == (True, [0, 0])
    assert spent == [(0, 0, 0)] * 4


MOST = task.TAU * TASK.mechanism.bound
VERDICTS = {MOST: True, -MOST: True, MOST + 1: False, -MOST - 1: False}
VERDICTS |= dict.fromkeys((2**62, -(2**62), 2**63 - 1, -(2**63)), False)


@pytest.mark.parametrize("z", VERDICTS)
@pytest.mark.parametrize("row", [0, 39])
def test_one_projection_outside_the_range_is_enough(row: int, z: int) -> None:
    assert (
        both(lambda role, link: decided(role, link, 1, row=row, z=z))
        == [[VERDICTS[z]]] * 2
    )


# --- the hole that validation closes: stock CrypTen accepts vectors that are far too
# long --------

VECTORS = {
    "norm 29": [29.0] + [0.0] * 999,
    "norm 31": [31.0] + [0.0] * 999,
    "one 65536": [65536.0] + [0.0] * 999,
    "all 65536": [65536.0] * 1000,
}
CHECK = """
import json, sys, torch
from precad.aggregator.validate.crypten_import import crypten

@crypten.mpc.run_multiprocess(world_size=2)
def check(vectors):
    accepted = {}
    for name, vector in vectors.items():
        x = crypten.cryptensor(torch.tensor(vector, dtype=torch.float64), src=0)
        excess = x.square().sum() - 30.0**2
        accepted[name] = bool((excess <= 0).get_plain_text().item() == 1)
    return accepted

results = check(json.loads(sys.argv[1]))
assert results[0] == results[1]
print(json.dumps(results[0]))
"""
"""PRECAD's check of C = 30 in stock CrypTen: two parties with its own communicator and
provider, 16 fractional bits. For each vector whether x·x − C² ≤ 0."""


def test_stock_crypten_accepts_wrapped_norms_that_validation_rejects() -> None:
    assert round(math.hypot(*VECTORS["all 65536"])) == 2_072_430
    said = printed("-W", "ignore", "-c", CHECK, json.dumps(VECTORS))
    accepted = {"norm 29": True, "norm 31": False, "one 65536": True, "all 65536": True}
    assert json.loads(said.splitlines()[-1]) == accepted
    encoded = [encode(np.array(vector), 16) for vector in VECTORS.values()]
    for validate in (validate_both, validate_with_proofs):
        assert validate(task_of(1000), encoded) == (
            None,
            *[errors.Rejection.NORM_EXCEEDED] * 3,
        )
