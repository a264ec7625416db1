"""Certificates as the papers print them: wrong, needlessly weak, or for one guarantee only."""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr, ndtri

from precad.accounting.events import SampledGaussian
from precad.accounting.gdp import delta_of_epsilon
from precad.accounting.group_rdp import mixture_divergences
from precad.accounting.losses import SampledRound, group_shift
from precad.certify.group_guarantees import (
    ORDERS,
    ExactGroups,
    RenyiCurves,
    renyi_reach_clean_over_poisoned,
    renyi_reach_poisoned_over_clean,
)
from precad.certify.guarantee import Direction, probabilities
from precad.certify.prediction import largest_group
from precad.common.arrays import Booleans, Floats, Integers
from precad.common.checks import count, positive
from research.printed.printed_privacy import Reproduction

_DOUBLED_GROUPS = "holds for groups of 2^k, so far too loose: use RenyiGroups"
_THEOREM_8 = (
    "assumes that r records together move the sum by one clip; with per-record clipping"
    " they move it by up to r clips (sigma=30, q=.01, T=100, p_A=.99: r=700 already"
    " flips the prediction)"
)


def _joint_rate(mechanism: SampledGaussian, r: int) -> float:
    """1 − (1 − q)^r, the rate at which Theorem 8 lets the whole group arrive as one record."""
    return -math.expm1(r * math.log1p(-mechanism.rate)) if mechanism.rate < 1 else 1.0


def theorem_8_divergences(
    mechanism: SampledGaussian, r: int, orders: tuple[float, ...] = ORDERS
) -> tuple[Floats, Floats]:
    """[orders] each: T-fold Rényi divergences, with‖without and back, as Liu Thm 8 has them."""
    forward, reverse = mixture_divergences(
        group_shift(
            SampledRound(
                _joint_rate(mechanism, r),
                mechanism.effective_noise_multiplier,
                1.0,
            )
        ),
        noise=mechanism.effective_noise_multiplier,
        orders=np.asarray(orders),
    )
    return mechanism.count * forward, mechanism.count * reverse


def _radius(separates: Callable[[int], bool], p_a: float, p_b: float) -> int | None:
    """The largest r, the search's limit meaning every r; None where not even r = 0 holds."""
    if not p_a > p_b:
        return None

    def holds(r: int, points: Integers) -> Booleans:
        return np.full(len(points), separates(r))

    return int(largest_group(holds, 1)[0])


def theorem_8(
    p_a: float,
    p_b: float,
    mechanism: SampledGaussian,
    orders: tuple[float, ...] = ORDERS,
) -> Reproduction[int | None]:
    """Liu et al.'s radius: Theorem 8's divergences in Theorem 10 with RDP outcomes (UNSOUND)."""

    def separates(r: int) -> bool:
        # One divergence for both directions, as the paper has it.
        worst = np.maximum(*theorem_8_divergences(mechanism, r, orders))
        return bool(
            RenyiCurves(
                orders=np.asarray(orders),
                poisoned_over_clean=worst,
                clean_over_poisoned=worst,
                refined=False,
            ).separates(p_a, p_b)
        )

    return Reproduction(
        "Liu et al. 2023, Thm 8 and 10, RDP", _radius(separates, p_a, p_b), _THEOREM_8
    )


def theorem_8_joint(
    p_a: float,
    p_b: float,
    mechanism: SampledGaussian,
    orders: tuple[float, ...] = ORDERS,
) -> Reproduction[int | None]:
    """Theorem 8's divergences in Xie's joint test, Lemma 5 (UNSOUND)."""
    order = np.asarray(orders)
    reach = renyi_reach_poisoned_over_clean(p_a, p_b, order)
    reverse_reach = renyi_reach_clean_over_poisoned(p_a, p_b, order)

    def separates(r: int) -> bool:
        worst = np.maximum(*theorem_8_divergences(mechanism, r, orders))
        return bool((worst < reach).any() or (worst < reverse_reach).any())

    return Reproduction(
        "Liu et al. 2023, Thm 8; Xie Lemma 5", _radius(separates, p_a, p_b), _THEOREM_8
    )


def theorem_8_exact(
    p_a: float, p_b: float, mechanism: SampledGaussian
) -> Reproduction[int | None]:
    """Theorem 8's rate 1 − (1 − q)^r with an exact accountant: still UNSOUND."""

    def separates(r: int) -> bool:
        joint = ExactGroups(replace(mechanism, rate=_joint_rate(mechanism, r)))
        return all(bool(joint.curves(1, d).separates(p_a, p_b)) for d in Direction)

    return Reproduction(
        "Liu et al. 2023, Thm 8, exact PLD", _radius(separates, p_a, p_b), _THEOREM_8
    )


