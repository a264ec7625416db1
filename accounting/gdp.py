"""Gaussian differential privacy in closed form, and its central limit theorem.

μ-GDP is exact for the Gaussian mechanism. For a sampled one the μ below holds only in a
limit (many steps, small rates): it is *asymptotic*, not a guarantee, and usually
reports too small an ε (docs/privacy-accounting.md).
"""

import math

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr, ndtri

from precad.accounting import Accountant, AccountantName, SampledGaussian
from precad.common import Floats, Misconfiguration, checks

_LARGE_MU = 1e6
"""Above this −ε/μ + μ/2 loses its digits; the first term alone decides ε, to one part
in 10^6."""
_LARGEST_EXPONENT = 700.0
"""e to the power of more is beyond floating point."""


def clt_mu(rate: float, noise_multiplier: float, count: int) -> float:
    """Return μ = rate·√(count·(e^{1/σ²} − 1)) of so many sampled steps; may be ∞.

    Bu et al. 2020, PRECAD Lemma 5. Asymptotic.

    Args:
        rate: Probability with which a step draws a record, in [0, 1].
        noise_multiplier: σ, over the sensitivity.
        count: How many steps there are.
    """
    exponent = noise_multiplier**-2
    if rate == 0 or count == 0:
        return 0.0
    if exponent > _LARGEST_EXPONENT:
        return math.inf
    return rate * math.sqrt(count * math.expm1(exponent))


def delta_of_epsilon(mu: float, epsilon: float) -> float:
    """Return δ(ε) = Φ(−ε/μ + μ/2) − e^ε·Φ(−ε/μ − μ/2), which μ-GDP implies.

    Dong et al. 2022, PRECAD eq. (3). Holds for every real ε. The second term is taken
    in logarithms, so that no ε overflows.
    """
    if mu == 0:
        return max(0.0, -math.expm1(epsilon))
    if math.isinf(mu):
        return 1.0
    second = math.exp(epsilon + float(log_ndtr(-epsilon / mu - mu / 2)))
    return max(0.0, float(ndtr(-epsilon / mu + mu / 2)) - second)


def epsilon_of_delta(mu: float, delta: float) -> float:
    """Return the least ε ≥ 0 with δ(ε) ≤ ``delta``, in (0, 1), under μ-GDP, μ ≥ 0."""
    if math.isinf(mu):
        return math.inf
    if delta_of_epsilon(mu, 0.0) <= delta:
        return 0.0
    # Φ(−ε/μ + μ/2) ≤ δ alone suffices, so the root lies below this.
    high = mu * (mu / 2 - float(ndtri(delta)))
    if mu > _LARGE_MU:
        return high

    def excess(epsilon: float) -> float:
        return delta_of_epsilon(mu, epsilon) - delta

    return float(brentq(excess, 0.0, high, xtol=1e-13))


def shifted(p: npt.ArrayLike, by: float) -> Floats:
    """Return Φ(Φ⁻¹(p) + ``by``), the most that a score of p becomes under Kμ-GDP.

    That is for ``by`` = Kμ; for −Kμ it is the least. Groups of K have Kμ (Dong et al.
    2022, PRECAD Lemma 3). With a loss over its bound it is PRECAD Theorem 2 in closed
    form, B·Φ(Φ⁻¹(L/B) ± Kμ). The paper takes the infimum over ε ≥ 0 only; over all real
    ε it is this, never above 1 nor below 0.

    Args:
        p: Scores in [0, 1], of any shape.
        by: Kμ or −Kμ; infinite where nothing is guaranteed.

    Returns:
        Scores in [0, 1], float64, in the shape of ``p``.
    """
    p = np.asarray(p, np.float64)
    # What never happens, or always, stays so even at an infinite shift (∞ − ∞).
    with np.errstate(invalid="ignore"):
        return np.where((p == 0) | (p == 1), p, ndtr(ndtri(p) + by))


def tolerated_group_mu(loss: float, tolerated: float, bound: float) -> float:
    """Return the largest Kμ that keeps PRECAD Theorem 2 at or below ``tolerated``.

    Raises Misconfiguration: 0 < loss < tolerated < bound doesn't hold.

    Args:
        loss: The expected loss without attackers.
        tolerated: The expected loss that attackers may cause.
        bound: B, the largest value that a loss takes.
    """
    checks.positive("bound", bound, "the largest value that the loss takes")
    if not 0 < loss < bound:
        raise Misconfiguration(
            "loss", loss, f"give the loss without attackers, in (0, {bound})"
        )
    if not loss < tolerated < bound:
        raise Misconfiguration(
            "tolerated_loss", tolerated, f"give a loss above {loss} and below {bound}"
        )
    return float(ndtri(tolerated / bound) - ndtri(loss / bound))


def largest_clip_ratio(mu: float, client_rate: float, rounds: int) -> float:
    """Return the C/(R·σ) at which PRECAD Lemma 8's central limit gives ``mu``.

    √(2·ln(1 + μ²/(q²T))), PRECAD eq. (9). Raises Misconfiguration: a parameter is out
    of its range.

    Args:
        mu: The wanted client-level μ, above 0.
        client_rate: q, the share of clients in a round, above 0.
        rounds: T, at least 1.
    """
    checks.positive("client_rate", client_rate, "the share of clients in a round")
    checks.count("rounds", rounds, 1)
    return math.sqrt(2 * math.log1p((mu / client_rate) ** 2 / rounds))


class GdpCltAccountant(Accountant):
    """Accountant by the central limit theorem: asymptotic, not a guarantee.

    It adds up μ² = participation·count·rate²·(e^{1/σ²} − 1) over events: that of the
    rounds that run. m owners have m times the μ, as groups do (Dong et al. 2022, Lemma
    3): their coins are taken for one, which says more than coins of their own would.
    """

    name = AccountantName.GDP_CLT

    def __init__(self) -> None:
        self.mu = 0.0
        """μ of everything composed; infinite where it leaves floating point."""

    def _add(self, event: SampledGaussian) -> None:
        mu = clt_mu(event.rate, event.effective_noise_multiplier, event.count)
        of_all = event.owners * math.sqrt(event.participation) * mu
        # Dong et al. 2022, PRECAD Lemma 2.
        self.mu = math.hypot(self.mu, of_all)

    def _epsilon(self, delta: float) -> float:
        return epsilon_of_delta(self.mu, delta)

    def _delta(self, epsilon: float) -> float:
        return delta_of_epsilon(self.mu, epsilon)
