"""A guarantee is a pair of dominating curves per direction (docs/certificates.md).

For any score in [0, 1] (a probability, a vote, a bounded loss over its bound) whose
expectation is p on the clean data, the expectation p' after a fixed change obeys
``lower(p) ≤ p' ≤ upper(p)``. Every certificate is a statement about such curves; how
they come about (ε and δ, Rényi, Gaussian, the exact pair) is the guarantee's matter.
Those in closed form are here.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from enum import Enum
from typing import ClassVar

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri

from precad.accounting import shifted
from precad.common import (
    Booleans,
    Floats,
    Misconfiguration,
    P,
    frozen_dataclass,
    frozen_kw_only_dataclass,
)
from precad.common.checks import count, positive

_LEAST_SCORE = 1e-12
"""Scores below this, but not 0, are taken as this where 1 − p is needed exactly."""


def probabilities(field: str, values: npt.ArrayLike) -> Floats:
    """Return ``values`` as float64, of the same shape.

    Raises Misconfiguration naming ``field``: an entry is NaN or outside [0, 1].
    """
    array = np.asarray(values, np.float64)
    # A NaN is the least and the largest of whatever has one.
    if array.size and not (array.min() >= 0 and array.max() <= 1):
        wrong = float(array.min() if array.min() < 0 else array.max())
        raise Misconfiguration(
            field, wrong, "must lie in [0, 1]: rescale it, or leave it out"
        )
    return array


class Curves(ABC):
    """Bounds on a score after one fixed change of the data.

    They are functions of the clean score, which take scores of any shape and return
    bounds of the same shape.
    """

    refined = False
    """Whether the same bounds on the complement event, of score 1 − p, sharpen these.
    """

    @abstractmethod
    def _upper(self, p: Floats) -> Floats:
        """Return the plain upper bound; what is outside [0, 1] is cut off later."""

    @abstractmethod
    def _lower(self, p: Floats) -> Floats:
        """Return the plain lower bound; what is outside [0, 1] is cut off later."""

    def upper(self, p: npt.ArrayLike) -> Floats:
        """Return the most that a score of p can become, in [p, 1].

        Raises Misconfiguration: a score is NaN or outside [0, 1].
        """
        p = probabilities("score", p)
        bound = self._upper(p)
        if self.refined:
            # 1 − p loses the digits of a smaller p, and would say too much.
            least = np.where(p > 0, np.maximum(p, _LEAST_SCORE), 0.0)
            bound = np.minimum(bound, 1 - self._lower(1 - least))
        return np.clip(bound, 0, 1)

    def lower(self, p: npt.ArrayLike) -> Floats:
        """Return the least that a score of p can become, in [0, p].

        Raises Misconfiguration: a score is NaN or outside [0, 1].
        """
        p = probabilities("score", p)
        bound = self._lower(p)
        if self.refined:
            bound = np.maximum(bound, 1 - self._upper(1 - p))
        return np.clip(bound, 0, 1)

    def separates(self, p_a: npt.ArrayLike, p_b: npt.ArrayLike) -> Booleans:
        """Return whether label A stays strictly ahead of B at each point.

        That is ``lower(p_a) > upper(p_b)`` (Liu Theorem 10). Raises Misconfiguration: a
        score is NaN or outside [0, 1].
        """
        return np.asarray(self.lower(p_a) > self.upper(p_b))


class Unchanged(Curves):
    """Curves where nothing changed: p' = p."""

    def _upper(self, p: Floats) -> Floats:
        return p

    _lower = _upper


@frozen_dataclass
class Best(Curves):
    """The tightest of several sound curves, point by point."""

    members: tuple[Curves, ...]
    """The curves, at least one."""

    def _upper(self, p: Floats) -> Floats:
        return np.asarray(np.min([curve.upper(p) for curve in self.members], axis=0))

    def _lower(self, p: Floats) -> Floats:
        return np.asarray(np.max([curve.lower(p) for curve in self.members], axis=0))


