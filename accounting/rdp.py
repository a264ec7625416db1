"""The RDP accountant: Rényi divergences over a fine grid of orders, and two conversions.

A sound upper bound that is independent of the exact accountant's grid: the cross-check. Fixed-size
sampling under replace-one is here too: this system samples by Poisson, but the papers state
fixed-size sampling and account for Poisson.
"""

import math
from enum import Enum
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, logsumexp

from precad.accounting.events import (
    POISSON,
    AccountantName,
    Adjacency,
    SampledGaussian,
    Sampling,
    require_bound,
)
from precad.common import checks


class Conversion(Enum):
    """How an RDP curve becomes (ε, δ)."""

    MIRONOV = "mironov"
    """ε = ρ(α) + ln(1/δ)/(α − 1); Mironov 2017, Proposition 3."""
    TIGHT = "tight"
    """ε = ρ(α) + ln((α−1)/α) − (ln δ + ln α)/(α − 1); Canonne–Kamath–Steinke 2020,
    Proposition 12, and Balle et al. 2020, Theorem 21. Never above Mironov's."""

    def gain(self, alpha: NDArray[np.float64]) -> NDArray[np.float64]:
        """G in ln δ = (α − 1)·(ρ − ε) + g, for each order: 0 as Mironov has it, else below."""
        if self is Conversion.MIRONOV:
            return np.zeros_like(alpha)
        return np.asarray((alpha - 1) * np.log1p(-1 / alpha) - np.log(alpha))


ORDERS: tuple[float, ...] = (
    *(1 + np.geomspace(1e-3, 9.9, 90)).tolist(),
    *(float(order) for order in range(11, 65)),
    *np.unique(np.geomspace(65, 16384, 36).round()).tolist(),
)
"""α from 1.001 to 16,384, 180 of them: neither a large nor a small ε is decided at an end."""

XIE_ORDERS: tuple[float, ...] = tuple(
    [round(1 + i / 10, 1) for i in range(1, 100)] + [float(a) for a in range(12, 64)]
)
"""1.1 to 10.9 by 0.1, and 12 to 63: what Xie et al.'s tables were made with."""

# With less noise sampling hardly helps, and is left out: a bound too, and no integral of a spike.
_LEAST_NOISE = 0.01

_FIXED_SIZE = (Sampling.FIXED_SIZE, Adjacency.REPLACE_ONE)


class RdpAccountant:
    """Rényi divergences of sampled Gaussians and of atom mixtures of them.

    Understands Poisson sampling under add/remove and fixed-size sampling under replace-one.

    Args:
        orders: α > 1, ascending.
        conversion: to (ε, δ); the tight one by default.
    """

    name = AccountantName.RDP

    def __init__(
        self, orders: tuple[float, ...] = ORDERS, conversion: Conversion = Conversion.TIGHT
    ) -> None:
        self._orders = orders
        self._conversion = conversion
        self._divergence = np.zeros(len(orders))

    def compose(self, event: SampledGaussian) -> None:
        """Add ``event``; see ``Accountant``.

        Raises:
            Misconfiguration: another pair of sampling scheme and adjacency; nothing changed.
        """
        require_bound(event, self.name, (POISSON, _FIXED_SIZE))
        sigma = event.effective_noise_multiplier
        if event.sampling is Sampling.POISSON:
            step = sampled_gaussian_rdp(event.rate, sigma, self._orders)
        else:
            step = fixed_size_rdp_curve(event.rate, sigma, self._orders)
        once = mixture_rdp(step, event.participation, self._orders)
        self._divergence = self._divergence + event.count * once

    def epsilon(self, delta: float) -> float:
        """The least ε ≥ 0 over the orders; see ``Accountant``.

        Raises:
            Misconfiguration: δ outside (0, 1).
        """
        return self.epsilon_and_order(delta)[0]

    def epsilon_and_order(self, delta: float) -> tuple[float, float]:
        """ε and the order α that gives it.

        Raises:
            Misconfiguration: δ outside (0, 1).
        """
        return epsilon_of_rdp(self._orders, self._divergence, delta, self._conversion)

    def delta(self, epsilon: float) -> float:
        """The least δ over the orders, in [0, 1]; see ``Accountant``.

        Raises:
            Misconfiguration: ε negative or not finite.
        """
        checks.epsilon(epsilon)
        if not self._divergence.any():
            return 0.0
        alpha = np.asarray(self._orders)
        log_delta = (alpha - 1) * (self._divergence - epsilon) + self._conversion.gain(alpha)
        delta = math.exp(min(0.0, float(log_delta.min())))
        if self._conversion is Conversion.MIRONOV:
            return delta
        return min(delta, _total_variation(self._divergence))


