"""Rényi guarantees as curves, and the Rényi divergence of a group under Poisson sampling.

Liu eq. 8 and Lemma 12; Xie Lemma 5, Thm 5 and 6.

Directions: an upper curve needs D_α(poisoned‖clean), a lower curve D_α(clean‖poisoned).
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from scipy.special import logsumexp

from precad.accounting.events import SampledGaussian, require_bound
from precad.accounting.losses import Round, Shift, log_affinity, log_binomial, log_ratio
from precad.accounting.rdp import mixture_rdp
from precad.certify.curves import Booleans, Curves, Floats, Identity, Integers, probabilities
from precad.certify.guarantee import Direction, Guarantee
from precad.common.errors import Misconfiguration

ORDERS = tuple(1 + 2.0 ** (i / 4) for i in range(-40, 41))
"""Default orders α: 1 + 2^(i/4), from 1.001 to 1,025. Neither end binds in practice."""

# e^ε with ε beyond this says nothing about a probability.
_USELESS = 700.0
# Added to every log-moment, in units of itself and of α: the rounding of a log-ratio, which α
# multiplies, and of exponents, which are about as large as the moment's logarithm.
_ROUNDING = 1e-13
# Points of one grid, and its points times components: seconds for all orders of a group.
_MOST_POINTS, _MOST_WORK = 2**20, 2**23


@dataclass(frozen=True, slots=True)
class RenyiCurves(Curves):
    """Best over orders of Hölder's bounds.

    Upper (e^ε p)^{(α−1)/α} with ε = D_α(poisoned‖clean), lower e^{−ε} p^{α/(α−1)} with
    ε = D_α(clean‖poisoned).

    Attributes:
        orders: [a] float64, each above 1.
        poisoned_over_clean: [a] float64, D_α(poisoned‖clean); infinite where unknown.
        clean_over_poisoned: [a] float64, D_α(clean‖poisoned).
        refined: also use the complement event and the joint test of Lemma 5; without it the
            curves are Liu's outcomes guarantee as printed.
    """

    orders: Floats
    poisoned_over_clean: Floats
    clean_over_poisoned: Floats
    refined: bool = True

    def _upper(self, p: Floats) -> Floats:
        power = (self.orders - 1) / self.orders
        with np.errstate(divide="ignore", invalid="ignore"):
            exponent = power[:, None] * (self.poisoned_over_clean[:, None] + np.log(p.ravel()))
        # An unknown divergence says nothing, about p = 0 too (∞ − ∞).
        exponent = np.where(np.isnan(exponent), 0.0, exponent)
        return np.asarray(np.exp(np.minimum(exponent.min(axis=0), 0.0))).reshape(p.shape)

    def _lower(self, p: Floats) -> Floats:
        power = self.orders / (self.orders - 1)
        with np.errstate(divide="ignore"):
            exponent = power[:, None] * np.log(p.ravel()) - self.clean_over_poisoned[:, None]
        return np.asarray(np.exp(np.minimum(exponent.max(axis=0), 0.0))).reshape(p.shape)

    def separates(self, p_a: npt.ArrayLike, p_b: npt.ArrayLike) -> Booleans:
        """Liu Thm 10, or at any order Xie's Lemma 5 in the direction that its formula is for."""
        p_a, p_b = probabilities("p_a", p_a), probabilities("p_b", p_b)
        apart = Curves.separates(self, p_a, p_b)
        if not self.refined:
            return apart
        shape = (-1,) + (1,) * p_a.ndim
        orders = self.orders.reshape(shape)
        reach = renyi_reach_poisoned_over_clean(p_a, p_b, orders)
        reverse_reach = renyi_reach_clean_over_poisoned(p_a, p_b, orders)
        joint = (self.poisoned_over_clean.reshape(shape) < reach).any(axis=0) | (
            self.clean_over_poisoned.reshape(shape) < reverse_reach
        ).any(axis=0)
        # Lemma 5 speaks of p_a ≥ p_b with p_a + p_b ≤ 1 only.
        return np.asarray(apart | (joint & (p_a > p_b) & (p_a + p_b <= 1 + 1e-12)))


