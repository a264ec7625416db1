"""Groups of any size are answered in seconds; a group's Rényi divergences are never too small."""

from collections import Counter
from itertools import combinations_with_replacement
from math import factorial, prod

import numpy as np
import pytest
from mpmath import mp, mpf

from precad.accounting.events import poisson_gaussian
from precad.accounting.losses import Round, group_shift, log_affinity
from precad.certify.group_guarantees import ExactGroups, RenyiGroups, mixture_divergences
from precad.certify.guarantee import BOTH, LARGEST_GROUP, ApproximateDP, Guarantee, Replacements
from precad.certify.inefficacy import fewest_attackers

CASES = [(0.1, 2.0, 30), (0.5, 50.0, 1), (1e-3, 10.0, 10), (0.9, 1.0, 1), (1e-4, 0.01, 10)]


def binomial(k: int, rate: float) -> list[mpf]:
    q = mpf(rate)
    return [mp.binomial(k, i) * q**i * (1 - q) ** (k - i) for i in range(k + 1)]


def forward_moment(k: int, rate: float, sigma: float, alpha: int) -> mpf:
    """E_Q[(P/Q)^α]: over all choices of α shifts, w_1⋯w_α·e^{Σ_{a<b} i_a·i_b/σ²}."""
    weights, total = binomial(k, rate), mpf(0)
    for chosen in combinations_with_replacement(range(k + 1), alpha):
        times = Counter(chosen)
        ways = factorial(alpha) // prod(map(factorial, times.values()))
        pairs = sum(chosen) ** 2 - sum(n * i * i for i, n in times.items())
        weight = mp.fprod(weights[i] ** n for i, n in times.items())
        total += ways * weight * mp.exp(mpf(pairs) / (2 * mpf(sigma) ** 2))
    return total


def reverse_moment(k: int, rate: float, sigma: float, alpha: float) -> mpf:
    """E_Q[(Q/P)^{α−1}]."""
    weights, s = binomial(k, rate), mpf(sigma)

    def integrand(x: mpf) -> mpf:
        ratio = mp.fsum(
            w * mp.exp((2 * i * x - i * i) / (2 * s * s)) for i, w in enumerate(weights)
        )
        return mp.npdf(x, 0, s) * ratio ** (1 - mpf(alpha))

    return mp.quad(integrand, mp.linspace(-30 * s, 14 * s, 12))


@pytest.mark.parametrize(
    ("k", "rate", "sigma", "alpha"),
    [
        (1, 1e-6, 3.0, 2),
        (1, 0.3, 1.0, 1025),
        (1, 1e-6, 1.0, 1025),
        (2, 0.05, 2.0, 9),
        (7, 0.4, 3.0, 4),
    ],
)
def test_a_groups_divergence_is_the_closed_form(
    k: int, rate: float, sigma: float, alpha: int
) -> None:
    forward, _ = mixture_divergences(group_shift(k, rate), sigma, np.array([float(alpha)]))
    with mp.workdps(60):
        truth = mp.log(forward_moment(k, rate, sigma, alpha)) / (alpha - 1)
        assert truth <= mpf(forward[0].item()) <= truth * (1 + 1e-10) + 1e-12


@pytest.mark.parametrize("alpha", [1.001, 3.5, 65.0])
@pytest.mark.parametrize(("k", "rate", "sigma"), [(1, 1e-6, 3.0), (3, 0.2, 1.5)])
def test_the_other_directions_is_the_integral(
    k: int, rate: float, sigma: float, alpha: float
) -> None:
    _, reverse = mixture_divergences(group_shift(k, rate), sigma, np.array([alpha]))
    with mp.workdps(40):
        truth = mp.log(reverse_moment(k, rate, sigma, alpha)) / (mpf(alpha) - 1)
        assert truth <= mpf(reverse[0].item()) <= truth * (1 + 1e-10) + 1e-9


@pytest.mark.parametrize(("rate", "sigma", "rounds"), CASES)
@pytest.mark.parametrize("kind", [ExactGroups, RenyiGroups])
def test_the_largest_group_has_its_curves_in_seconds(
    kind: type[ExactGroups | RenyiGroups], rate: float, sigma: float, rounds: int
) -> None:
    guarantee: Guarantee = kind(poisson_gaussian(rate=rate, noise_multiplier=sigma, count=rounds))
    scores = np.array([0.0, 0.1, 0.9, 1.0])
    for direction in BOTH:
        curves = guarantee.curves(LARGEST_GROUP, direction)
        assert (curves.lower(scores) <= scores).all()
        assert (curves.upper(scores) >= scores).all()
        assert curves.lower(0.9) < 1e-3


def test_a_loss_at_its_bound_is_out_of_reach_and_is_said_so_at_once() -> None:
    mechanism = poisson_gaussian(rate=0.1, noise_multiplier=2.0, count=30)
    exact = ExactGroups(mechanism)
    assert fewest_attackers(1.0, 1.0, 2.0, exact) is None
    assert fewest_attackers(1.0, 1.0, 2.0, Replacements(exact)) is None
    assert fewest_attackers(0.0, 1.0, 2.0, exact) == 0
    # Once this took twelve minutes and all memory.
    assert fewest_attackers(1.0, 1.0, 2.0, RenyiGroups(mechanism)) == 1810
    # What may be wrong with a probability of δ can take it there.
    assert fewest_attackers(1.0, 1.0, 2.0, ApproximateDP.single(0.1, 1e-5)) == 86
    assert (fewest_attackers(1 - 1e-9, 1.0, 2.0, exact) or 0) > 1


def test_groups_that_are_told_apart_are_those_that_share_next_to_nothing() -> None:
    for k, sigma in ((1, 1.0), (5, 2.0), (40, 30.0)):
        one = Round(0.3, sigma, 0.5, k)
        x = np.linspace(-14 * sigma, k + 14 * sigma, 40_001)
        base = np.exp(-0.5 * (x / sigma) ** 2)
        weights = [float(w) for w in binomial(k, 0.3)]
        mixture = sum(w * np.exp(-0.5 * ((x - i) / sigma) ** 2) for i, w in enumerate(weights))
        shared = 0.5 + 0.5 * np.trapezoid(np.sqrt(base * mixture), x) / (sigma * np.sqrt(2 * np.pi))
        assert np.log(shared) <= log_affinity(one) <= 0
