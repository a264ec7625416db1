"""PRECAD's Theorem 2 in closed form, and which parameters let it say anything."""

import math

import numpy.typing as npt
from scipy.special import ndtri

from precad.common.account.gdp import clt_mu
from precad.common.certify.gaussian import GaussianDP
from precad.common.certify.guarantee import Direction
from precad.common.certify.inefficacy import ScoreBounds, attack_bounds
from precad.common.certify.inputs import count, positive, rate
from precad.common.errors import Misconfiguration


def theorem_2(loss: npt.ArrayLike, bound: float, attackers: int, mu: float) -> ScoreBounds:
    """B·Φ(Φ⁻¹(L/B) ± Kμ): PRECAD (6), (7) with the infimum over all real ε, in closed form.

    The paper restricts ε to at least 0, which is loose or vacuous for large L (L = 0.9, B = 1,
    Kμ = 0.3 gives 1.019; here 0.943).
    """
    return attack_bounds(loss, bound, GaussianDP(mu), attackers, (Direction.ADDITIONS,))


def client_noise_multiplier(
    noise_multiplier: float, record_clip: float, client_clip: float
) -> float:
    """σ̃ = √2·σ·R/C of PRECAD (9); use R' = R + √d·2^−f for R (privacy.md)."""
    return (
        math.sqrt(2)
        * positive("noise_multiplier", noise_multiplier)
        * positive("record_clip", record_clip)
        / positive("client_clip", client_clip)
    )


def client_mu(
    noise_multiplier: float, record_clip: float, client_clip: float, client_rate: float, rounds: int
) -> float:
    """μ of PRECAD (9), by the central limit theorem: asymptotic."""
    return clt_mu(
        client_rate, client_noise_multiplier(noise_multiplier, record_clip, client_clip), rounds
    )


def largest_clip_ratio(
    loss: float,
    bound: float,
    target: float,
    *,
    attackers: int,
    client_rate: float,
    rounds: int,
) -> float:
    """The largest C/(Rσ) for which K attackers leave the loss at most ``target`` (by the CLT).

    Inverts (6) and (9): Kμ = Φ⁻¹(target/B) − Φ⁻¹(L/B), C/(Rσ) = sqrt(2 ln(1 + μ²/(q²T))).

    Raises:
        Misconfiguration: the target isn't strictly between the loss and the bound.
    """
    positive("bound", bound)
    if not 0 < loss < target < bound:
        raise Misconfiguration("target", target, f"give a loss between L = {loss} and B = {bound}")
    gap = float(ndtri(target / bound) - ndtri(loss / bound))
    mu = gap / count("attackers", attackers, least=1)
    per_round = mu**2 / (rate("client_rate", client_rate) ** 2 * count("rounds", rounds, least=1))
    return math.sqrt(2 * math.log1p(per_round))
