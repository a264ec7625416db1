"""The RDP accountant: Rényi divergences over a fine grid of orders.

A sound upper bound that is independent of the exact accountant's grid: the cross-check.
ε = ρ(α) + ln((α−1)/α) − (ln δ + ln α)/(α − 1) at every order: Canonne, Kamath and
Steinke 2020, Proposition 12, and Balle et al. 2020, Theorem 21.
"""

import math
from functools import lru_cache

import numpy as np
from scipy.special import gammaln

from precad.accounting import (
    UNIT,
    Accountant,
    AccountantName,
    SampledGaussian,
    SampledRound,
    log_binomial,
    log_mixed,
    log_sums,
    mixture_divergences,
    whole_shift,
)
from precad.common import Floats

ORDERS: tuple[float, ...] = (
    *(1 + np.geomspace(1e-3, 9.9, 90)).tolist(),
    *(float(order) for order in range(11, 65)),
    *np.unique(np.geomspace(65, 16384, 36).round()).tolist(),
)
"""α from 1.001 to 16,384, 180 of them: neither a large nor a small ε is decided at an
end."""

_LEAST_NOISE = 0.01
"""With less noise, sampling hardly helps and is left out: a bound too, and no integral
of a spike."""
_ROUNDING = 64 * UNIT
"""More than what rounding takes of a divergence, in units of 32 + ln α!. A small moment
loses the share by which the exponents of its terms are off, and the largest of those
are of factorials."""
_SMALL = 0.25
"""Below this, a series takes the place of e^z − 1."""
_LARGE = 30.0
"""From here on, e^z leaves nothing beside it."""
_LEAST = 1e-300
"""Stands for 0 in a logarithm: what is so small adds nothing to a sum."""
_SERIES = [*(1 / math.factorial(k + 1) for k in range(13, 0, -1)), 0.0]
"""Coefficients of (e^z − 1)/z − 1, the highest power first."""


class RdpAccountant(Accountant):
    """Accountant by Rényi divergences of sampled Gaussians and of atom mixtures.

    The orders α ascend, each above 1.
    """

    name = AccountantName.RDP

    def __init__(self, orders: tuple[float, ...] = ORDERS) -> None:
        self.orders = np.asarray(orders)
        """[n] float64: α."""
        self.divergence = np.zeros(len(orders))
        """[n] float64: ρ(α) of everything composed, in nats."""

    def _add(self, event: SampledGaussian) -> None:
        one_round = round_rdp(event, tuple(self.orders.tolist()))
        self.divergence = self.divergence + event.count * one_round

    def _epsilon(self, delta: float) -> float:
        if _total_variation(self.divergence) < delta:
            return 0.0
        added = (self._gain() - math.log(delta)) / (self.orders - 1)
        return max(0.0, float((self.divergence + added).min()))

    def _delta(self, epsilon: float) -> float:
        log_deltas = (self.orders - 1) * (self.divergence - epsilon) + self._gain()
        converted = math.exp(min(0.0, float(log_deltas.min())))
        return min(converted, _total_variation(self.divergence))

    def _gain(self) -> Floats:
        """Return G in ln δ = (α − 1)·(ρ − ε) + G, for each order; [n] float64."""
        return np.asarray(
            (self.orders - 1) * np.log1p(-1 / self.orders) - np.log(self.orders)
        )


def _total_variation(divergence: Floats) -> float:
    """Return √(1 − e^{−ρ}), rounded up: δ(0) is at most this, for every order.

    Bretagnolle and Huber 1979. No order's divergence is below Kullback and Leibler's,
    of which the inequality is.
    """
    return math.sqrt(-math.expm1(-float(divergence.min()))) * (1 + 1e-12)


def _log_gains_by_integral(rate: float, sigma: float, orders: Floats) -> Floats:
    """Return ln ∫ N(x; 0, σ²)·(e^{αL} − 1 − α(e^L − 1)) dx by the trapezoidal rule.

    e^L − 1 has mean 0, so this is ln(E[e^{αL}] − 1). With b = α − 1 the bracket is
    b·e^L·(−L·ψ(−L) + L·ψ(bL)), ψ(z) = (e^z − 1)/z − 1: neither term is ever negative,
    and nothing cancels. The integrand is analytic in a strip of half-width πσ² and
    falls like a Gaussian, so the rule's error falls exponentially with the number of
    points; the series of Mironov, Talwar and Zhang 2019 (Section 3.3) doesn't converge
    near α = 1.

    Args:
        rate: q of the step, in (0, 1).
        sigma: Its noise multiplier.
        orders: The α, [n], each above 1.

    Returns:
        [n] float64.
    """
    if not len(orders):
        return np.zeros(0)
    width = min(sigma / 8, max(sigma**2 / 3, 2e-5))
    x = np.arange(-12 * sigma, float(orders.max()) + 12 * sigma, width)
    loss = log_mixed((2 * x - 1) / (2 * sigma**2), rate)
    # Of e^L·N(x; 0, σ²), but for the constant, which goes with the width.
    log_density = loss - 0.5 * (x / sigma) ** 2
    log_width = math.log(width / (sigma * math.sqrt(2 * math.pi)))
    common = loss * -_psi(-loss)
    log_gains = []
    for b in orders - 1:
        near = common + loss * _psi(np.minimum(b * loss, _LARGE))
        # The bracket is at most e^{bL}/b, and beyond e^30 equal to it.
        far = b * loss - math.log(b)
        bracket = np.where(b * loss < _LARGE, np.log(np.maximum(near, _LEAST)), far)
        log_gains.append(log_sums(log_density + bracket) + math.log(b) + log_width)
    return np.array(log_gains)


