"""The RDP accountant: Rényi divergences over a fine grid of orders.

A sound upper bound that is independent of the exact accountant's grid: the cross-check. ε =
ρ(α) + ln((α−1)/α) − (ln δ + ln α)/(α − 1) at every order: Canonne, Kamath and Steinke 2020,
Proposition 12, and Balle et al. 2020, Theorem 21.
"""

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

from precad.accounting.events import AccountantName, SampledGaussian, require_bound
from precad.common import checks

ORDERS: tuple[float, ...] = (
    *(1 + np.geomspace(1e-3, 9.9, 90)).tolist(),
    *(float(order) for order in range(11, 65)),
    *np.unique(np.geomspace(65, 16384, 36).round()).tolist(),
)
"""α from 1.001 to 16,384, 180 of them: neither a large nor a small ε is decided at an end."""

# With less noise sampling hardly helps, and is left out: a bound too, and no integral of a spike.
_LEAST_NOISE = 0.01


class RdpAccountant:
    """Rényi divergences of Poisson-sampled Gaussians and of atom mixtures of them.

    Args:
        orders: α > 1, ascending.
    """

    name = AccountantName.RDP

    def __init__(self, orders: tuple[float, ...] = ORDERS) -> None:
        self.orders = np.asarray(orders)
        """[n] float64: α."""
        self.divergence = np.zeros(len(orders))
        """[n] float64: ρ(α) of all that was composed, nats."""

    def compose(self, event: SampledGaussian) -> None:
        """Add ``event``; see ``Accountant``."""
        require_bound(event, self.name)
        orders = tuple(self.orders.tolist())
        step = sampled_gaussian_rdp(event.rate, event.effective_noise_multiplier, orders)
        once = mixture_rdp(step, event.participation, orders)
        self.divergence = self.divergence + event.count * once

    def epsilon(self, delta: float) -> float:
        """The least ε ≥ 0 over the orders; see ``Accountant``."""
        return self.epsilon_and_order(delta)[0]

    def epsilon_and_order(self, delta: float) -> tuple[float, float]:
        """ε and the order α that gives it."""
        checks.inside_unit_interval("delta", delta)
        alpha, divergence = self.orders, self.divergence
        if not divergence.any():
            return 0.0, float(alpha[-1])
        epsilons = divergence + (self._gain() - math.log(delta)) / (alpha - 1)
        if _total_variation(divergence) < delta:
            epsilons[np.argmin(divergence)] = 0.0
        best = int(np.argmin(epsilons))
        return max(0.0, float(epsilons[best])), float(alpha[best])

    def delta(self, epsilon: float) -> float:
        """The least δ over the orders, in [0, 1]; see ``Accountant``."""
        checks.epsilon(epsilon)
        if not self.divergence.any():
            return 0.0
        log_delta = (self.orders - 1) * (self.divergence - epsilon) + self._gain()
        delta = math.exp(min(0.0, float(log_delta.min())))
        return min(delta, _total_variation(self.divergence))

    def _gain(self) -> NDArray[np.float64]:
        """G in ln δ = (α − 1)·(ρ − ε) + G, for each order."""
        return np.asarray((self.orders - 1) * np.log1p(-1 / self.orders) - np.log(self.orders))


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