def epsilon_of_rdp(
    orders: tuple[float, ...],
    divergence: NDArray[np.float64],
    delta: float,
    conversion: Conversion,
) -> tuple[float, float]:
    """(ε, α): the least ε over the orders, never below 0, and the order that gives it.

    Args:
        orders: α > 1, ``[n]``.
        divergence: ρ(α), ``[n]`` float64, nats.
        delta: in (0, 1).
        conversion: which bound.

    Raises:
        Misconfiguration: δ outside (0, 1).
    """
    checks.inside_unit_interval("delta", delta)
    alpha = np.asarray(orders)
    if not divergence.any():
        return 0.0, float(alpha[-1])
    epsilons = divergence + (conversion.gain(alpha) - math.log(delta)) / (alpha - 1)
    if conversion is not Conversion.MIRONOV and _total_variation(divergence) < delta:
        epsilons[np.argmin(divergence)] = 0.0
    best = int(np.argmin(epsilons))
    return max(0.0, float(epsilons[best])), float(alpha[best])


def _total_variation(divergence: NDArray[np.float64]) -> float:
    """√(1 − e^{−ρ}): δ(0) is at most this, for every order (Bretagnolle and Huber 1979).

    No order's divergence is below Kullback and Leibler's, of which the inequality is. Rounded up.
    """
    return math.sqrt(-math.expm1(-float(divergence.min()))) * (1 + 1e-12)


