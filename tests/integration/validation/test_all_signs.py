"""CrypTen's comparisons and their conjunction, over our communicator and provider."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
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
Split = dict[Role, RingVector]
RANKS = {Role.SERVER_A: 0, Role.SERVER_B: 1}


def request_of(n: int, width: int) -> DealRequest:
    return DealRequest(TASK, 0, 0, clients=n, comparisons=n * width, nonces=bytes(64))


def randomness(dealer: DealerRole, role: Role, request: DealRequest) -> DealtRandomness:
    corrections = dealer.corrections(role, request)
    return DealtRandomness(role, dealer.key_for(role), request, corrections)


def compare(
    shares: Split, negative: Bits, *, dealt: tuple[int, int] | None = None
) -> Callable[[Role, PeerLink], Bits]:
    n, width = shares[Role.SERVER_A].shape
    request = request_of(*((n, width) if dealt is None else dealt))
    dealer = DealerRole(TASK, 1)

    def play(role: Role, link: PeerLink) -> Bits:
        provider = DealtProvider(randomness(dealer, role, request).binary_triples())
        with acting_as(RANKS[role], link, provider):
            return all_signs(shares[role], negative)

    return play


def split(values: RingVector, share: RingVector) -> Split:
    return {Role.SERVER_A: share, Role.SERVER_B: values - share}


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
    at_a, at_b = play_both(compare(split(values, share), negative))
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
    at_a, at_b = play_both(compare(split(rows, rows * 99991), negative))
    assert at_a.tolist() == at_b.tolist() == [False] * width + [True]


@pytest.mark.parametrize(("n", "width", "exchanges"), [(7, 1, 8), (1, 81, 15), (5, 81, 15)])
def test_a_batch_is_fifteen_exchanges_at_81_signs_and_the_shares_stay(
    n: int, width: int, exchanges: int
) -> None:
    shares = split(np.full((n, width), 3), np.full((n, width), 2**62))
    play = compare(shares, np.zeros(width, dtype=bool))
    counts: list[int] = []

    def counting(role: Role, link: PeerLink) -> Bits:
        bits = play(role, link)
        counts.append(link._sent)
        return bits

    play_both(counting)
    assert counts == [exchanges, exchanges]
    assert (shares[Role.SERVER_A] == 2**62).all()


@pytest.mark.parametrize("width", [1, 3])
def test_only_the_last_bit_travels_in_the_last_message(width: int) -> None:
    values = np.array([[5] * width, [-5] * width] * 500)
    seen: list[tuple[str, NDArray[np.int64]]] = []
    play = compare(split(values, values * 12345), np.zeros(width, dtype=bool))

    def watching(role: Role, link: PeerLink) -> Bits:
        receive = link.receive

        def record(step: str, **options: float) -> bytes:
            data = receive(step, **options)
            seen.append((step, np.frombuffer(data, dtype=np.int64)))
            return data

        link.receive = record  # type: ignore[assignment,method-assign]
        return play(role, link)

    play_both(watching)
    last = max(int(step.rsplit("/", 1)[1]) for step, _ in seen)
    opened = [words for step, words in seen if step.endswith(f"/{last}")]
    assert len(opened) == 2
    for received in opened:
        assert (received.size, set(received.tolist())) == (1000, {0, 1})
        assert 400 < received.sum() < 600  # a share of the bit: uniform, whatever the value


def test_the_program_of_triples_is_what_crypten_demands() -> None:
    for n, width in ((1, 1), (1, 2), (2, 81), (7, 5)):
        demanded: dict[Role, list[object]] = {Role.SERVER_A: [], Role.SERVER_B: []}
        values = np.arange(n * width, dtype=np.int64).reshape(n, width)
        request, dealer = request_of(n, width), DealerRole(TASK, 1)

        def play(
            role: Role,
            link: PeerLink,
            *,
            demanded: dict[Role, list[object]] = demanded,
            values: RingVector = values,
            request: DealRequest = request,
            dealer: DealerRole = dealer,
        ) -> None:
            class Recording(DealtProvider):
                def generate_binary_triple(
                    self, size0: torch.Size, size1: torch.Size, device: object = None
                ) -> tuple[Any, Any, Any]:
                    demanded[role].append((tuple(size0), tuple(size1)))
                    return super().generate_binary_triple(size0, size1, device)

            dealt = randomness(dealer, role, request).binary_triples()
            with acting_as(RANKS[role], link, Recording(dealt)):
                all_signs(values, np.zeros(values.shape[1], dtype=bool))

        play_both(play)
        expected = tuple((shape, shape) for shape in program(n, n * width))
        assert tuple(demanded[Role.SERVER_A]) == expected
        assert tuple(demanded[Role.SERVER_B]) == expected


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