def theorem_8_limit(
    p_a: float, p_b: float, mechanism: SampledGaussian
) -> Reproduction[tuple[float, float]]:
    """Theorem 8 as r grows without end: rate 1, D_α = αT/(2σ²), and bounds that stop moving.

    The value is (lower bound on A's score, upper bound on B's) for every r (UNSOUND).
    """
    orders = 1 + np.geomspace(1e-3, 1e4, 20_001)
    divergence = (
        orders * mechanism.count / (2 * mechanism.effective_noise_multiplier**2)
    )
    curves = RenyiCurves(
        orders=orders,
        poisoned_over_clean=divergence,
        clean_over_poisoned=divergence,
        refined=False,
    )
    value = (float(curves.lower(p_a)), float(curves.upper(p_b)))
    return Reproduction("Liu et al. 2023, Thm 8, r → ∞", value, _THEOREM_8)


def xie_theorem_2(
    p_a: npt.ArrayLike, p_b: npt.ArrayLike, epsilon: float, delta: float
) -> Floats:
    """K = (1/2ε)·log((F_A(e^ε − 1) + δ)/(F_B(e^ε − 1) + δ)): certified for every k < K (Xie eq. 6).

    The closed form of `ApproximateDP` without refinement.
    """
    growth = np.expm1(positive("epsilon", epsilon))
    p_a, p_b = probabilities("p_a", p_a), probabilities("p_b", p_b)
    with np.errstate(divide="ignore"):
        return np.asarray(
            np.log((p_a * growth + delta) / (p_b * growth + delta)) / (2 * epsilon)
        )


def xie_theorem_6_reach(
    p_a: float, p_b: float, order: float, k: int
) -> Reproduction[float]:
    """The largest single-user ε_{R,α} at which Xie's Thm 6 certifies k users, at one order.

    Sound when ε bounds both directions, but (α/2^k, 3^k ε) is group privacy for 2^k
    users.
    """
    reduced, value = order / 2.0 ** count("k", k), 0.0
    if reduced > 1:
        value = float(renyi_reach_poisoned_over_clean(p_a, p_b, reduced)) / 3.0**k
    return Reproduction("Xie et al. 2023, Thm 6", value, _DOUBLED_GROUPS)


def xie_theorem_6(
    p_a: float, p_b: float, orders: Floats, epsilons: Floats
) -> Reproduction[int | None]:
    """The largest k that Xie's Thm 6 certifies from single-user (α, ε)-RDP, over all orders."""

    def separates(k: int) -> bool:
        reaches = [
            xie_theorem_6_reach(p_a, p_b, float(order), k).value for order in orders
        ]
        return bool((epsilons <= np.array(reaches)).any())

    # At k = 60 every order of use has run out.
    value = (
        max((k for k in range(1, 61) if separates(k)), default=0) if p_a > p_b else None
    )
    return Reproduction("Xie et al. 2023, Thm 6", value, _DOUBLED_GROUPS)


def precad_theorem_2_printed(
    loss: float, bound: float, attackers: int, mu: float
) -> Reproduction[tuple[float, float]]:
    """PRECAD (6) and (7) with ε ≥ 0, as printed: (lower, upper), which may exceed the bound.

    The optimum over all real ε is ε* = −m(Φ⁻¹(L/B) + m/2) above, m(m/2 − Φ⁻¹(L/B))
    below, with m = Kμ; where it is negative, the printed restriction leaves ε = 0.
    """
    m = count("attackers", attackers, least=1) * positive("mu", mu)
    quantile = float(ndtri(loss / positive("bound", bound)))
    at_zero = delta_of_epsilon(m, 0.0)
    upper = (
        bound * float(ndtr(quantile + m))
        if -quantile >= m / 2
        else loss + bound * at_zero
    )
    lower = (
        bound * float(ndtr(quantile - m))
        if quantile <= m / 2
        else loss - bound * at_zero
    )
    return Reproduction(
        "PRECAD Thm 2 as printed",
        (lower, upper),
        "sound but loose, or vacuous: use GaussianDP",
    )


def xie_corollary_1(
    value: float, bound: float, ratio: float, epsilon: float, delta: float
) -> float:
    """Xie Cor.

    1 as printed: the real k at which Thm 3's bound on J' meets J/τ, or τJ for J < 0.

    Args:
        value: J(D), in [0, C̄] or [−C̄, 0).
        bound: C̄.
        ratio: τ ≥ 1.
        epsilon: ε > 0 of one user.
        delta: δ of one user.
    """
    score, floor = math.expm1(positive("epsilon", epsilon)) * value, bound * delta
    if value >= 0:
        return math.log((score + floor) * ratio / (score + floor * ratio)) / epsilon
    return math.log((score * ratio - floor) / (score - floor)) / epsilon