def _log_moments_by_integral(
    rate: float, noise_multiplier: float, orders: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Ln ∫ N(x; 0, σ²)·(1 − q + q·e^{(2x−1)/(2σ²)})^α dx for each α, by the trapezoidal rule.

    The integrand is analytic in a strip of half-width πσ² and falls like a Gaussian, so the
    rule's error falls exponentially with the number of points; the series of Mironov, Talwar
    and Zhang 2019 (Section 3.3) is what others use, but it doesn't converge near α = 1.
    """
    if not len(orders):
        return np.zeros(0)
    sigma = noise_multiplier
    width = min(sigma / 8, max(sigma**2 / 3, 2e-5))
    x = np.arange(-12 * sigma, float(orders.max()) + 12 * sigma, width)
    log_ratio = np.logaddexp(math.log1p(-rate), math.log(rate) + (2 * x - 1) / (2 * sigma**2))
    log_density = -0.5 * (x / sigma) ** 2
    log_width = math.log(width / (sigma * math.sqrt(2 * math.pi)))
    return np.array([_log_sum(log_density + alpha * log_ratio) + log_width for alpha in orders])


def _log_moment_of_whole_order(rate: float, noise_multiplier: float, alpha: int) -> float:
    """Mironov, Talwar and Zhang 2019, Section 3.3: the binomial sum, in logarithms.

    ln Σ_k C(α,k)·(1−q)^{α−k}·q^k·e^{(k²−k)/(2σ²)}
    """
    k = np.arange(alpha + 1, dtype=np.float64)
    log_odds = (alpha - k) * math.log1p(-rate) + k * math.log(rate)
    return _log_sum(_log_binomials(alpha) + log_odds + (k * k - k) / (2 * noise_multiplier**2))


@lru_cache(maxsize=256)
def _log_binomials(alpha: int) -> NDArray[np.float64]:
    """Ln C(α, k) for k = 0 to α."""
    k = np.arange(alpha + 1, dtype=np.float64)
    found: NDArray[np.float64] = gammaln(alpha + 1.0) - gammaln(k + 1) - gammaln(alpha - k + 1)
    return found


def _log_sum(logarithms: NDArray[np.float64]) -> float:
    """Ln Σ e^x; SciPy's takes ten times as long for a few hundred."""
    most = float(logarithms.max())
    return most + math.log(float(np.exp(logarithms - most).sum()))


@lru_cache(maxsize=2048)
def sampled_gaussian_rdp(
    rate: float, noise_multiplier: float, orders: tuple[float, ...] = ORDERS
) -> NDArray[np.float64]:
    """ρ(α) of one Poisson-sampled Gaussian step; Mironov, Talwar and Zhang 2019.

    The divergence of the sampled from the unsampled distribution, which is the larger
    direction at every order (their Theorem 5).

    Args:
        rate: in [0, 1].
        noise_multiplier: standard deviation over sensitivity, above 0.
        orders: α > 1.

    Returns:
        ``[len(orders)]`` float64, nats, read-only.
    """
    if rate in (0, 1) or noise_multiplier < _LEAST_NOISE:
        divergence = math.ceil(rate) * np.asarray(orders) / (2 * noise_multiplier**2)
    else:
        alpha = np.asarray(orders, np.float64)
        whole = alpha == np.floor(alpha)
        moments = np.empty_like(alpha)
        moments[~whole] = _log_moments_by_integral(rate, noise_multiplier, alpha[~whole])
        moments[whole] = [
            _log_moment_of_whole_order(rate, noise_multiplier, int(each)) for each in alpha[whole]
        ]
        divergence = np.maximum(0.0, moments) / (alpha - 1)
    divergence.setflags(write=False)
    return divergence


def mixture_rdp(
    step: NDArray[np.float64], probability: float, orders: tuple[float, ...]
) -> NDArray[np.float64]:
    """ρ(α) of a round that runs a step with ``probability``: ln(1 − q + q·e^{(α−1)ρ})/(α−1).

    The coin is the same on both neighbours, so the Rényi moment is the average of the step's
    and of 1.
    """
    if probability == 0:
        return np.zeros_like(step)
    if probability == 1:
        return step
    alpha = np.asarray(orders)
    moment = (alpha - 1) * step
    mixed = np.logaddexp(math.log1p(-probability), math.log(probability) + moment)
    return np.asarray(mixed / (alpha - 1), dtype=np.float64)


@lru_cache(maxsize=65536)
def fixed_size_rdp(rate: float, noise_multiplier: float, order: int) -> float:
    """ε'(α) of one step; Wang, Balle and Kasiviswanathan 2019, Theorem 9.

    ε'(α) = ln(1 + γ²·C(α,2)·min{4(e^{ε(2)}−1), e^{ε(2)}·min{2, (e^{ε(∞)}−1)²}}
            + Σ_{j=3..α} γ^j·C(α,j)·e^{(j−1)ε(j)}·min{2, (e^{ε(∞)}−1)^j})/(α−1)

    with ε(j) = j/(2σ²) and ε(∞) = ∞ for the Gaussian. The inner minimum is nested in the outer
    one, as in the original; Xie et al.'s Proposition 1 prints its brackets so that it reads as
    a product. Never above α/(2σ²), what the step costs without sampling.

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
    second = min(math.log(4) + 2 * half + math.log(-math.expm1(-2 * half)), math.log(2) + 2 * half)
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
        return (order - 1) * fixed_size_rdp(rate, noise_multiplier, order) if order > 1 else 0.0

    curve = []
    for alpha in orders:
        below, part = math.floor(alpha), alpha % 1
        chord = (1 - part) * log_moment(below) + (part and part * log_moment(below + 1))
        curve.append(chord / (alpha - 1))
    return np.array(curve)
