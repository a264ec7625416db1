"""μ-GDP as curves: Φ(Φ⁻¹(p) ± kμ), the closed form of the bound over all real ε."""

import math
import sys
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr, ndtri

from precad.common.certify.guarantee import Curves, Direction, Guarantee, Identity
from precad.common.certify.inputs import Floats, count, positive, probabilities, rate
from precad.common.errors import Misconfiguration


@dataclass(frozen=True, slots=True)
class GaussianCurves(Curves):
    """Upper Φ(Φ⁻¹(p) + shift), lower Φ(Φ⁻¹(p) − shift)."""

    shift: float

    def upper(self, p: npt.ArrayLike) -> Floats:
        """Φ(Φ⁻¹(p) + kμ)."""
        return np.asarray(ndtr(ndtri(probabilities("score", p)) + self.shift))

    def lower(self, p: npt.ArrayLike) -> Floats:
        """Φ(Φ⁻¹(p) − kμ)."""
        return np.asarray(ndtr(ndtri(probabilities("score", p)) - self.shift))


@dataclass(frozen=True, slots=True)
class GaussianDP(Guarantee):
    """μ-GDP of one record or client; groups of k are kμ-GDP (Dong, Roth, Su 2022).

    Attributes:
        mu: at least 0, finite.
        asymptotic_limit: μ comes from the central limit theorem, so nothing is guaranteed.
    """

    mu: float
    asymptotic_limit: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.mu < math.inf:
            raise Misconfiguration("mu", self.mu, "give a finite number of at least 0")

    @property
    def name(self) -> str:
        """GDP, and whether it is the central limit's."""
        return "GDP-CLT (asymptotic)" if self.asymptotic_limit else "GDP"

    @property
    def asymptotic(self) -> bool:
        """Whether μ comes from the central limit theorem."""
        return self.asymptotic_limit

    def curves(self, k: int, direction: Direction) -> Curves:
        """The same in both directions."""
        del direction
        return (
            Identity()
            if count("k", k) == 0
            else GaussianCurves(min(k * self.mu, sys.float_info.max))
        )

    def radius(self, p_a: npt.ArrayLike, p_b: npt.ArrayLike) -> Floats:
        """K = (Φ⁻¹(p_A) − Φ⁻¹(p_B))/(2μ): the prediction holds for every k < K.

        With μ = 1/σ this is Cohen's radius; negative where B is ahead.
        """
        gap = ndtri(probabilities("p_a", p_a)) - ndtri(probabilities("p_b", p_b))
        return np.asarray(gap / (2 * positive("mu", self.mu)))


def gdp_delta(epsilon: npt.ArrayLike, mu: float) -> Floats:
    """δ(ε) = Φ(−ε/μ + μ/2) − e^ε Φ(−ε/μ − μ/2) for any real ε (PRECAD eq. 8 with Kμ for μ)."""
    positive("mu", mu)
    epsilon = np.asarray(epsilon, dtype=np.float64)
    tail = ndtr(-epsilon / mu - mu / 2)
    # e^ε meets a vanishing tail where ε is large: 0 · ∞ is 0 there.
    with np.errstate(over="ignore", invalid="ignore"):
        product = np.where(tail > 0, np.exp(epsilon) * tail, 0.0)
    return np.asarray(np.clip(ndtr(-epsilon / mu + mu / 2) - product, 0, 1))


def clt_mu(sampling_rate: float, noise_multiplier: float, rounds: int) -> float:
    """μ = q·sqrt(T(e^{1/σ²} − 1)) of the central limit theorem (PRECAD eq. 9, σ̃ for σ).

    Saturates at the largest float instead of overflowing.
    """
    rate("sampling_rate", sampling_rate)
    count("rounds", rounds)
    exponent = positive("noise_multiplier", noise_multiplier) ** -2
    if exponent > math.log(sys.float_info.max):
        return 0.0 if sampling_rate == 0 or rounds == 0 else sys.float_info.max
    return min(sampling_rate * math.sqrt(rounds * math.expm1(exponent)), sys.float_info.max)