@frozen_kw_only_dataclass
class Moved(Curves):
    """Bounds after one change, moved by what comes on top of it: D → D' → D''."""

    first: Curves = Unchanged()
    """The bounds after the first change; by itself none."""
    up: Callable[[Floats], Floats]
    """The most that a score can become by the second change."""
    down: Callable[[Floats], Floats]
    """The least that a score can become by the second change."""
    refined: bool = False

    def _upper(self, p: Floats) -> Floats:
        return self.up(self.first.upper(p))

    def _lower(self, p: Floats) -> Floats:
        return self.down(self.first.lower(p))


class Direction(Enum):
    """What the attacker did to the clean data."""

    ADDITIONS = "additions"
    """Records or clients were added."""
    DELETIONS = "deletions"
    """Records or clients were taken away."""


BOTH = (Direction.ADDITIONS, Direction.DELETIONS)
"""Both directions."""
LARGEST_GROUP = 2**20
"""Groups are searched up to this size; a radius this large means "at least"."""


class Guarantee(ABC):
    """What a mechanism promises about groups of k records or clients.

    Only a subclass of this is certified; a `Reproduction` of a printed, unsound bound
    isn't one.
    """

    @property
    @abstractmethod
    def name(self) -> str:
        """Return a short name for tables and legends."""

    @property
    def asymptotic(self) -> bool:
        """Return whether the curves hold only in a limit, and so guarantee nothing."""
        return False

    def curves(self, k: int, direction: Direction) -> Curves:
        """Return the curves for k additions or deletions; k = 0 gives the identity.

        Raises Misconfiguration: k is negative or not a whole number.
        """
        return Unchanged() if count("k", k) == 0 else self._curves(k, direction)

    @abstractmethod
    def _curves(self, k: int, direction: Direction) -> Curves:
        """Return the curves for k ≥ 1."""


@frozen_dataclass
class Derived(Guarantee):
    """What follows from another guarantee: named and asymptotic as that one is."""

    base: Guarantee
    """The other guarantee."""

    mark: ClassVar[str] = ""
    """What the name adds to the base guarantee's."""

    @property
    def name(self) -> str:
        """Return the base guarantee's name, marked."""
        return self.base.name + self.mark

    @property
    def asymptotic(self) -> bool:
        """Return whether the base guarantee is asymptotic."""
        return self.base.asymptotic


def mixed(guarantee: Guarantee, additions: int, deletions: int) -> Curves:
    """Return curves for additions and deletions together, the best of both orders.

    k records or clients that are replaced are k of each.
    """
    add = guarantee.curves(additions, Direction.ADDITIONS)
    delete = guarantee.curves(deletions, Direction.DELETIONS)
    orders = ((add, delete), (delete, add))
    return Best(
        tuple(
            Moved(first=first, up=second.upper, down=second.lower)
            for first, second in orders
        )
    )


@frozen_dataclass
class Replacements(Derived):
    """k deletions and k additions, in any direction: k clients turned malicious.

    Those are enrolled clients.
    """

    mark = ", replacements"

    def _curves(self, k: int, _direction: Direction) -> Curves:
        return mixed(self.base, additions=k, deletions=k)


@frozen_dataclass
class WithAbsent(Derived):
    """Beside k malicious clients, honest ones whose absence the attackers can select.

    Whoever can break attempts off chooses among natural absences (docs/soundness.md):
    so those clients count among the K of a bound, as deletions. Without attackers
    nobody chooses. Raises Misconfiguration: ``absent`` isn't a count.
    """

    absent: int
    """How many honest clients may be absent."""

    def __post_init__(self) -> None:
        count("absent", self.absent)

    @property
    def name(self) -> str:
        """Return the base guarantee's name, and how many may be absent."""
        return f"{self.base.name}, {self.absent} absent"

    def _curves(self, k: int, direction: Direction) -> Curves:
        # An addition bounds no deletion; a replacement is both.
        if direction is Direction.ADDITIONS and not isinstance(self.base, Replacements):
            return mixed(self.base, additions=k, deletions=self.absent)
        return self.base.curves(k + self.absent, direction)


