"""What every guarantee's curves must satisfy, and how they relate to each other."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from research.papers.general_groups import Iterated, RenyiDP

from precad.accounting.events import SampledGaussian, poisson_gaussian
from precad.certify.group_guarantees import ExactGroups, RenyiGroups
from precad.certify.guarantee import (
    BOTH,
    ApproximateDP,
    Booleans,
    Direction,
    GaussianDP,
    Guarantee,
    Integers,
    Replacements,
    ValidationAllowance,
    mixed,
)
from precad.certify.prediction import largest_group

SCORES = np.concatenate([[0.0, 1e-17, 1e-9, 1e-4], np.linspace(0.01, 0.99, 33), [1 - 1e-4, 1.0]])
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
    base: Guarantee = draw(
        st.sampled_from(
            [
                ExactGroups(mechanism),
                RenyiGroups(mechanism, (1.1, 2.0, 8.0), refined),
                RenyiDP((1.5, 4.0, 64.0), (0.01, 0.05, 0.9), refined),
                ApproximateDP((0.1, 0.5), (1e-3, 1e-6), refined),
                GaussianDP(0.3),
            ]
        )
    )
    return draw(st.sampled_from([base, Replacements(base), ValidationAllowance(base, 10, 40)]))


@settings(max_examples=30)
@given(guarantees(), groups, directions)
def test_curves_enclose_the_clean_score(g: Guarantee, k: int, direction: Direction) -> None:
    curves = g.curves(k, direction)
    lower, upper = curves.lower(SCORES), curves.upper(SCORES)
    assert ((lower >= 0) & (lower <= SCORES + 1e-12)).all()
    assert ((upper >= SCORES - 1e-12) & (upper <= 1)).all()
    assert (np.diff([lower, upper]) >= -1e-12).all()
    # No change is the identity.
    curves = g.curves(0, direction)
    assert (curves.lower(SCORES) == SCORES).all()
    assert (curves.upper(SCORES) == SCORES).all()


@settings(max_examples=30)
@given(guarantees(), groups, st.integers(1, 5), directions)
def test_more_attackers_widen(g: Guarantee, k: int, more: int, direction: Direction) -> None:
    few, many = g.curves(k, direction), g.curves(k + more, direction)
    # Grids differ from group to group, so monotone up to the finer one's loss.
    slack = GRID if "exact" in g.name else 1e-9
    assert (many.lower(SCORES) <= few.lower(SCORES) + slack).all()
    assert (many.upper(SCORES) >= few.upper(SCORES) - slack).all()


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
def test_more_noise_narrows(m: SampledGaussian, k: int, direction: Direction, kind: Any) -> None:
    less, more = (
        kind(replace(m, noise_multiplier=times * m.noise_multiplier)).curves(k, direction)
        for times in (1.0, 1.5)
    )
    assert (more.lower(SCORES) >= less.lower(SCORES) - GRID).all()
    assert (more.upper(SCORES) <= less.upper(SCORES) + GRID).all()


@given(st.floats(0.0, 2.0), st.floats(0.0, 1.0), st.floats(0, 0.1), groups)
def test_a_larger_epsilon_widens(epsilon: float, more: float, delta: float, k: int) -> None:
    for refined in (False, True):
        small, large = (
            ApproximateDP.single(e, delta, refined=refined).curves(k, Direction.ADDITIONS)
            for e in (epsilon, epsilon + more)
        )
        assert (large.upper(SCORES) >= small.upper(SCORES) - 1e-12).all()
        assert (large.lower(SCORES) <= small.lower(SCORES) + 1e-12).all()


@settings(max_examples=15)
@given(mechanisms, st.integers(1, 20), directions)
def test_exact_is_never_worse_than_others(m: SampledGaussian, k: int, direction: Direction) -> None:
    exact = ExactGroups(m)
    curves = exact.curves(k, direction)
    others = (exact.as_approximate(), exact.as_approximate(1e-5), Iterated(exact), RenyiGroups(m))
    for other in others:
        theirs = other.curves(k, direction)
        assert (curves.upper(SCORES) <= theirs.upper(SCORES) + GRID).all(), other.name
        assert (curves.lower(SCORES) >= theirs.lower(SCORES) - GRID).all(), other.name


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
    assert (exact.upper(SCORES) >= closed.upper(SCORES) - 1e-9).all()
    assert (exact.lower(SCORES) <= closed.lower(SCORES) + 1e-9).all()


@settings(max_examples=10)
@given(mechanisms, st.integers(1, 4), st.integers(1, 4))
def test_mixed_changes_are_wider_than_either(m: SampledGaussian, adds: int, deletes: int) -> None:
    g = ExactGroups(m)
    both = mixed(g, adds, deletes)
    for k, direction in zip((adds, deletes), BOTH, strict=True):
        one = g.curves(k, direction)
        assert (both.upper(SCORES) >= one.upper(SCORES) - 1e-12).all()
        assert (both.lower(SCORES) <= one.lower(SCORES) + 1e-12).all()


@given(st.lists(st.integers(0, 5000), min_size=1, max_size=50), st.integers(1, 5000))
def test_bisection_finds_the_largest_group(answers: list[int], limit: int) -> None:
    truth = np.array(answers)
    asked: list[int] = []

    def holds(k: int, points: Integers) -> Booleans:
        asked.append(k)
        return truth[points] >= k

    assert (largest_group(holds, len(truth), limit) == np.minimum(truth, limit)).all()
    assert len(asked) == len(set(asked)), "every group's curves are made once"
