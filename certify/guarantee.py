"""A guarantee is a pair of dominating curves per direction (docs/certificates.md).

For any score in [0, 1] (a probability, a vote, a bounded loss over its bound) whose
expectation is p on the clean data, the expectation p' after a fixed change obeys
``lower(p) ≤ p' ≤ upper(p)``. Every certificate is a statement about such curves; how
they come about (ε and δ, Rényi, Gaussian, the exact pair) is the guarantee's matter.
Those in closed form are here.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri

from precad.accounting.gdp import shifted
from precad.common.checks import count, positive
from precad.common.errors import Misconfiguration
from precad.common.proof_shape import P

Floats: TypeAlias = npt.NDArray[np.float64]
Integers: TypeAlias = npt.NDArray[np.int64]
Booleans: TypeAlias = npt.NDArray[np.bool_]

_LEAST_SCORE = 1e-12


def probabilities(field: str, values: npt.ArrayLike) -> Floats:
    """``values`` as float64.

    Raises Misconfiguration: an entry is NaN or outside [0, 1].
    """
    array = np.asarray(values, dtype=np.float64)
    if np.isnan(array).any():
        raise Misconfiguration(
            field, "NaN", "leave out points without a score, or mend the model"
        )
    if array.size and not (array.min() >= 0 and array.max() <= 1):
        wrong = float(array.min() if array.min() < 0 else array.max())
        raise Misconfiguration(
            field, wrong, "scores and probabilities lie in [0, 1]; rescale them"
        )
    return array


class Curves(ABC):
    """Bounds on a score after one fixed change of the data, vectorised over the clean score."""

    refined = False
    """Whether the same bounds on the complement event, of score 1 − p, sharpen these.
    """

    # Plain bounds; what is outside [0, 1] is cut off.
    @abstractmethod
    def _upper(self, p: Floats) -> Floats: ...
    @abstractmethod
    def _lower(self, p: Floats) -> Floats: ...

    def upper(self, p: npt.ArrayLike) -> Floats:
        """The most that a score of p can become; same shape as ``p``, in [p, 1]."""
        p = probabilities("score", p)
        bound = self._upper(p)
        if self.refined:
            # 1 − p loses the digits of a smaller p, and would say too much.
            least = np.where(p > 0, np.maximum(p, _LEAST_SCORE), 0.0)
            bound = np.minimum(bound, 1 - self._lower(1 - least))
        return np.clip(bound, 0, 1)

    def lower(self, p: npt.ArrayLike) -> Floats:
        """The least that a score of p can become; same shape as ``p``, in [0, p]."""
        p = probabilities("score", p)
        bound = self._lower(p)
        return np.clip(
            np.maximum(bound, 1 - self._upper(1 - p)) if self.refined else bound, 0, 1
        )

    def separates(self, p_a: npt.ArrayLike, p_b: npt.ArrayLike) -> Booleans:
        """Whether A stays strictly ahead of B: ``lower(p_a) > upper(p_b)`` (Liu Thm 10)."""
        return np.asarray(self.lower(p_a) > self.upper(p_b))


class Unchanged(Curves):
    """Nothing changed: p' = p."""

    def _upper(self, p: Floats) -> Floats:
        return p

    _lower = _upper


