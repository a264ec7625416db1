"""CrypTen's comparisons and their conjunction, over our communicator and provider."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.rig.parties import TASK, play_both

from precad.aggregator.peer_link import PeerLink
from precad.aggregator.validate.crypten_comparisons import (
    DealtProvider,
    UnexpectedDemand,
    acting_as,
    all_signs,
)
from precad.aggregator.validate.crypten_import import BinarySharedTensor, crypten
from precad.common.identifiers import Role
from precad.common.ring import RingVector
from precad.dealer.dealer_role import DealerRole
from precad.norm_check.dealing import DealRequest, DealtRandomness, program

EXTREMES = [0, 1, -1, 2**63 - 1, -(2**63), -(2**63) + 1, 2**62, -(2**62), 2**32, -(2**32)]
words = st.integers(-(2**63), 2**63 - 1) | st.sampled_from(EXTREMES)
Bits = NDArray[np.bool_]
Play = Callable[[Role, PeerLink], Bits]
RANKS = {Role.SERVER_A: 0, Role.SERVER_B: 1}


def compare(
    values: RingVector, share: RingVector, negative: Bits, provider: type[Any] = DealtProvider
) -> Play:
    """Both servers' parts, A's share of the values given."""
    n, width = values.shape
    request = DealRequest(TASK, 0, 0, clients=n, comparisons=n * width, nonces=bytes(64))
    dealer, shares = DealerRole(TASK, 1), {Role.SERVER_A: share, Role.SERVER_B: values - share}

    def play(role: Role, link: PeerLink) -> Bits:
        corrections = dealer.corrections(role, request)
        dealt = DealtRandomness(role, dealer.key_for(role), request, corrections)
        with acting_as(RANKS[role], link, provider(dealt.binary_triples())):
            return all_signs(shares[role], negative)

    return play


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
    values, share = np.array(whole, dtype=np.int64).reshape(-1, width, 2).transpose(2, 0, 1)
    negative = np.array(signs[:width])
    at_a, at_b = play_both(compare(values, share, negative))
    assert at_a.dtype == np.bool_
    expected = ((values < 0) == negative).all(axis=1).tolist()
    assert at_a.tolist() == at_b.tolist() == expected


@pytest.mark.parametrize("width", [1, 2, 3, 5, 80, 81])
def test_one_wrong_sign_anywhere_is_enough(width: int) -> None:
    negative = np.arange(width) % 3 == 0
    right = np.where(negative, -7, 7)
    rows = np.tile(right, (width + 1, 1))
    for place in range(width):
        rows[place, place] *= -1
    at_a, at_b = play_both(compare(rows, rows * 99991, negative))
    assert at_a.tolist() == at_b.tolist() == [False] * width + [True]


@pytest.mark.parametrize(("n", "width", "exchanges"), [(7, 1, 8), (1, 81, 15), (5, 81, 15)])
def test_a_batch_is_fifteen_exchanges_at_81_signs_and_the_shares_stay(
    n: int, width: int, exchanges: int
) -> None:
    share = np.full((n, width), 2**62)
    play = compare(np.full((n, width), 3), share, np.zeros(width, dtype=bool))
    counts: list[int] = []

    def counting(role: Role, link: PeerLink) -> Bits:
        bits = play(role, link)
        counts.append(link._sent)
        return bits

    play_both(counting)
    assert counts == [exchanges, exchanges]
    assert (share == 2**62).all()


@pytest.mark.parametrize("width", [1, 3])
def test_only_the_last_bit_travels_in_the_last_message(width: int) -> None:
    values = np.array([[5] * width, [-5] * width] * 500)
    seen: list[tuple[int, NDArray[np.int64]]] = []
    play = compare(values, values * 12345, np.zeros(width, dtype=bool))

    def watching(role: Role, link: PeerLink) -> Bits:
        receive = link.receive

        def record(step: str, **options: float) -> bytes:
            data = receive(step, **options)
            seen.append((int(step.rsplit("/", 1)[1]), np.frombuffer(data, dtype=np.int64)))
            return data

        link.receive = record  # type: ignore[assignment,method-assign]
        return play(role, link)

    play_both(watching)
    last = max(number for number, _ in seen)
    opened = [words for number, words in seen if number == last]
    assert [(words.size, set(words.tolist())) for words in opened] == [(1000, {0, 1})] * 2
    # A share of the bit: uniform, whatever the value.
    assert all(400 < words.sum() < 600 for words in opened)


@pytest.mark.parametrize(("n", "width"), [(1, 1), (1, 2), (2, 81), (7, 5)])
def test_the_program_of_triples_is_what_crypten_demands(n: int, width: int) -> None:
    demanded: list[list[object]] = []

    class Recording(DealtProvider):
        def __init__(self, triples: Any) -> None:
            super().__init__(triples)
            self.demanded: list[object] = []
            demanded.append(self.demanded)

        def generate_binary_triple(self, size0: Any, size1: Any, device: object = None) -> Any:
            self.demanded.append((tuple(size0), tuple(size1)))
            return super().generate_binary_triple(size0, size1, device)

    values = np.arange(n * width, dtype=np.int64).reshape(n, width)
    play_both(compare(values, values, np.zeros(width, dtype=bool), Recording))
    assert demanded == [[(shape, shape) for shape in program(n, n * width)]] * 2


def test_crypten_has_no_party_no_provider_and_no_generators_outside() -> None:
    assert not crypten.communicator.is_initialized()
    with pytest.raises(RuntimeError, match="acting_as"):
        crypten.communicator.get()
    with pytest.raises(RuntimeError, match="acting_as"):
        crypten.mpc.get_default_provider()
    with pytest.raises(RuntimeError, match="acting_as"):
        all_signs(np.zeros((1, 1), dtype=np.int64), np.array([True]))
    # Whatever would draw from MT19937 finds no generator.
    with pytest.raises(KeyError):
        BinarySharedTensor.PRZS((1,))


@pytest.mark.parametrize("method", ["generate_additive_triple", "square", "wrap_rng", "B2A_rng"])
def test_the_provider_refuses_everything_but_binary_triples(method: str) -> None:
    with pytest.raises(UnexpectedDemand, match="no randomness is dealt"):
        getattr(DealtProvider(()), method)((1,), (1,), "mul")