def _psi(values: Floats) -> Floats:
    """Return ψ(z) = (e^z − 1)/z − 1 = Σ_{k≥1} z^k/(k+1)!, relatively exact."""
    series = np.polyval(_SERIES, np.clip(values, -_SMALL, _SMALL))
    away = np.where(np.abs(values) < _SMALL, 1.0, values)
    return np.where(away == values, np.expm1(away) / away - 1, series)


def _log_gain_of_whole_order(rate: float, noise_multiplier: float, alpha: int) -> float:
    """Return ln(E[e^{αL}] − 1) for a whole order α.

    ln Σ_k C(α,k)·(1−q)^{α−k}·q^k·(e^{(k²−k)/(2σ²)} − 1): Mironov, Talwar and Zhang
    2019, Section 3.3. The first two terms are 0, no other is negative.

    Args:
        rate: q, in (0, 1).
        noise_multiplier: σ.
        alpha: α, at least 2.
    """
    k = np.arange(2, alpha + 1, dtype=np.float64)
    log_odds = (alpha - k) * math.log1p(-rate) + k * math.log(rate)
    exponent = (k * k - k) / (2 * noise_multiplier**2)
    log_excess = exponent + np.log(-np.expm1(-exponent))
    log_binomials = gammaln(alpha + 1.0) - gammaln(k + 1) - gammaln(alpha - k + 1)
    return float(log_sums(log_binomials + log_odds + log_excess))


@lru_cache(maxsize=2048)
def sampled_gaussian_rdp(
    rate: float, noise_multiplier: float, orders: tuple[float, ...]
) -> Floats:
    """Return ρ(α) of one Poisson-sampled Gaussian step.

    Mironov, Talwar and Zhang 2019: the divergence of the sampled from the unsampled
    distribution, which is the larger direction at every order (their Theorem 5).

    Args:
        rate: Probability with which a record is drawn, in [0, 1].
        noise_multiplier: σ, over the sensitivity.
        orders: The α, each above 1.

    Returns:
        [n] float64, in nats, read-only.
    """
    alpha = np.asarray(orders, np.float64)
    if rate in (0, 1) or noise_multiplier < _LEAST_NOISE:
        divergence = math.ceil(rate) * alpha / (2 * noise_multiplier**2)
    else:
        whole = alpha == np.floor(alpha)
        log_gains = np.empty_like(alpha)
        log_gains[~whole] = _log_gains_by_integral(
            rate, noise_multiplier, alpha[~whole]
        )
        log_gains[whole] = [
            _log_gain_of_whole_order(rate, noise_multiplier, int(order))
            for order in alpha[whole]
        ]
        divergence = np.logaddexp(0.0, log_gains) / (alpha - 1)
    divergence *= 1 + _ROUNDING * (32 + gammaln(alpha + 1))
    divergence.setflags(write=False)
    return divergence


def mixture_rdp(step: Floats, probability: float, orders: tuple[float, ...]) -> Floats:
    """Return ρ(α) of a round that runs a step with a probability.

    ln(1 − q + q·e^{(α−1)ρ})/(α−1): the coin is the same on both neighbours, so its
    Rényi moment averages the step's and 1.

    Args:
        step: ρ(α) of the step, [n], in nats.
        probability: q, in [0, 1].
        orders: The α, each above 1.

    Returns:
        [n] float64, in nats.
    """
    if probability in (0, 1):
        return step * probability
    alpha = np.asarray(orders, np.float64)
    return log_mixed((alpha - 1) * step, probability) / (alpha - 1)


@lru_cache(maxsize=2048)
def round_rdp(event: SampledGaussian, orders: tuple[float, ...]) -> Floats:
    """Return ρ(α) of one round of an event, the larger of both directions.

    Over several owners' coins the Rényi moment is averaged: k of them that are there
    shift the sum by Bin(k, rate). Which direction is larger isn't known for k above 1,
    so the larger of both is taken at every order and for every k. It is infinite at
    orders whose integral would be too large: these claim nothing.

    Where all owners sample everything they are one with m times the shift.

    Args:
        event: The rounds.
        orders: The α, each above 1.

    Returns:
        [n] float64, in nats.
    """
    noise = event.effective_noise_multiplier
    if event.owners == 1 or event.rate == event.participation == 1:
        always = sampled_gaussian_rdp(event.rate, noise / event.owners, orders)
        return mixture_rdp(always, event.participation, orders)
    alpha = np.asarray(orders, np.float64)
    chances = log_binomial(event.owners, event.participation)
    log_moments = np.full_like(alpha, chances[0])
    for there in range(1, event.owners + 1):
        if chances[there] > -math.inf:
            step = SampledRound(event.rate, noise, 1.0, there)
            forward, reverse = mixture_divergences(
                whole_shift(step), noise=noise, orders=alpha
            )
            of_these = chances[there] + (alpha - 1) * np.maximum(forward, reverse)
            log_moments = np.logaddexp(log_moments, of_these)
    return np.asarray(np.maximum(log_moments, 0.0) / (alpha - 1))