@dataclass(frozen=True, slots=True)
class Best(Curves):
    """The tightest of several sound curves, point by point."""

    members: tuple[Curves, ...]

    def _upper(self, p: Floats) -> Floats:
        return np.asarray(np.min([curve.upper(p) for curve in self.members], axis=0))

    def _lower(self, p: Floats) -> Floats:
        return np.asarray(np.max([curve.lower(p) for curve in self.members], axis=0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved(Curves):
    """Bounds after one change, moved by what comes on top of it: D → D' → D''."""

    first: Curves
    up: Callable[[Floats], Floats]
    down: Callable[[Floats], Floats]
    refined: bool = False

    def _upper(self, p: Floats) -> Floats:
        return self.up(self.first.upper(p))

    def _lower(self, p: Floats) -> Floats:
        return self.down(self.first.lower(p))


class Direction(Enum):
    """What the attacker did to the clean data."""

    ADDITIONS = "additions"
    DELETIONS = "deletions"


BOTH = (Direction.ADDITIONS, Direction.DELETIONS)
LARGEST_GROUP = 2**20
"""Groups are searched up to this size; a radius this large means "at least"."""


class Guarantee(ABC):
    """What a mechanism promises about groups of k records or clients.

    Only what derives from it is certified; a `Reproduction` of a printed, unsound bound
    does not.
    """

    @property
    @abstractmethod
    def name(self) -> str:
        """For tables and legends."""

    @property
    def asymptotic(self) -> bool:
        """Whether the curves hold only in a limit, so that what they say is no guarantee."""
        return False

    def curves(self, k: int, direction: Direction) -> Curves:
        """The curves for k additions or deletions; k = 0 gives the identity."""
        return Unchanged() if count("k", k) == 0 else self._curves(k, direction)

    @abstractmethod
    def _curves(self, k: int, direction: Direction) -> Curves: ...


@dataclass(frozen=True, slots=True)
class Derived(Guarantee):
    """What follows from another guarantee: named and asymptotic as that one is."""

    base: Guarantee

    mark: ClassVar[str] = ""
    """What the name adds to the base guarantee's."""

    @property
    def name(self) -> str:
        """The base guarantee's, marked."""
        return self.base.name + self.mark

    @property
    def asymptotic(self) -> bool:
        """As the base guarantee."""
        return self.base.asymptotic


def mixed(guarantee: Guarantee, additions: int, deletions: int) -> Curves:
    """Curves for additions and deletions together, k of each for k replaced: the best order's."""
    add = guarantee.curves(additions, Direction.ADDITIONS)
    delete = guarantee.curves(deletions, Direction.DELETIONS)
    orders = (add, delete), (delete, add)
    return Best(
        tuple(
            Moved(
                first=first,
                up=then.upper,
                down=then.lower,
            )
            for first, then in orders
        )
    )


@dataclass(frozen=True, slots=True)
class Replacements(Derived):
    """k deletions and k additions, in any direction: k enrolled clients that turned malicious."""

    mark = ", replacements"

    def _curves(self, k: int, _direction: Direction) -> Curves:
        return mixed(self.base, k, k)


@dataclass(frozen=True, slots=True)
class WithAbsent(Derived):
    """Beside k malicious clients, ``absent`` honest ones whose absence the attackers can select.

    Whoever can break attempts off chooses among natural absences (docs/soundness.md):
    so those clients count among the K of a bound, as deletions. Without attackers
    nobody chooses.
    """

    absent: int

    def __post_init__(self) -> None:
        count("absent", self.absent)

    @property
    def name(self) -> str:
        """The base guarantee's, and how many may be absent."""
        return f"{self.base.name}, {self.absent} absent"

    def _curves(self, k: int, direction: Direction) -> Curves:
        # An addition bounds no deletion; a replacement is both.
        if direction is Direction.ADDITIONS and not isinstance(self.base, Replacements):
            return mixed(self.base, k, self.absent)
        return self.base.curves(k + self.absent, direction)


@dataclass(frozen=True, slots=True)
class Redrawn(Derived):
    """Coins that both servers' operators had drawn again, as if the attackers had chosen them.

    A version whose coin was drawn 1 + r times has one of 1 + r independent cohorts.
    Whoever picks makes any event at most 1 + r times as probable as it was without a
    choice: over all versions at most 2^redraws times, and its complement too
    (docs/certificates.md).
    """

    redraws: int

    def __post_init__(self) -> None:
        count("redraws", self.redraws)

    @property
    def name(self) -> str:
        """The base guarantee's, and how many coins were drawn again."""
        return (
            f"{self.base.name}, {self.redraws} coin{'s' * (self.redraws > 1)} redrawn"
        )

    def _curves(self, k: int, direction: Direction) -> Curves:
        inner = self.base.curves(k, direction)
        times = 2.0**self.redraws
        return Moved(
            first=inner,
            up=lambda p: p * times,
            down=lambda p: 1 - (1 - p) * times,
        )


HASHES = 2.0**60
"""T: what attackers compute in a whole training, to find rows that suit them; assumed.
"""


def chance_to_pass(
    submissions: int, soundness_bits: int, proof_points: int | None
) -> float:
    """That one of Q malicious ``submissions`` passes, at most (docs/soundness.md, parts 1 and 4).

    Q·2^−k, k the bits of the range test; with proofs T·(2^−k + 4/p²) + Q·2N/(p − 2N), T
    of all hashes, N the order of the proofs' roots of unity.
    """
    if proof_points is None:
        return min(1.0, submissions * 2.0**-soundness_bits)
    of_rows = HASHES * (2.0**-soundness_bits + 4 / P**2)
    return min(1.0, of_rows + submissions * 2 * proof_points / (P - 2 * proof_points))


@dataclass(frozen=True, slots=True)
class ValidationAllowance(Derived):
    """The base curves, less the chance that validation let a bad submission through.

    k malicious clients make at most one submission an attempt each, counted or not, so
    by the union bound every bound moves by ``chance_to_pass`` of k · attempts.
    Deletions submit nothing.
    """

    attempts: int
    soundness_bits: int
    proof_points: int | None = None

    def __post_init__(self) -> None:
        count("attempts", self.attempts)
        count("soundness_bits", self.soundness_bits, least=1)

    def _curves(self, k: int, direction: Direction) -> Curves:
        inner = self.base.curves(k, direction)
        if direction is Direction.DELETIONS:
            return inner
        by = chance_to_pass(k * self.attempts, self.soundness_bits, self.proof_points)
        return Moved(
            first=inner,
            up=lambda p: p + by,
            down=lambda p: p - by,
        )


def require_guarantee(value: object) -> Guarantee:
    """``value``; raises Misconfiguration where it is a reproduction, or something else."""
    if not isinstance(value, Guarantee):
        remedy = (
            "only a Guarantee certifies (ExactGroups, RenyiGroups, ApproximateDP,"
            " GaussianDP…); a Reproduction shows what a paper printed and certifies"
            " nothing"
        )
        raise Misconfiguration("guarantee", type(value).__name__, remedy)
    return value


@dataclass(frozen=True, slots=True)
class ApproximateDP(Guarantee):
    """(ε_j, δ_j)-DP of one record or client for one or several j, in both directions.

    For groups of k: ε_k = kε and δ_k = δ(e^{kε} − 1)/(e^ε − 1) (Xie Def. 2). Where it
    isn't ``refined`` by the complement event, the curves are the papers' own.
    """

    epsilons: tuple[float, ...]
    deltas: tuple[float, ...]
    refined: bool = True

    def __post_init__(self) -> None:
        if not self.epsilons or len(self.epsilons) != len(self.deltas):
            remedy = f"give as many as deltas ({len(self.deltas)}), not 0"
            raise Misconfiguration("epsilons", len(self.epsilons), remedy)
        for epsilon, delta in zip(self.epsilons, self.deltas, strict=True):
            if not 0 <= epsilon < np.inf:
                raise Misconfiguration(
                    "epsilon", epsilon, "give a finite number of at least 0"
                )
            # 1 says nothing, and is true.
            if not 0 <= delta <= 1:
                raise Misconfiguration("delta", delta, "give a number in [0, 1)")

    @classmethod
    def single(
        cls, epsilon: float, delta: float, *, refined: bool = True
    ) -> "ApproximateDP":
        """The guarantee at one (ε, δ).

        Raises Misconfiguration: one of them bounds nothing.
        """
        if delta == 1:
            raise Misconfiguration("delta", delta, "give a number in [0, 1)")
        return cls((epsilon,), (delta,), refined)

    @property
    def name(self) -> str:
        """ADP, with its ε and δ where there is one pair."""
        if len(self.epsilons) == 1:
            return f"ADP (ε={self.epsilons[0]:.3g}, δ={self.deltas[0]:.3g})"
        return "ADP (best ε)"

    def _curves(self, k: int, _direction: Direction) -> Curves:
        """Upper e^ε p + δ, lower e^{−ε}(p − δ), best of all pairs; the same in both directions."""
        epsilons = np.asarray(self.epsilons)
        with np.errstate(over="ignore", invalid="ignore"):
            # Σ_{i<k} e^{iε}: the ratio's limit at ε = 0 is k.
            factor = np.where(
                epsilons > 0, np.expm1(k * epsilons) / np.expm1(epsilons), k
            )
            deltas = np.where(
                np.asarray(self.deltas) > 0, np.asarray(self.deltas) * factor, 0.0
            )
        # δ_k above 1 (or overflown) says nothing and is clipped; the line through 1 is
        # sound.
        deltas = np.minimum(np.nan_to_num(deltas, nan=1.0), 1.0)[:, None]
        slopes = k * epsilons[:, None]

        def up(p: Floats) -> Floats:
            with np.errstate(over="ignore", invalid="ignore"):
                lines = np.exp(slopes) * p.ravel() + deltas
            return np.asarray(
                np.where(np.isnan(lines), 1.0, lines).min(axis=0)
            ).reshape(p.shape)

        def down(p: Floats) -> Floats:
            return np.asarray(
                (np.exp(-slopes) * (p.ravel() - deltas)).max(axis=0)
            ).reshape(p.shape)

        return Moved(
            first=Unchanged(),
            up=up,
            down=down,
            refined=self.refined,
        )


@dataclass(frozen=True, slots=True)
class GaussianDP(Guarantee):
    """μ-GDP of one record or client; groups of k are kμ-GDP (Dong, Roth, Su 2022).

    μ is infinite where nothing is guaranteed, and ``asymptotic`` from the central limit
    theorem.
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
        """Upper Φ(Φ⁻¹(p) + kμ), lower Φ(Φ⁻¹(p) − kμ)."""
        by = k * self.mu
        return Moved(
            first=Unchanged(),
            up=lambda p: shifted(p, by),
            down=lambda p: shifted(p, -by),
        )

    def radius(self, p_a: npt.ArrayLike, p_b: npt.ArrayLike) -> Floats:
        """K = (Φ⁻¹(p_A) − Φ⁻¹(p_B))/(2μ): the prediction holds for every k < K.

        With μ = 1/σ this is Cohen's radius; negative where B is ahead.
        """
        gap = ndtri(probabilities("p_a", p_a)) - ndtri(probabilities("p_b", p_b))
        return np.asarray(gap / (2 * positive("mu", self.mu)))
