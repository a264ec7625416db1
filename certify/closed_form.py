"""(ε, δ)-DP and μ-GDP as curves in closed form, with group privacy.

(ε, δ): Xie Thm 1 to 3, Liu eq. 7, Ma et al. μ-GDP: Φ(Φ⁻¹(p) ± kμ), the bound over all real ε.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri

from precad.accounting.gdp import shifted
from precad.certify.curves import Curves, Floats, probabilities
from precad.certify.guarantee import Direction, Guarantee
from precad.common.checks import positive
from precad.common.errors import Misconfiguration


@dataclass(frozen=True, slots=True)
class ApproximateDP(Guarantee):
    """(ε_j, δ_j)-DP of one record or client for one or several j, in both directions.

    For groups of k: ε_k = kε and δ_k = δ(e^{kε} − 1)/(e^ε − 1) (Xie Def. 2).

    Attributes:
        epsilons: [j], each at least 0.
        deltas: [j], each in [0, 1].
        refined: also apply the same inequality to the complement event, which is sound and tighter
            near 1; without it the curves are the papers' own.
    """

    epsilons: tuple[float, ...]
    deltas: tuple[float, ...]
    refined: bool = True

    def __post_init__(self) -> None:
        if not self.epsilons or len(self.epsilons) != len(self.deltas):
            raise Misconfiguration(
                "epsilons",
                len(self.epsilons),
                f"give as many as deltas ({len(self.deltas)}), not 0",
            )
        for epsilon, delta in zip(self.epsilons, self.deltas, strict=True):
            if not 0 <= epsilon < np.inf:
                raise Misconfiguration("epsilon", epsilon, "give a finite number of at least 0")
            if not 0 <= delta < 1:
                raise Misconfiguration("delta", delta, "give a number in [0, 1)")

    @classmethod
    def single(cls, epsilon: float, delta: float, *, refined: bool = True) -> "ApproximateDP":
        """The guarantee at one (ε, δ)."""
        return cls((epsilon,), (delta,), refined)

    @property
    def name(self) -> str:
        """ADP, with its ε and δ where there is one pair."""
        if len(self.epsilons) == 1:
            return f"ADP (ε={self.epsilons[0]:.3g}, δ={self.deltas[0]:.3g})"
        return "ADP (best ε)"

    def _curves(self, k: int, _direction: Direction) -> Curves:
        """Group privacy's curves; (ε, δ)-DP is the same in both directions."""
        epsilons = np.asarray(self.epsilons)
        with np.errstate(over="ignore", invalid="ignore"):
            # Σ_{i<k} e^{iε}: the ratio's limit at ε = 0 is k.
            factor = np.where(epsilons > 0, np.expm1(k * epsilons) / np.expm1(epsilons), k)
            deltas = np.where(np.asarray(self.deltas) > 0, np.asarray(self.deltas) * factor, 0.0)
        # δ_k above 1 (or overflown) says nothing and is clipped; the line through 1 is sound.
        return ApproximateCurves(
            k * epsilons, np.minimum(np.nan_to_num(deltas, nan=1.0), 1.0), self.refined
        )


@dataclass(frozen=True, slots=True)
class ApproximateCurves(Curves):
    """The table's row: upper e^ε p + δ, lower e^{−ε}(p − δ), best over the pairs given.

    Refined, also upper 1 − e^{−ε}(1 − p − δ) and lower 1 − e^ε(1 − p) − δ.
    """

    epsilons: Floats
    deltas: Floats
    refined: bool

    def _upper(self, p: Floats) -> Floats:
        with np.errstate(over="ignore", invalid="ignore"):
            lines = np.exp(self.epsilons[:, None]) * p.ravel() + self.deltas[:, None]
        return np.asarray(np.nanmin(np.where(np.isnan(lines), 1.0, lines), axis=0)).reshape(p.shape)

    def _lower(self, p: Floats) -> Floats:
        lines = np.exp(-self.epsilons[:, None]) * (p.ravel() - self.deltas[:, None])
        return np.asarray(lines.max(axis=0)).reshape(p.shape)


@dataclass(frozen=True, slots=True)
class GaussianCurves(Curves):
    """Upper Φ(Φ⁻¹(p) + shift), lower Φ(Φ⁻¹(p) − shift)."""

    shift: float

    def _upper(self, p: Floats) -> Floats:
        return shifted(p, self.shift)

    def _lower(self, p: Floats) -> Floats:
        return shifted(p, -self.shift)


@dataclass(frozen=True, slots=True)
class GaussianDP(Guarantee):
    """μ-GDP of one record or client; groups of k are kμ-GDP (Dong, Roth, Su 2022).

    Attributes:
        mu: at least 0; infinite where nothing is guaranteed.
        asymptotic: μ comes from the central limit theorem, so nothing is guaranteed.
    """

    mu: float
    asymptotic: bool = False

    def __post_init__(self) -> None:
        if not self.mu >= 0:
            raise Misconfiguration("mu", self.mu, "give a number of at least 0")

    @property
    def name(self) -> str:
        """GDP, and whether it is the central limit's."""
        return "GDP-CLT (asymptotic)" if self.asymptotic else "GDP"

    def _curves(self, k: int, _direction: Direction) -> Curves:
        return GaussianCurves(k * self.mu)

    def radius(self, p_a: npt.ArrayLike, p_b: npt.ArrayLike) -> Floats:
        """K = (Φ⁻¹(p_A) − Φ⁻¹(p_B))/(2μ): the prediction holds for every k < K.

        With μ = 1/σ this is Cohen's radius; negative where B is ahead.
        """
        gap = ndtri(probabilities("p_a", p_a)) - ndtri(probabilities("p_b", p_b))
        return np.asarray(gap / (2 * positive("mu", self.mu)))