@frozen_dataclass
class Redrawn(Derived):
    """Coins that operators had drawn again, as if the attackers had chosen them.

    Both servers' operators can have a version's coin drawn again. A version whose coin
    was drawn 1 + r times has one of 1 + r independent cohorts. Whoever picks makes any
    event at most 1 + r times as probable as it was without a choice: over all versions
    at most 2^redraws times, and its complement too (docs/certificates.md). Raises
    Misconfiguration: ``redraws`` isn't a count.
    """

    redraws: int
    """How many coins were drawn again in all versions together."""

    def __post_init__(self) -> None:
        count("redraws", self.redraws)

    @property
    def name(self) -> str:
        """Return the base guarantee's name, and how many coins were drawn again."""
        coins = "coins" if self.redraws > 1 else "coin"
        return f"{self.base.name}, {self.redraws} {coins} redrawn"

    def _curves(self, k: int, direction: Direction) -> Curves:
        times = 2.0**self.redraws
        return Moved(
            first=self.base.curves(k, direction),
            up=lambda p: p * times,
            down=lambda p: 1 - (1 - p) * times,
        )


HASHES = 2.0**60
"""T: what attackers compute in a whole training, to find rows that suit them; assumed.
"""


def chance_to_pass(
    submissions: int, soundness_bits: int, proof_points: int | None
) -> float:
    """Return a bound on the chance that one of Q malicious ``submissions`` passes.

    Q·2^−k, k the bits of the range test; with proofs T·(2^−k + 4/p²) + Q·2N/(p − 2N), T
    of all hashes, N = ``proof_points`` the order of the proofs' roots of unity
    (docs/soundness.md, parts 1 and 4). At most 1.
    """
    if proof_points is None:
        return min(1.0, submissions * 2.0**-soundness_bits)
    of_rows = HASHES * (2.0**-soundness_bits + 4 / P**2)
    of_points = submissions * 2 * proof_points / (P - 2 * proof_points)
    return min(1.0, of_rows + of_points)


@frozen_dataclass
class ValidationAllowance(Derived):
    """The base curves, less the chance that validation let a bad submission through.

    k malicious clients make at most one submission an attempt each, counted or not, so
    by the union bound every bound moves by ``chance_to_pass`` of k · attempts.
    Deletions submit nothing. Raises Misconfiguration: a field isn't such a count.
    """

    attempts: int
    """Attempts of the whole training."""
    soundness_bits: int
    """k of the range test, at least 1."""
    proof_points: int | None = None
    """N of the proofs; None where norms aren't proved."""

    def __post_init__(self) -> None:
        count("attempts", self.attempts)
        count("soundness_bits", self.soundness_bits, least=1)

    def _curves(self, k: int, direction: Direction) -> Curves:
        base = self.base.curves(k, direction)
        if direction is Direction.DELETIONS:
            return base
        chance = chance_to_pass(
            k * self.attempts, self.soundness_bits, self.proof_points
        )
        return Moved(
            first=base,
            up=lambda p: p + chance,
            down=lambda p: p - chance,
        )


def require_guarantee(value: object) -> None:
    """Check that ``value`` is a guarantee.

    Raises Misconfiguration: it is a reproduction, or something else.
    """
    if not isinstance(value, Guarantee):
        raise Misconfiguration(
            "guarantee",
            type(value).__name__,
            "only a Guarantee certifies (ExactGroups, RenyiGroups, ApproximateDP,"
            " GaussianDP…); a Reproduction shows what a paper printed and certifies"
            " nothing",
        )


