"""Fixed-size sampling under replace-one, which the papers state while they account for Poisson.

Rényi divergences alone: what such a training costs at most. This system samples by
Poisson.
"""

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, logsumexp

from precad.accounting.events import Adjacency, SampledGaussian, Sampling, require_bound
from precad.accounting.rdp import ORDERS, RdpAccountant
from precad.common import checks

XIE_ORDERS: tuple[float, ...] = tuple(
    [round(1 + i / 10, 1) for i in range(1, 100)] + [float(a) for a in range(12, 64)]
)
"""1.1 to 10.9 by 0.1, and 12 to 63: what Xie et al.'s tables were made with."""


def fixed_size_epsilon(event: SampledGaussian, delta: float) -> float:
    """ε of a fixed-size sampled Gaussian under replace-one.

    Raises:
        Misconfiguration: another pair of sampling and adjacency, or δ outside (0, 1).
    """
    require_bound(event, "fixed-size", ((Sampling.FIXED_SIZE, Adjacency.REPLACE_ONE),))
    accountant = RdpAccountant()
    step = fixed_size_rdp_curve(event.rate, event.effective_noise_multiplier, ORDERS)
    accountant.divergence = event.count * step
    return accountant.epsilon(delta)


def mironov_epsilon(accountant: RdpAccountant, delta: float) -> tuple[float, float]:
    """(ε, α) by the older conversion, ε = ρ(α) + ln(1/δ)/(α − 1); Mironov 2017, Proposition 3."""
    checks.inside_unit_interval("delta", delta)
    epsilons = accountant.divergence - math.log(delta) / (accountant.orders - 1)
    best = int(np.argmin(epsilons))
    return max(0.0, float(epsilons[best])), float(accountant.orders[best])


@lru_cache(maxsize=65536)
def fixed_size_rdp(rate: float, noise_multiplier: float, order: int) -> float:
    """ε'(α) of one step; Wang, Balle and Kasiviswanathan 2019, Theorem 9.

    ε'(α) = ln(1 + γ²·C(α,2)·min{4(e^{ε(2)}−1), e^{ε(2)}·min{2, (e^{ε(∞)}−1)²}}
            + Σ_{j=3..α} γ^j·C(α,j)·e^{(j−1)ε(j)}·min{2, (e^{ε(∞)}−1)^j})/(α−1)

    with ε(j) = j/(2σ²) and ε(∞) = ∞ for the Gaussian. The inner minimum is nested in
    the outer one, as in the original; Xie et al.'s Proposition 1 prints its brackets so
    that it reads as a product. Never above α/(2σ²), what the step costs without
    sampling.

    Args:
        rate: γ, the share of records in a step, in [0, 1].
        noise_multiplier: standard deviation over sensitivity, above 0.
        order: α, a whole number, 2 or more.

    Returns:
        Nats.

    Raises:
        Misconfiguration: a parameter is out of its range.
    """
    checks.rate("rate", rate)
    checks.noise_multiplier(noise_multiplier)
    checks.count("order", order, 2)
    if rate == 0:
        return 0.0
    half = 1 / (2 * noise_multiplier**2)
    # ln(4(e^{ε(2)} − 1)) without overflow, and ln(2e^{ε(2)}).
    second = min(
        math.log(4) + 2 * half + math.log(-math.expm1(-2 * half)),
        math.log(2) + 2 * half,
    )
    j = np.arange(2, order + 1, dtype=np.float64)
    log_terms = (
        gammaln(order + 1.0)
        - gammaln(j + 1)
        - gammaln(order - j + 1)
        + j * math.log(rate)
        + np.concatenate([[second], (j[1:] - 1) * j[1:] * half + math.log(2)])
    )
    sampled = float(np.logaddexp(0.0, logsumexp(log_terms))) / (order - 1)
    return min(sampled, order * half)


def fixed_size_rdp_curve(
    rate: float, noise_multiplier: float, orders: tuple[float, ...]
) -> NDArray[np.float64]:
    """ε'(α) at any orders above 1: (α−1)·ε'(α) is convex, so between whole orders its chord bounds.

    Wang, Balle and Kasiviswanathan 2019, Corollary 10.

    Returns:
        ``[len(orders)]`` float64, nats.
    """

    def log_moment(order: int) -> float:
        return (
            (order - 1) * fixed_size_rdp(rate, noise_multiplier, order)
            if order > 1
            else 0.0
        )

    curve = []
    for alpha in orders:
        below, part = math.floor(alpha), alpha % 1
        chord = (1 - part) * log_moment(below) + (part and part * log_moment(below + 1))
        curve.append(chord / (alpha - 1))
    return np.array(curve)
