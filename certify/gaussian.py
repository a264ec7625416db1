"""μ-GDP as curves: Φ(Φ⁻¹(p) ± kμ), the closed form of the bound over all real ε."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri

from precad.accounting.gdp import shifted
from precad.certify.guarantee import Curves, Direction, Guarantee
from precad.certify.inputs import Floats, probabilities
from precad.common.checks import positive
from precad.common.errors import Misconfiguration


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
