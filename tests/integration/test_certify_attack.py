"""The best attack (Neyman, Pearson) on a real mechanism lies inside the certificates, and near."""

import math

import numpy as np
import pytest
from research.printed.printed_certificates import theorem_8
from tests.rig.certified import certify_prediction

from precad.accounting.events import SampledGaussian, poisson_gaussian
from precad.accounting.losses import Shift, log_binomial, log_ratio
from precad.certify.group_guarantees import ExactGroups, RenyiGroups
from precad.certify.guarantee import Direction, Floats
from precad.certify.prediction import Certified

TRAININGS = 80_000
CLOSE = 0.012


def trainings(
    m: SampledGaussian, group: int, malicious: int, generator: np.random.Generator
) -> Floats:
    """[trainings] float64: log-likelihood ratio of ``group`` malicious records to none.

    Of all rounds, where so many malicious records really take part.
    """
    shift = Shift(np.arange(group + 1.0), log_binomial(group, m.rate))
    table = np.linspace(-9 * m.noise_multiplier, group + 9 * m.noise_multiplier, 20_001)
    loss, _ = log_ratio(table, shift, m.noise_multiplier)
    total = np.zeros(TRAININGS)
    for _ in range(m.count):
        drawn = generator.binomial(malicious, m.rate, TRAININGS)
        total += np.interp(
            drawn + m.noise_multiplier * generator.standard_normal(TRAININGS), table, loss
        )
    return total


GROUP = 6
CASES = [
    poisson_gaussian(rate=0.05, noise_multiplier=1.0, count=20),
    poisson_gaussian(rate=0.3, noise_multiplier=4.0, count=20),
    poisson_gaussian(rate=1.0, noise_multiplier=10.0, count=10),
    poisson_gaussian(rate=0.01, noise_multiplier=0.7, count=30),
]
# Five standard errors of the attacked score, and of the threshold's quantile.
SAMPLING_ERROR = 2 * 5 * math.sqrt(0.25 / TRAININGS)


@pytest.mark.parametrize(
    "m", CASES, ids=lambda m: f"q{m.rate}-sigma{m.noise_multiplier}-T{m.count}"
)
def test_the_best_attack_stays_inside_and_comes_close(m: SampledGaussian) -> None:
    generator = np.random.default_rng(2026)
    without = trainings(m, GROUP, 0, generator)
    with_group = trainings(m, GROUP, GROUP, generator)
    for direction, clean, poisoned in (
        # Under additions a poisoned training has the higher ratio, under deletions the lower.
        (Direction.ADDITIONS, without, with_group),
        (Direction.DELETIONS, -with_group, -without),
    ):
        exact, renyi = (g(m).curves(GROUP, direction) for g in (ExactGroups, RenyiGroups))
        for p_a in (0.6, 0.9, 0.99):
            attacked_a = float((poisoned <= np.quantile(clean, p_a)).mean())
            for curves in (exact, renyi):
                assert attacked_a >= float(curves.lower(p_a)) - SAMPLING_ERROR
                assert 1 - attacked_a <= float(curves.upper(1 - p_a)) + SAMPLING_ERROR
            # Close: the exact bound is what the best attack reaches, up to sampling.
            assert attacked_a <= float(exact.lower(p_a)) + CLOSE
            assert 1 - attacked_a >= float(exact.upper(1 - p_a)) - CLOSE


def test_the_same_attack_breaks_theorem_8() -> None:
    m = poisson_gaussian(rate=0.01, noise_multiplier=30.0, count=100)
    p_a, r, runs = 0.99, 700, 100_000
    printed = theorem_8(p_a, 1 - p_a, m)
    assert isinstance(printed.value, int)
    assert printed.value >= r, "Theorem 8 certifies 700 records"
    generator = np.random.default_rng(700)
    # Two labels; the sum of all rounds is a sufficient statistic to within the sampling's noise.
    clean = m.noise_multiplier * math.sqrt(m.count) * generator.standard_normal(runs)
    threshold = m.noise_multiplier * math.sqrt(m.count) * 2.3263478740408408
    poisoned = np.zeros(runs)
    for _ in range(m.count):
        poisoned += generator.binomial(r, m.rate, runs)
        poisoned += m.noise_multiplier * generator.standard_normal(runs)
    assert (clean <= threshold).mean() == pytest.approx(p_a, abs=0.005)
    score_a = float((poisoned <= threshold).mean())
    assert score_a < 0.5, "and label B wins"
    exact = ExactGroups(m)
    curves = exact.curves(r, Direction.ADDITIONS)
    assert score_a >= float(curves.lower(p_a)) - 0.02
    honest = certify_prediction(p_a, 1 - p_a, 0, exact)
    assert isinstance(honest, Certified)
    assert honest.radius < r
