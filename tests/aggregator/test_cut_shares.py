"""Noisy shares cut to the bits that their sum needs, in both groups, at every edge."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import ndtr
from tests.rig.tasks import task_with

from precad.aggregator.cut_shares import CutShares
from precad.common.errors import PeerViolation
from precad.common.identifiers import ClientId
from precad.common.mechanism import NOISE_DEVIATIONS
from precad.common.proof_shape import P
from precad.common.ring import MODULUS, RingVector, to_bytes
from precad.common.roster import Enrolment
from precad.norm_check.prime_field import FIELD, RING, Group

GROUPS = {"crypten": RING, "proof": FIELD}


def form(check: str, most: int | None, dimension: int) -> CutShares:
    return CutShares(dimension=dimension, group=GROUPS[check], most=most)


def words(values: list[int]) -> RingVector:
    return np.array([value % MODULUS for value in values], np.uint64).view(np.int64)


def shares(totals: list[int], ours: list[int], group: Group) -> list[RingVector]:
    """One server's shares, and the other's that add up to these sums."""
    own = [value % group.order for value in ours]
    other = [(t - y) % group.order for t, y in zip(totals, own, strict=True)]
    return [words(own), words(other)]


@pytest.mark.parametrize("check", GROUPS)
@pytest.mark.parametrize("most", [1, 2, 2**10 - 1, 2**10, 2**26, 2**41, 2**61])
def test_every_sum_is_exact_with_shares_at_every_edge(check: str, most: int) -> None:
    group = GROUPS[check]
    sums = sorted({most, most - 1, 1, 0, -1, 1 - most, -most})
    near = [0, 1, 2, most - 1, most, most + 1]
    edges = [*near, *(group.order - 1 - value for value in near), group.order // 2]
    cases = [
        (total, y)
        for total, edge in product(sums, edges)
        for y in (edge, edge + total, edge - total)
    ]
    totals = [total for total, _ in cases]
    own, other = shares(totals, [y for _, y in cases], group)
    cutting = form(check, most, len(cases))
    sent = [cutting.cut(each) for each in (own, other)]
    for order in (sent, sent[::-1]):
        assert cutting.joined(*order).tolist() == totals


@given(st.data())
def test_any_sum_is_exact_with_any_shares(data: st.DataObject) -> None:
    check = data.draw(st.sampled_from(sorted(GROUPS)))
    most = data.draw(st.integers(1, 2**61))
    totals = data.draw(st.lists(st.integers(-most, most), min_size=1, max_size=9))
    order = GROUPS[check].order
    ours = [data.draw(st.integers(0, order - 1)) for _ in totals]
    own, other = shares(totals, ours, GROUPS[check])
    cutting = form(check, most, len(totals))
    assert cutting.joined(cutting.cut(own), cutting.cut(other)).tolist() == totals


@pytest.mark.parametrize("check", GROUPS)
def test_shares_without_a_bound_travel_whole(check: str) -> None:
    """As in tasks of releases before 0.3.0, to the same bytes."""
    own, other = shares([5, -7, 2**40], [1, 2**50, 3], GROUPS[check])
    cutting = form(check, None, 3)
    assert cutting.cut(own) == to_bytes(own)
    joined = cutting.joined(cutting.cut(own), cutting.cut(other))
    assert joined.tolist() == [5, -7, 2**40]


def test_the_bits_are_those_of_all_owners_bounds_and_ten_deviations() -> None:
    changes = {
        "training.compact_release": True,
        "enrolment.planned_units": 100,
        "privacy.client_clip": {"per_record": 1.0, "most": 20.0},
    }
    task = task_with(changes)
    claims = [Enrolment(ClientId(f"ward-{n}"), 20 * n, 0.2) for n in (1, 2)]
    noise = 10 * 2**0.5 * task.mechanism.noise_units
    # 4 and 8 records are sampled on average, each of norm 1.
    expected = (4 + 8) * 2**20 + int(np.ceil(noise))
    cutting = CutShares.of(task, claims)
    assert cutting.most == expected
    assert cutting.bits == (2 * expected + 1).bit_length()


def test_how_rare_sums_beyond_the_bound_and_words_in_full_are() -> None:
    assert 2 * ndtr(-NOISE_DEVIATIONS) < 2**-75
    assert pytest.approx(1.5e-11, rel=0.05) == 4 * 2**26 / P


@pytest.mark.parametrize("check", GROUPS)
@pytest.mark.parametrize("beyond", [2**20 + 1, -(2**20) - 1])
def test_a_sum_beyond_the_bound_is_the_other_servers_violation(
    check: str, beyond: int
) -> None:
    own, other = shares([0, beyond], [2**50, 2**51], GROUPS[check])
    cutting = form(check, 2**20, 2)
    with pytest.raises(
        PeerViolation, match=f"coordinate 1 of the noisy sum is {beyond}"
    ):
        cutting.joined(cutting.cut(own), cutting.cut(other))


def test_a_word_in_full_counts_only_where_both_servers_sent_one() -> None:
    """Whatever the other one sends there, it could have sent as its share."""
    most = 2**20
    cutting = form("proof", most, 3)
    own, other = shares([1, 0, 5], [0, 2**50, P - 1], FIELD)
    good = cutting.cut(other)
    low = good[: -2 * 16]
    full = np.frombuffer(good[-2 * 16 :], "<u8").reshape(-1, 2)
    assert full.tolist() == [[0, 1], [2, 6]]

    def joined(changed: list[list[int]], cut_off: int = 0) -> list[int]:
        message = low + np.array(changed, "<u8").tobytes()
        message = message[: len(message) - cut_off]
        values: list[int] = cutting.joined(cutting.cut(own), message).tolist()
        return values

    assert joined([[2, 6], [0, 1]]) == [1, 0, 5]
    assert joined([[0, 1], [2, 6], [1, 7], [3, 7], [2**64 - 1, 7]]) == [1, 0, 5]
    assert joined([[0, 4], [2, 9]]) == [4, 0, 8]
    with pytest.raises(PeerViolation, match="coordinate 0 of the noisy sum"):
        joined([[0, 2**40], [2, 6]])
    for cut_off in (1, 2 * 16 + 1):
        with pytest.raises(PeerViolation, match="bytes"):
            joined([[0, 1], [2, 6]], cut_off)


def test_in_the_ring_no_word_travels_in_full() -> None:
    cutting = form("crypten", 2**20, 2)
    own, other = shares([1, -1], [0, MODULUS - 1], RING)
    low = cutting.cut(other)
    assert len(low) == -(-2 * cutting.bits // 8)
    in_full = np.array([[0, 1]], "<u8").tobytes()
    assert cutting.joined(cutting.cut(own), low + in_full).tolist() == [1, -1]
