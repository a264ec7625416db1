"""Owners with bounds of their own: the shift by hand, and never less than the truth."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import ndtr

from precad.accounting.events import SampledGaussian, poisson_gaussian
from precad.accounting.exact import group_profiles, round_of
from precad.accounting.losses import SampledRound, group_shift, whole_shift
from precad.accounting.worst_owners import of_worst_owners
from precad.certify.group_guarantees import ExactGroups, RenyiGroups
from precad.certify.guarantee import BOTH, Direction
from precad.common.errors import Misconfiguration

ONE = poisson_gaussian(rate=0.3, noise_multiplier=2.0)
BOUNDS = (1.0, 0.61, 0.25, 0.07)
bounds_of_owners = st.lists(st.floats(1e-3, 1), min_size=1, max_size=6)


def shift_by_hand(bounds: tuple[float, ...], q: float) -> dict[float, float]:
    """Each possible sum of drawn bounds, with its probability."""
    found: dict[float, float] = {}
    for drawn in itertools.product((False, True), repeat=len(bounds)):
        size = math.fsum(
            b for b, is_drawn in zip(bounds, drawn, strict=True) if is_drawn
        )
        chance = math.prod(q if is_drawn else 1 - q for is_drawn in drawn)
        found[size] = found.get(size, 0.0) + chance
    return found


def delta_by_hand(
    shift: dict[float, float], sigma: float, epsilon: float, *, reverse: bool
) -> float:
    """δ(ε) of one round by a fine sum over its outputs."""
    x = np.linspace(-14 * sigma, max(shift) + 14 * sigma, 200_001)

    def density(mean: float) -> np.ndarray:
        return np.exp(-0.5 * ((x - mean) / sigma) ** 2) / (
            sigma * math.sqrt(2 * math.pi)
        )

    p = sum(chance * density(size) for size, chance in shift.items())
    q = density(0.0)
    if reverse:
        p, q = q, p
    return float(np.maximum(p - math.exp(epsilon) * q, 0).sum() * (x[1] - x[0]))


@given(bounds_of_owners, st.floats(0.01, 0.99))
def test_a_shift_is_larger_in_distribution_than_the_true_one(
    bounds: list[float], q: float
) -> None:
    ordered = tuple(sorted(bounds, reverse=True))
    found = whole_shift(SampledRound(q, 1.0, 1.0, len(ordered), ordered))
    truth = shift_by_hand(ordered, q)
    weights = np.exp(found.log_weights)
    assert weights.sum() == pytest.approx(1, abs=1e-12)
    for size in truth:
        above = weights[found.sizes >= size * (1 - 1e-14)].sum()
        assert above >= sum(c for s, c in truth.items() if s >= size) - 1e-12
    mean = q * math.fsum(ordered)
    assert mean * (1 - 1e-12) <= weights @ found.sizes <= mean + 0.002 * sum(ordered)


@pytest.mark.parametrize("k", [1, 2, 3, 4])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("epsilon", [-0.2, 0.0, 0.5, 1.0])
def test_a_group_has_the_delta_of_its_largest_owners(
    k: int, epsilon: float, *, reverse: bool
) -> None:
    event = replace(ONE, group_bounds=BOUNDS)
    truth = delta_by_hand(shift_by_hand(BOUNDS[:k], 0.3), 2.0, epsilon, reverse=reverse)
    epsilons, deltas = group_profiles(event, k)[reverse]
    found = float(np.interp(math.exp(epsilon), np.exp(epsilons), deltas))
    assert truth - 1e-9 <= found <= truth * 1.003 + 1e-6


def test_equal_bounds_cost_what_equal_owners_cost() -> None:
    for bound in (1.0, 0.4):
        event = replace(ONE, group_bounds=(bound,) * 5, count=30)
        alike = replace(ONE, noise_multiplier=2.0 / bound, count=30)
        for k in (1, 3, 5):
            assert round_of(event, k) == round_of(alike, k)
            for direction in BOTH:
                found = ExactGroups(event).curves(k, direction).upper(0.2)
                assert found == ExactGroups(alike).curves(k, direction).upper(0.2)


def test_without_a_coin_bounds_add_up() -> None:
    event = poisson_gaussian(rate=1.0, noise_multiplier=4.0, count=9)
    curves = ExactGroups(replace(event, group_bounds=BOUNDS))
    for k in (1, 2, 4):
        mu = 3 * sum(BOUNDS[:k]) / 4
        exact = ndtr(-0.8 + mu)
        upper = float(curves.curves(k, Direction.ADDITIONS).upper(ndtr(-0.8)))
        assert exact - 1e-12 <= upper <= exact + 1e-3


def test_of_all_owners_nobody_is_left_to_add() -> None:
    event = replace(ONE, group_bounds=BOUNDS, count=5)
    exact = ExactGroups(event)
    renyi = RenyiGroups(event)
    for guarantee in (exact, renyi):
        of_all = guarantee.curves(4, Direction.ADDITIONS).upper(0.1)
        assert of_all == guarantee.curves(99, Direction.ADDITIONS).upper(0.1)
    # Rényi's bound on the same shift holds too, and is never the better one.
    assert (
        float(exact.curves(4, Direction.ADDITIONS).upper(0.1)) <= float(of_all) + 1e-6
    )


@pytest.mark.parametrize("n", [10, 300, 5000])
def test_many_owners_are_close_to_the_truth_and_never_below(n: int) -> None:
    generator = np.random.default_rng(n)
    bounds = np.sort(np.exp(-generator.uniform(0, 4, n)))[::-1]
    bounds /= bounds[0]
    q = 0.1
    event = replace(ONE, rate=q, group_bounds=tuple(bounds.tolist()))
    shift = group_shift(round_of(event, n))
    assert len(shift.sizes) < 2000
    weights = np.exp(shift.log_weights)
    mean = weights @ shift.sizes
    true_mean = q * bounds.sum()
    true_variance = q * (1 - q) * (bounds**2).sum()
    # Of more than 4,096 each counts as the largest.
    most = 1.02 if n < 5000 else 1 / bounds.mean() + 1e-6
    assert true_mean <= mean <= most * true_mean
    if n < 5000:
        variance = weights @ (shift.sizes - mean) ** 2
        assert variance == pytest.approx(true_variance, rel=0.02)


# Owners with a share of the data.

CLIPS = (1.0, 0.5, 0.4, 0.2, 0.02, 0.02)
RECORDS = (500, 250, 200, 30, 10, 10)


def sets_of(records: tuple[int, ...], share: float) -> list[tuple[int, ...]]:
    """All sets of owners with at most that share of the records."""
    most = share * sum(records)
    everybody = range(len(records))
    return [
        chosen
        for size in range(1, len(records) + 1)
        for chosen in itertools.combinations(everybody, size)
        if sum(records[owner] for owner in chosen) <= most + 1e-9
    ]


def of_share(share: float, event: SampledGaussian = ONE) -> SampledGaussian:
    return of_worst_owners(event, CLIPS, RECORDS, share)


@pytest.mark.parametrize("share", [0.01, 0.05, 0.25, 0.29, 0.5, 1.0])
def test_no_set_with_the_share_is_worse(share: float) -> None:
    worst = of_share(share)
    sets = sets_of(RECORDS, share)
    assert len(worst.group_bounds) == max(map(len, sets))
    for chosen in sets:
        own = sorted((CLIPS[owner] for owner in chosen), reverse=True)
        assert all(b <= w for b, w in zip(own, worst.group_bounds, strict=False))
        assert sum(own) <= worst.group_total + 1e-12
    largest = max(math.fsum(CLIPS[owner] for owner in chosen) for chosen in sets)
    # In part taken: at most one owner more than fits.
    assert worst.group_total <= largest + max(CLIPS)
    if share == 1:
        assert worst.group_total == pytest.approx(sum(CLIPS))


@pytest.mark.parametrize("q", [0.2, 1.0])
def test_a_certificate_for_the_share_covers_every_set_with_it(q: float) -> None:
    event = replace(ONE, rate=q, count=4)
    worst = of_share(0.29, event)
    p = 0.2
    bound = ExactGroups(worst).curves(len(worst.group_bounds), Direction.ADDITIONS)
    for chosen in sets_of(RECORDS, 0.29):
        own = tuple(sorted((CLIPS[owner] for owner in chosen), reverse=True))
        exact = ExactGroups(replace(event, group_bounds=own))
        curves = exact.curves(len(own), Direction.ADDITIONS)
        assert curves.upper(p) <= bound.upper(p) + 1e-9
        assert curves.lower(p) >= bound.lower(p) - 1e-9


@given(
    st.lists(st.tuples(st.floats(1e-3, 1), st.integers(1, 50)), min_size=1, max_size=7),
    st.floats(0.0, 1.0),
)
def test_the_worst_owners_cover_all_sets_whatever_sizes_they_have(
    owners: list[tuple[float, int]], share: float
) -> None:
    clips = tuple(clip for clip, _ in owners)
    records = tuple(held for _, held in owners)
    sets = sets_of(records, share)
    if not sets:
        with pytest.raises(Misconfiguration, match="data_share"):
            of_worst_owners(ONE, clips, records, share * (1 - 1e-6))
        return
    worst = of_worst_owners(ONE, clips, records, share)
    for chosen in sets:
        own = sorted((clips[owner] for owner in chosen), reverse=True)
        assert all(b <= w for b, w in zip(own, worst.group_bounds, strict=False))
        assert len(own) <= len(worst.group_bounds)
        assert sum(own) <= worst.group_total * (1 + 1e-12)


def test_a_share_that_is_none_is_refused() -> None:
    for share in (-0.1, 1.5, 1e-9):
        with pytest.raises(Misconfiguration, match="data_share"):
            of_share(share)
    with pytest.raises(Misconfiguration, match="who holds how much"):
        of_worst_owners(ONE, (), (), 0.5)
