"""What every guarantee's curves must satisfy, and how they relate to each other."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from research.papers.general_groups import Iterated, RenyiDP

from precad.accounting.events import SampledGaussian, poisson_gaussian
from precad.certify import guarantee as of
from precad.certify.group_guarantees import ExactGroups, RenyiGroups
from precad.certify.guarantee import ApproximateDP, Direction, GaussianDP, Guarantee
from precad.certify.prediction import largest_group
from precad.common.arrays import Booleans, Integers

SCORES = np.concatenate(
    [[0.0, 1e-17, 1e-9, 1e-4], np.linspace(0.01, 0.99, 33), [1 - 1e-4, 1.0]]
)
# What the grid of the exact curves may lose: nothing here is tighter than this.
GRID = 2e-3

mechanisms = st.builds(
    poisson_gaussian,
    rate=st.sampled_from([0.0, 0.001, 0.01, 0.1, 0.5, 1.0]),
    noise_multiplier=st.sampled_from([0.6, 1.0, 3.0, 20.0]),
    count=st.sampled_from([0, 1, 10, 300]),
    participation=st.sampled_from([0.2, 1.0]),
)
directions = st.sampled_from(Direction)
groups = st.integers(1, 12)


@st.composite
def guarantees(draw: st.DrawFn) -> Guarantee:
    mechanism = draw(mechanisms)
    refined = draw(st.booleans())
    kinds: list[Guarantee] = [
        ExactGroups(mechanism),
        RenyiGroups(mechanism, (1.1, 2.0, 8.0), refined),
        RenyiDP((1.5, 4.0, 64.0), (0.01, 0.05, 0.9), refined),
        ApproximateDP((0.1, 0.5), (1e-3, 1e-6), refined),
        GaussianDP(0.3),
    ]
    base: Guarantee = draw(st.sampled_from(kinds))
    more = [base, of.Replacements(base), of.ValidationAllowance(base, 10, 40)]
    return draw(st.sampled_from(more))


def within(inner: of.Curves, outer: of.Curves, slack: float = 1e-12) -> bool:
    """Whether one's bounds lie nowhere beyond the other's, but for so much."""
    lower = inner.lower(SCORES) >= outer.lower(SCORES) - slack
    return bool((lower & (inner.upper(SCORES) <= outer.upper(SCORES) + slack)).all())


@settings(max_examples=30)
@given(guarantees(), groups, directions, st.integers(1, 5))
def test_curves_enclose_the_clean_score_and_more_attackers_widen(
    g: Guarantee, k: int, direction: Direction, more: int
) -> None:
    curves, unchanged = g.curves(k, direction), g.curves(0, direction)
    lower, upper = curves.lower(SCORES), curves.upper(SCORES)
    assert ((lower >= 0) & (lower <= SCORES + 1e-12)).all()
    assert ((upper >= SCORES - 1e-12) & (upper <= 1)).all()
    assert (np.diff([lower, upper]) >= -1e-12).all()
    assert (
        np.array([unchanged.lower(SCORES), unchanged.upper(SCORES)]) == SCORES
    ).all()
    # Grids differ from group to group, so monotone up to the finer one's loss.
    assert within(
        curves, g.curves(k + more, direction), GRID if "exact" in g.name else 1e-9
    )


@settings(max_examples=15)
@given(
    st.builds(
        poisson_gaussian,
        rate=st.sampled_from([0.001, 0.01, 0.2]),
        noise_multiplier=st.sampled_from([0.7, 1.0, 3.0]),
        count=st.just(50),
    ),
    *(groups, directions, st.sampled_from([ExactGroups, RenyiGroups])),
)
def test_more_noise_narrows(
    m: SampledGaussian,
    k: int,
    direction: Direction,
    kind: type[ExactGroups | RenyiGroups],
) -> None:
    noisier = replace(m, noise_multiplier=1.5 * m.noise_multiplier)
    assert within(
        kind(noisier).curves(k, direction), kind(m).curves(k, direction), GRID
    )


@given(st.floats(0.0, 2.0), st.floats(0.0, 1.0), st.floats(0, 0.1), groups)
def test_a_larger_epsilon_widens(
    epsilon: float, more: float, delta: float, k: int
) -> None:
    for refined in (False, True):
        small, large = (
            ApproximateDP.single(e, delta, refined=refined).curves(
                k, Direction.ADDITIONS
            )
            for e in (epsilon, epsilon + more)
        )
        assert within(small, large)


@settings(max_examples=15)
@given(mechanisms, st.integers(1, 20), directions)
def test_exact_is_never_worse_than_others(
    m: SampledGaussian, k: int, direction: Direction
) -> None:
    exact = ExactGroups(m)
    others = (
        exact.as_approximate(),
        exact.as_approximate(1e-5),
        Iterated(exact),
        RenyiGroups(m),
    )
    for other in others:
        assert within(exact.curves(k, direction), other.curves(k, direction), GRID), (
            other.name
        )


@settings(max_examples=10)
@given(st.floats(0.5, 30.0), st.integers(1, 50), st.integers(1, 6), directions)
def test_without_sampling_the_exact_curve_is_gaussian(
    noise: float, rounds: int, k: int, direction: Direction
) -> None:
    m = poisson_gaussian(rate=1.0, noise_multiplier=noise, count=rounds)
    exact = ExactGroups(m).curves(k, direction)
    closed = GaussianDP(math.sqrt(rounds) / noise).curves(k, Direction.ADDITIONS)
    # Losses beyond 45 count as infinite, which shows at the very ends only.
    inner = SCORES[1:-1]
    assert exact.upper(inner) == pytest.approx(closed.upper(inner), abs=GRID)
    assert exact.lower(inner) == pytest.approx(closed.lower(inner), abs=GRID)
    # And on the sound side of it.
    assert within(closed, exact, 1e-9)


@settings(max_examples=10)
@given(mechanisms, st.integers(1, 4), st.integers(1, 4))
def test_mixed_changes_are_wider_than_either(
    m: SampledGaussian, adds: int, deletes: int
) -> None:
    g = ExactGroups(m)
    both = of.mixed(g, adds, deletes)
    for k, direction in zip((adds, deletes), of.BOTH, strict=True):
        assert within(g.curves(k, direction), both)


@given(st.lists(st.integers(0, 5000), min_size=1, max_size=50), st.integers(1, 5000))
def test_bisection_finds_the_largest_group(answers: list[int], limit: int) -> None:
    truth = np.array(answers)
    asked: list[int] = []

    def holds(k: int, points: Integers) -> Booleans:
        asked.append(k)
        return truth[points] >= k

    assert (largest_group(holds, len(truth), limit) == np.minimum(truth, limit)).all()
    assert len(asked) == len(set(asked)), "every group's curves are made once"