def _power_mean(p_a: Floats, p_b: Floats, exponent: Floats) -> Floats:
    """((p_a^s + p_b^s)/2)^{1/s}; 0 where s < 0 and p_b = 0."""
    with np.errstate(divide="ignore"):
        logs = np.stack(np.broadcast_arrays(exponent * np.log(p_a), exponent * np.log(p_b)))
    return np.asarray(np.exp((logsumexp(logs, axis=0) - math.log(2)) / exponent))


def renyi_reach_poisoned_over_clean(
    p_a: npt.ArrayLike, p_b: npt.ArrayLike, order: npt.ArrayLike
) -> Floats:
    """The least D_α(poisoned‖clean) at which B can draw level with A.

    −log(1 − p_a − p_b + 2η) with η the power mean of exponent 1 − α: the formula of Xie's Lemma 5
    and Thm 5, whose text names the other direction. Broadcasts; 0 where p_a ≤ p_b.
    """
    p_a, p_b = probabilities("p_a", p_a), probabilities("p_b", p_b)
    eta = _power_mean(p_a, p_b, 1 - np.asarray(order, dtype=np.float64))
    with np.errstate(divide="ignore"):
        return np.asarray(np.maximum(0.0, -np.log(np.maximum(0.0, 1 - p_a - p_b + 2 * eta))))


def renyi_reach_clean_over_poisoned(
    p_a: npt.ArrayLike, p_b: npt.ArrayLike, order: npt.ArrayLike
) -> Floats:
    """The least D_α(clean‖poisoned) at which B can draw level with A.

    α/(α−1)·log(1 − p_a − p_b + 2m) with m the power mean of exponent α: minimising
    Σ clean^α poisoned^{1−α} over poisoned distributions that give A and B the same weight.
    """
    p_a, p_b = probabilities("p_a", p_a), probabilities("p_b", p_b)
    order = np.asarray(order, dtype=np.float64)
    mean = _power_mean(p_a, p_b, order)
    return np.asarray(np.maximum(0.0, order / (order - 1) * np.log(1 - p_a - p_b + 2 * mean)))


@dataclass(frozen=True, slots=True)
class RenyiGroups(Guarantee):
    """The Rényi divergences of the group's mixture of Gaussians, both directions, T rounds."""

    mechanism: SampledGaussian
    orders: tuple[float, ...] = ORDERS
    refined: bool = True

    name = "RDP"

    def __post_init__(self) -> None:
        require_bound(self.mechanism, self.name)
        if not self.orders or not all(order > 1 for order in self.orders):
            raise Misconfiguration("orders", self.orders, "give orders, each above 1")

    def divergences(self, k: int) -> tuple[Floats, Floats]:
        """[orders] each: T-fold D_α(with‖without) and D_α(without‖with) for a group of k ≥ 1."""
        m = self.mechanism
        forward, reverse = _group_divergences(m.rate, m.effective_noise_multiplier, k, self.orders)
        return tuple(
            m.count * mixture_rdp(step, m.participation, self.orders) for step in (forward, reverse)
        )  # type: ignore[return-value]

    def _curves(self, k: int, direction: Direction) -> Curves:
        """The group's curves; additions poison the clean Gaussian, deletions the mixture."""
        if self.mechanism.silent:
            return Identity()
        with_group, without_group = self.divergences(k)
        orders = np.asarray(self.orders)
        if direction is Direction.ADDITIONS:
            return RenyiCurves(orders, with_group, without_group, self.refined)
        return RenyiCurves(orders, without_group, with_group, self.refined)


@lru_cache(maxsize=4096)
def _group_divergences(
    probability: float, noise: float, k: int, orders: tuple[float, ...]
) -> tuple[Floats, Floats]:
    # Rényi's divergence of order 1/2 is no larger than any other, and the same both ways.
    if -2 * log_affinity(Round(probability, noise, 1.0, k)) > _USELESS:
        forward = reverse = np.full(len(orders), np.inf)
    else:
        shift = Shift(np.arange(k + 1, dtype=np.float64), log_binomial(k, probability))
        forward, reverse = mixture_divergences(shift, noise, np.asarray(orders), _USELESS)
    forward.setflags(write=False)
    reverse.setflags(write=False)
    return forward, reverse


