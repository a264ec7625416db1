"""(ε, δ)-DP as curves, with group privacy (Xie Thm 1 to 3, Liu eq. 7, Ma et al.)."""

from dataclasses import dataclass

import numpy as np

from precad.certify.guarantee import Curves, Direction, Guarantee
from precad.certify.inputs import Floats
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
