"""Audits: what canaries may show, lower bounds of ε, and a certificate that is attacked."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from research.audits import verdict
from research.audits.builds import Build
from research.audits.canary_training import (
    SIGNIFICANCE,
    designed,
    statements,
    train,
    views,
)
from research.audits.certificate import _judged, audit_certificates, certifiable
from research.audits.presence import audit, present
from research.audits.presence import train as train_owners
from research.audits.verdict import (
    Guesses,
    from_profile,
    gaussian,
    lower_bound,
    refutes,
)
from scipy.stats import binom, norm
from tests.rig.accounts import composed

from precad.accounting import gdp
from precad.accounting.events import poisson_gaussian
from precad.certify.guarantee import GaussianDP
from precad.certify.intervals import ConfidenceBudget, simuem
from precad.common.errors import Misconfiguration


def played(canaries: int, mu: float, made: int, seed: int) -> Guesses:
    """Of a plain Gaussian with distance μ, guessed as well as can be."""
    generator = np.random.default_rng(seed)
    coins = generator.random(canaries) < 1 / 2
    scores = (coins - 0.5) * mu + generator.standard_normal(canaries)
    return verdict.guess(scores, coins, made)


def test_ten_thousand_canaries_of_a_plain_gaussian_bound_epsilon_as_the_papers_do() -> (
    None
):
    # True ε 4.38 at δ = 1e-5. With all coins guessed the two methods' bounds are poor,
    # and with the surest 400 the first one comes within a quarter.
    truth = gdp.epsilon_of_delta(1.0, 1e-5)
    assert truth == pytest.approx(4.38, abs=0.01)
    found = lower_bound(
        gaussian, played(10_000, 1.0, 400, 1), significance=0.05, most=8.0
    )
    assert 2.19 < gdp.epsilon_of_delta(found, 1e-5) < truth


def test_bounds_rarely_pass_the_truth_and_what_shows_everything_is_refuted() -> None:
    refuted = sum(
        refutes(gaussian(0.5), played(300, 0.5, 60, seed), 0.05) for seed in range(200)
    )
    assert refuted <= binom.ppf(0.9999, 200, 0.05)
    assert refutes(from_profile({4.0: 1e-9}), Guesses(1000, 1000, 1000), 1e-4)


@given(st.integers(1, 200), st.data())
def test_more_correct_guesses_never_bound_less(made: int, data: st.DataObject) -> None:
    correct = data.draw(st.integers(0, made - 1))
    two = (Guesses(400, made, right) for right in (correct, correct + 1))
    fewer, more = (
        lower_bound(gaussian, each, significance=0.05, most=8.0) for each in two
    )
    assert more >= fewer - 1e-6


@given(st.floats(0.05, 3.0), st.floats(1e-3, 1 - 1e-3))
def test_a_trade_off_from_a_profile_lies_below_the_gaussians_own(
    mu: float, alpha: float
) -> None:
    accountant = composed(poisson_gaussian(rate=1.0, noise_multiplier=1 / mu))
    true = float(norm.cdf(norm.isf(alpha) - mu))
    assert true - 0.05 <= verdict.of_statement(accountant.delta)(alpha) <= true + 1e-9


@given(st.floats(0.0, 5.0), st.floats(0.0, 0.5), st.floats(0.0, 1.0))
def test_trade_offs_are_symmetric(epsilon: float, delta: float, alpha: float) -> None:
    f = from_profile({epsilon: delta, 0.0: 0.6})
    beta = f(alpha)
    assert 0.0 <= beta <= 1.0 - alpha + 1e-12
    assert f(beta) <= alpha + 1e-9


@pytest.mark.parametrize("numbers", [(0, 1, 1), (10, 11, 1), (10, 0, 0), (10, 5, 6)])
def test_impossible_counts_are_refused(numbers: tuple[int, int, int]) -> None:
    with pytest.raises(Misconfiguration):
        Guesses(*numbers)


def test_scores_tell_a_rounds_coins_and_no_other_rounds() -> None:
    # A coin a round states what one round hides.
    task = designed(50, 4, 1).task
    stated = {
        coins: [each.rounds for each in statements(task, coins)] for coins in (4, 1)
    }
    assert stated == {4: [1, 1], 1: [4, 4]}
    made = designed(1000, 3, 1)
    trained = train(made, seed=1)
    coins = made.canaries.coins
    for as_stated, _ in views(trained, made).values():
        for period, scores in enumerate(as_stated):
            right = [((scores > 0) == row).mean() for row in coins]
            assert [share > 0.55 for share in right] == [
                each == period for each in range(3)
            ]
    # Noise that isn't of these rounds is refused.
    trained.known_noise.pop()
    with pytest.raises(Misconfiguration, match="3 rounds"):
        views(trained, made)


def test_power_is_none_of_what_is_sound_and_grows_with_the_fault() -> None:
    caught = [
        verdict.AuditedStatement(
            name="models", rate=1.0, noise=1.0, rounds=1, delta=1e-5
        )
        .plan(canaries=2000, significance=1e-4, less=less)
        .caught
        for less in (1.0, 2.0, 8.0)
    ]
    assert caught[0] == 0.0
    assert caught[1] <= caught[2] == 1.0


def test_who_is_there_shows_as_stated_and_owners_eight_times_as_long_as_allowed_are_found() -> (
    None
):
    made = present(50, 12, 3)
    trained = {
        b: train_owners(made, build_of=b, seed=3)
        for b in (Build.SOUND, Build.UNCHECKED)
    }
    sound, unchecked = (
        audit(made, made.plan(SIGNIFICANCE, build), models, SIGNIFICANCE)
        for build, models in trained.items()
    )
    assert not sound.refuted
    # Guessing would be right half of the time.
    assert sound.guesses.correct > 0.6 * sound.guesses.made
    assert (unchecked.power.caught, unchecked.refuted) == (1.0, True)
    assert unchecked.by_family >= unchecked.epsilon


@pytest.mark.parametrize(
    ("votes", "expected"),
    [
        ([190, 10], (False, False)),
        # Below what is promised for one attacker, and still the majority.
        ([125, 75], (False, True)),
        ([20, 180], (True, True)),
    ],
)
def test_votes_refute_what_they_contradict(
    votes: list[int], expected: tuple[bool, bool]
) -> None:
    before = simuem(
        [[200, 0]], ConfidenceBudget(confidence=0.9999, classes=2, strict=True)
    )
    after = np.array([votes])
    found = _judged(1, np.array([0]), after, before, GaussianDP(0.5), 1e-4)
    assert (found.flipped, found.refuted) == expected
    assert found.certified_at_least == pytest.approx(0.87, abs=0.05)


def test_owners_whose_norms_nobody_checks_refute_the_certificate() -> None:
    # So few models can show at all.
    found = audit_certificates(certifiable(1), 24, 1, loose=64.0, significance=0.2)
    assert (found.refuted, found.beyond) == (True, ())
    assert found.flipped_by == found.least_certified == 1