def mixture_divergences(
    shift: Shift, noise: float, orders: Floats, limit: float = math.inf
) -> tuple[Floats, Floats]:
    """One round's D_α(P‖Q) and D_α(Q‖P) for P = Σ w_i N(i, σ²) and Q = N(0, σ²).

    By the trapezoid rule in the log domain, whose own error is below rounding for these analytic
    integrands; of orders whose grid would be too large, nothing is claimed. P's far components are
    left out where Minkowski's inequality says that they add nothing:
    ‖P/Q‖_α ≤ ‖P_near/Q‖_α + Σ_far w_i e^{(α−1)i²/(2σ²)}.
    A D_α(P‖Q) certainly above ``limit`` is reported as infinite, unevaluated.
    """
    forward = np.full(len(orders), np.inf)
    reverse = np.full(len(orders), np.inf)
    nearest = np.zeros(len(orders), dtype=np.int64)
    squares = shift.sizes**2 / (2 * noise**2)
    for index, order in enumerate(orders):
        log_norms = shift.log_weights + (order - 1) * squares
        if order / (order - 1) * float(log_norms.max()) < limit:
            tails = np.logaddexp.accumulate(log_norms[::-1])[::-1]
            nearest[index] = max(int(np.searchsorted(-tails, 36.0)), 1)
    for some in _blocks(np.arange(len(orders))):
        reverse[some] = _reverse_divergences(shift, noise, orders[some])
    for some in _blocks(np.flatnonzero(nearest)):
        forward[some] = _forward_divergences(shift, noise, orders[some], int(nearest[some].max()))
    return forward, reverse


def _blocks(indices: Integers) -> list[Integers]:
    """Neighbouring orders share one grid: the log-ratio is what costs."""
    return np.array_split(indices, -(-len(indices) // 8)) if len(indices) else []


def _forward_divergences(shift: Shift, noise: float, orders: Floats, near: int) -> Floats:
    highest = float(orders.max()) * shift.sizes[near - 1] + 12 * noise
    return _divergences(shift, noise, orders, near, orders, (-12 * noise, highest))


def _reverse_divergences(shift: Shift, noise: float, orders: Floats) -> Floats:
    # Leaving components of P out only raises the divergence of Q from P.
    first = float(shift.log_weights[0])
    kept = shift.log_weights > (first if math.isfinite(first) else 0.0) - 80
    near = int(np.flatnonzero(kept)[-1]) + 1
    mean = float(np.exp(shift.log_weights) @ shift.sizes)
    most = float(orders.max()) - 1
    # The integrand peaks where x is −(α − 1)·E[i | x], and is at most w_0^{1−α}·Q.
    lowest = -min(most * mean + 12 * noise, noise * math.sqrt(144 - 2 * most * first))
    return _divergences(shift, noise, orders, near, 1 - orders, (lowest, 12 * noise))


def _divergences(
    shift: Shift,
    noise: float,
    orders: Floats,
    near: int,
    exponents: Floats,
    ends: tuple[float, float],
) -> Floats:
    """[orders]: ln E_Q[(P_near/Q)^exponent] / (α − 1), the integral taken between the ends."""
    # The integrand is analytic in a strip of half-width πσ² (the zeros of P/Q), and a mode's
    # standard deviation is about σ: this step leaves both errors under 1e-14.
    step = min(noise / 8, noise**2 / 2)
    low, high = math.floor(ends[0] / step), math.ceil(ends[1] / step)
    if high - low > min(_MOST_POINTS, _MOST_WORK // near):
        return np.full(len(orders), np.inf)
    x = np.arange(low, high + 1, dtype=np.float64) * step
    part = Shift(shift.sizes[:near], shift.log_weights[:near])
    ratio, _ = log_ratio(x, part, noise)
    density = -((x / noise) ** 2) / 2 - math.log(noise * math.sqrt(2 * math.pi))
    log_moments = exponents[:, None] * ratio + density
    top = log_moments.max(axis=1)
    sums = np.exp(log_moments - top[:, None]).sum(axis=1)
    found = top + np.log(sums * step)
    found += _ROUNDING * (orders + np.abs(found))
    return np.asarray(np.maximum(0.0, found / (orders - 1)))
