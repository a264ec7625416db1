"""CrypTen's comparison over our communicator and provider."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from precad.common.aggregator.mpc.comparison import open_vector, sign_bits
from precad.common.aggregator.mpc.crypten_import import (
    BinarySharedTensor,
    crypten,
    crypten_communicator,
)
from precad.common.aggregator.mpc.party import acting_as
from precad.common.aggregator.mpc.provider import DealtProvider, UnexpectedDemand
from precad.common.deal.dealer import DealerRole
from precad.common.deal.program import comparison_triples
from precad.common.deal.randomness import DealtRandomness
from precad.common.deal.request import DealRequest
from precad.common.errors import PeerViolation
from precad.common.identifiers import Digest, Role
from precad.common.link import PeerLink, memory_pair
from precad.common.ring import RingVector

TASK = Digest.of(b"test")
EXTREMES = [0, 1, -1, 2**63 - 1, -(2**63), -(2**63) + 1, 2**62, -(2**62), 2**32, -(2**32)]
words = st.integers(-(2**63), 2**63 - 1) | st.sampled_from(EXTREMES)
PlayBoth = Callable[..., tuple[NDArray[np.bool_], NDArray[np.bool_]]]


def compare(
    shares: dict[Role, RingVector], *, dealt: int | None = None
) -> Callable[[Role, PeerLink], NDArray[np.bool_]]:
    m = shares[Role.SERVER_A].size if dealt is None else dealt
    request = DealRequest(TASK, 0, 0, clients=1, dimension=1, comparisons=m, nonces=bytes(64))
    dealer = DealerRole(TASK, 1)

    def play(role: Role, link: PeerLink) -> NDArray[np.bool_]:
        randomness = DealtRandomness(
            role, dealer.key_for(role), request, dealer.corrections(role, request)
        )
        provider = DealtProvider(randomness.binary_triples())
        with acting_as(0 if role is Role.SERVER_A else 1, link, provider):
            return sign_bits(shares[role])

    return play


def split(values: RingVector, share: RingVector) -> dict[Role, RingVector]:
    return {Role.SERVER_A: share, Role.SERVER_B: values - share}


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(pairs=st.lists(st.tuples(words, words), min_size=1, max_size=40))
def test_sign_bits_are_numpys(pairs: list[tuple[int, int]], play_both: PlayBoth) -> None:
    values, share = np.array(pairs, dtype=np.int64).T
    at_a, at_b = play_both(compare(split(values, share)))
    assert at_a.dtype == np.bool_
    assert at_a.tolist() == at_b.tolist() == (values < 0).tolist()


def test_sign_bits_of_all_extremes_against_all_shares(play_both: PlayBoth) -> None:
    values, share = (grid.ravel() for grid in np.meshgrid(np.array(EXTREMES), np.array(EXTREMES)))
    at_a, at_b = play_both(compare(split(values, share)))
    assert at_a.tolist() == at_b.tolist() == (values < 0).tolist()


def test_a_batch_is_eight_exchanges_and_the_shares_stay(play_both: PlayBoth) -> None:
    values = np.arange(-3, 4, dtype=np.int64)
    shares = split(values, np.full(7, 2**62, dtype=np.int64))
    play = compare(shares)
    counts: list[int] = []

    def counting(role: Role, link: PeerLink) -> NDArray[np.bool_]:
        bits = play(role, link)
        counts.append(link._sent)
        return bits

    play_both(counting)
    assert counts == [8, 8]
    assert (shares[Role.SERVER_A] == 2**62).all()


def test_only_the_sign_bit_travels_in_the_last_message(play_both: PlayBoth) -> None:
    values = np.array([5, -5] * 500, dtype=np.int64)
    seen: list[NDArray[np.int64]] = []
    play = compare(split(values, values * 12345))

    def watching(role: Role, link: PeerLink) -> NDArray[np.bool_]:
        receive = link.receive

        def record(step: str, **options: float) -> bytes:
            data = receive(step, **options)
            if step.endswith("/7"):
                seen.append(np.frombuffer(data, dtype=np.int64))
            return data

        link.receive = record  # type: ignore[assignment,method-assign]
        return play(role, link)

    play_both(watching)
    assert len(seen) == 2
    for received in seen:
        assert set(received.tolist()) == {0, 1}
        assert 400 < received.sum() < 600  # a share of the bit: uniform, whatever the value


def test_the_program_of_triples_is_what_crypten_demands(play_both: PlayBoth) -> None:
    for m in (1, 2, 81, 500):
        demanded: dict[Role, list[object]] = {Role.SERVER_A: [], Role.SERVER_B: []}
        values = np.arange(m, dtype=np.int64)
        request = DealRequest(TASK, 0, 0, clients=1, dimension=1, comparisons=m, nonces=bytes(64))
        dealer = DealerRole(TASK, 1)

        def play(
            role: Role,
            link: PeerLink,
            *,
            demanded: dict[Role, list[object]] = demanded,
            values: RingVector = values,
            request: DealRequest = request,
            dealer: DealerRole = dealer,
        ) -> None:
            randomness = DealtRandomness(
                role, dealer.key_for(role), request, dealer.corrections(role, request)
            )

            class Recording(DealtProvider):
                def generate_binary_triple(
                    self, size0: torch.Size, size1: torch.Size, device: object = None
                ) -> tuple[Any, Any, Any]:
                    demanded[role].append((tuple(size0), tuple(size1)))
                    return super().generate_binary_triple(size0, size1, device)

            with acting_as(
                0 if role is Role.SERVER_A else 1, link, Recording(randomness.binary_triples())
            ):
                sign_bits(values)

        play_both(play)
        assert tuple(demanded[Role.SERVER_A]) == comparison_triples(m)
        assert tuple(demanded[Role.SERVER_B]) == comparison_triples(m)


def test_randomness_for_another_number_of_comparisons_is_a_loud_bug(play_both: PlayBoth) -> None:
    values = np.arange(5, dtype=np.int64)
    with pytest.raises(UnexpectedDemand, match=r"asked for \(\(5,\), \(5,\)\)"):
        play_both(compare(split(values, values), dealt=4), timeout_s=1.0)


def test_triples_that_run_out_are_a_loud_bug(play_both: PlayBoth) -> None:
    request = DealRequest(TASK, 0, 0, clients=3, dimension=1, comparisons=3, nonces=bytes(64))
    dealer = DealerRole(TASK, 1)

    def twice(role: Role, link: PeerLink) -> NDArray[np.bool_]:
        randomness = DealtRandomness(
            role, dealer.key_for(role), request, dealer.corrections(role, request)
        )
        provider = DealtProvider(randomness.binary_triples())
        with acting_as(0 if role is Role.SERVER_A else 1, link, provider):
            sign_bits(np.arange(3, dtype=np.int64))
            return sign_bits(np.arange(3, dtype=np.int64))

    with pytest.raises(UnexpectedDemand, match="used up"):
        play_both(twice)


def test_parties_with_different_batches_stop(play_both: PlayBoth) -> None:
    dealer = DealerRole(TASK, 1)

    def play(role: Role, link: PeerLink) -> NDArray[np.bool_]:
        m = 3 if role is Role.SERVER_A else 4
        # B's dealing was for another shape: its corrections are made up here.
        request = DealRequest(TASK, 0, 0, clients=1, dimension=1, comparisons=m, nonces=bytes(64))
        corrections = np.zeros(
            0 if role is Role.SERVER_A else request.correction_words, dtype=np.int64
        )
        randomness = DealtRandomness(role, dealer.key_for(role), request, corrections)
        with acting_as(
            0 if role is Role.SERVER_A else 1, link, DealtProvider(randomness.binary_triples())
        ):
            return sign_bits(np.zeros(m, dtype=np.int64))

    with pytest.raises(PeerViolation, match="bytes, expected"):
        play_both(play, timeout_s=1.0)


def test_opened_vectors_are_the_sum_of_the_shares(play_both: PlayBoth) -> None:
    shares = {
        Role.SERVER_A: np.array(EXTREMES, dtype=np.int64),
        Role.SERVER_B: np.array(EXTREMES[::-1], dtype=np.int64),
    }

    def play(role: Role, link: PeerLink) -> RingVector:
        with acting_as(0 if role is Role.SERVER_A else 1, link, DealtProvider(())):
            return open_vector(shares[role])

    expected = (shares[Role.SERVER_A] + shares[Role.SERVER_B]).tolist()
    at_a, at_b = play_both(play)
    assert at_a.tolist() == at_b.tolist() == expected


def test_crypten_has_no_party_no_provider_and_no_generators_outside() -> None:
    assert not crypten_communicator.is_initialized()
    with pytest.raises(RuntimeError, match="acting_as"):
        crypten_communicator.get()
    with pytest.raises(RuntimeError, match="acting_as"):
        crypten.mpc.get_default_provider()
    with pytest.raises(RuntimeError, match="acting_as"):
        sign_bits(np.zeros(1, dtype=np.int64))
    # Whatever would draw from MT19937 finds no generator.
    with pytest.raises(KeyError):
        BinarySharedTensor.PRZS((1,))


def test_the_party_ends_with_its_block() -> None:
    link = PeerLink(memory_pair()[0], TASK, max_message_bytes=1, timeout_s=0.1)
    with acting_as(1, link, DealtProvider(())):
        assert crypten_communicator.is_initialized()
        assert crypten_communicator.get().get_rank() == 1
    assert not crypten_communicator.is_initialized()


@pytest.mark.parametrize("method", ["generate_additive_triple", "square", "wrap_rng", "B2A_rng"])
def test_the_provider_refuses_everything_but_binary_triples(method: str) -> None:
    with pytest.raises(UnexpectedDemand, match="no randomness is dealt"):
        getattr(DealtProvider(()), method)((1,), (1,), "mul")
