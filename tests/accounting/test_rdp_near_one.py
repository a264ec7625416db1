"""Rényi divergences at orders near 1 and of hardly any loss, against 60 digits: never below."""

import pytest
from mpmath import mp, mpf

from precad.accounting.events import poisson_gaussian
from precad.accounting.filter import RenyiFilter, RenyiLimit
from precad.accounting.rdp import ORDERS, RdpAccountant, mixture_rdp, sampled_gaussian_rdp

DIGITS = 60
RATES = (1e-9, 1e-6, 1e-3, 0.1, 0.7, 1 - 1e-12)
SIGMAS = (0.05, 0.3, 1.0, 3.0, 100.0, 1e6)
SLACK = 4e-12
"""What is given to rounding, relatively."""


def of_whole_order(rate: float, sigma: float, alpha: int) -> mpf:
    """The binomial sum: Mironov, Talwar and Zhang 2019, Section 3.3."""
    q, s = mpf(rate), mpf(sigma)
    terms = (
        mp.binomial(alpha, k) * (1 - q) ** (alpha - k) * q**k * mp.exp(mpf(k * k - k) / (2 * s * s))
        for k in range(alpha + 1)
    )
    return mp.log(mp.fsum(terms)) / (alpha - 1)


def by_integral(rate: float, sigma: float, order: float) -> mpf:
    q, s, a = mpf(rate), mpf(sigma), mpf(order)

    def integrand(x: mpf) -> mpf:
        more = q * mp.expm1((2 * x - 1) / (2 * s * s))
        return mp.npdf(x, 0, s) * ((1 + more) ** a - 1 - a * more)

    places = {-17 * s, -6 * s, 0, mpf(1) / 2, 1, 6 * s, a, a + 6 * s, a + 17 * s}
    return mp.log1p(mp.quad(integrand, sorted(places))) / (a - 1)


def one_step_delta(rate: float, sigma: float, epsilon: float) -> mpf:
    """δ(ε) of one step, exactly: the larger of both directions."""
    q, s, e = mpf(rate), mpf(sigma), mp.exp(mpf(epsilon))
    from_here = s * s * mp.log((e - 1 + q) / q) + mpf(1) / 2
    with_record = q * mp.ncdf((1 - from_here) / s) + (1 - q) * mp.ncdf(-from_here / s)
    found = with_record - e * mp.ncdf(-from_here / s)
    if 1 / e > 1 - q:
        up_to = s * s * mp.log((1 / e - 1 + q) / q) + mpf(1) / 2
        with_record = q * mp.ncdf((up_to - 1) / s) + (1 - q) * mp.ncdf(up_to / s)
        found = max(found, mp.ncdf(up_to / s) - e * with_record)
    return found


@pytest.mark.parametrize("rate", RATES)
def test_a_divergence_is_the_closed_form_and_never_below(rate: float) -> None:
    orders = (2, 3, 11, 64)
    with mp.workdps(DIGITS):
        for sigma in SIGMAS:
            ours = sampled_gaussian_rdp(rate, sigma, tuple(map(float, orders)))
            for order, found in zip(orders, ours.tolist(), strict=True):
                assert 0 <= mpf(found) / of_whole_order(rate, sigma, order) - 1 < SLACK


@pytest.mark.parametrize(
    ("rate", "sigma"), [(1e-9, 1e6), (1e-6, 3.0), (1e-3, 0.3), (0.1, 1.0), (0.9, 100.0)]
)
@pytest.mark.parametrize("order", [ORDERS[0], 1.05, 3.7, ORDERS[89]])
def test_a_fractional_orders_divergence_is_the_integral(
    rate: float, sigma: float, order: float
) -> None:
    with mp.workdps(DIGITS):
        truth = by_integral(rate, sigma, order)
        found = mpf(sampled_gaussian_rdp(rate, sigma, (order,))[0].item())
        assert 0 <= found / truth - 1 < SLACK
        share = mpf(0.1)
        mixed = mp.log1p(share * mp.expm1((mpf(order) - 1) * found)) / (mpf(order) - 1)
        coin = mixture_rdp(sampled_gaussian_rdp(rate, sigma, (order,)), 0.1, (order,))[0].item()
        assert abs(mpf(coin) / mixed - 1) < SLACK / 10
        spent = RenyiFilter(RenyiLimit(100.0, 1 - 1e-9, order))
        spent.charge(poisson_gaussian(rate=rate, noise_multiplier=sigma))
        assert 0 <= mpf(spent.spent) / truth - 1 < SLACK


@pytest.mark.parametrize("rate", [*RATES, 0.01])
def test_the_row_of_one_step_holds_at_every_delta(rate: float) -> None:
    for sigma in SIGMAS:
        accountant = RdpAccountant()
        accountant.compose(poisson_gaussian(rate=rate, noise_multiplier=sigma))
        for delta in (1e-15, 1e-12, 1e-10, 1e-8, 1e-6, 1e-5, 1e-3, 0.1):
            with mp.workdps(DIGITS):
                assert one_step_delta(rate, sigma, accountant.epsilon(delta)) <= delta


def test_ten_million_tiny_steps_are_not_free() -> None:
    accountant = RdpAccountant()
    accountant.compose(poisson_gaussian(rate=1e-6, noise_multiplier=3.0, count=10**7))
    # Exactly .002974, or more.
    assert 0.002974 < accountant.epsilon(1e-6) < 0.04