@frozen_dataclass
class ApproximateDP(Guarantee):
    """(ε_j, δ_j)-DP of one record or client for one or several j, in both directions.

    For groups of k: ε_k = kε and δ_k = δ(e^{kε} − 1)/(e^ε − 1) (Xie Definition 2).
    Where it isn't ``refined`` by the complement event, the curves are the papers' own.
    Raises Misconfiguration: no pair, not as many ε as δ, or one out of its range.
    """

    epsilons: tuple[float, ...]
    """ε_j, finite and at least 0."""
    deltas: tuple[float, ...]
    """δ_j, in [0, 1]."""
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
        """Return the guarantee at one (ε, δ).

        Raises Misconfiguration: one of them bounds nothing.
        """
        if delta == 1:
            raise Misconfiguration("delta", delta, "give a number in [0, 1)")
        return cls((epsilon,), (delta,), refined)

    @property
    def name(self) -> str:
        """Return ADP, with its ε and δ where there is one pair."""
        if len(self.epsilons) == 1:
            return f"ADP (ε={self.epsilons[0]:.3g}, δ={self.deltas[0]:.3g})"
        return "ADP (best ε)"

    def _curves(self, k: int, _direction: Direction) -> Curves:
        """Return the best of all pairs' curves, the same in both directions.

        A pair's are e^ε p + δ above and e^{−ε}(p − δ) below.
        """
        epsilons = np.asarray(self.epsilons)
        deltas = np.asarray(self.deltas)
        with np.errstate(over="ignore", invalid="ignore"):
            # Σ_{i<k} e^{iε}: the ratio's limit at ε = 0 is k.
            ratio = np.expm1(k * epsilons) / np.expm1(epsilons)
            factor = np.where(epsilons > 0, ratio, k)
            deltas = np.where(deltas > 0, deltas * factor, 0.0)
        # δ_k above 1 (or overflown) says nothing and is clipped; the line through 1 is
        # sound.
        deltas = np.minimum(np.nan_to_num(deltas, nan=1.0), 1.0)[:, None]
        slopes = k * epsilons[:, None]

        def up(p: Floats) -> Floats:
            with np.errstate(over="ignore", invalid="ignore"):
                lines = np.exp(slopes) * p.ravel() + deltas
            best: Floats = np.where(np.isnan(lines), 1.0, lines).min(axis=0)
            return best.reshape(p.shape)

        def down(p: Floats) -> Floats:
            best: Floats = (np.exp(-slopes) * (p.ravel() - deltas)).max(axis=0)
            return best.reshape(p.shape)

        return Moved(up=up, down=down, refined=self.refined)


@frozen_dataclass
class GaussianDP(Guarantee):
    """μ-GDP of one record or client; groups of k are kμ-GDP (Dong, Roth, Su 2022).

    Raises Misconfiguration: μ is negative or NaN.
    """

    mu: float
    """μ; infinite where nothing is guaranteed."""
    asymptotic: bool = False
    """Whether μ is from the central limit theorem."""

    def __post_init__(self) -> None:
        if not self.mu >= 0:
            raise Misconfiguration("mu", self.mu, "give a number of at least 0")

    @property
    def name(self) -> str:
        """Return GDP, and whether it is the central limit's."""
        return "GDP-CLT (asymptotic)" if self.asymptotic else "GDP"

    def _curves(self, k: int, _direction: Direction) -> Curves:
        """Return Φ(Φ⁻¹(p) + kμ) above and Φ(Φ⁻¹(p) − kμ) below."""
        group_mu = k * self.mu
        return Moved(
            up=lambda p: shifted(p, group_mu),
            down=lambda p: shifted(p, -group_mu),
        )

    def radius(self, p_a: npt.ArrayLike, p_b: npt.ArrayLike) -> Floats:
        """Return K = (Φ⁻¹(p_A) − Φ⁻¹(p_B))/(2μ): the prediction holds for every k < K.

        With μ = 1/σ this is Cohen's radius; negative where B is ahead. Raises
        Misconfiguration: a score is outside [0, 1], or μ isn't finite and above 0.
        """
        gap = ndtri(probabilities("p_a", p_a)) - ndtri(probabilities("p_b", p_b))
        return np.asarray(gap / (2 * positive("mu", self.mu)))
