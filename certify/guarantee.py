"""A guarantee is a pair of dominating curves per direction (docs/certificates.md).

Every certificate of this package is a statement about such curves; how they come about (ε and δ,
Rényi, Gaussian, the exact pair) is the guarantee's matter.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar

from precad.certify.curves import Best, Curves, Floats, Identity, InTurn
from precad.common.checks import count
from precad.common.errors import Misconfiguration


class Direction(Enum):
    """What the attacker did to the clean data."""

    ADDITIONS = "additions"
    DELETIONS = "deletions"


BOTH = (Direction.ADDITIONS, Direction.DELETIONS)


class Guarantee(ABC):
    """What a mechanism promises about groups of k records or clients.

    Only what derives from this class can be turned into a certificate; a `Reproduction` of a
    printed but unsound bound does not.
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
        return Identity() if count("k", k) == 0 else self._curves(k, direction)

    @abstractmethod
    def _curves(self, k: int, direction: Direction) -> Curves:
        """The curves for k ≥ 1 additions or deletions."""


@dataclass(frozen=True, slots=True)
class Derived(Guarantee):
    """What follows from another guarantee: named and asymptotic as that one is."""

    base: Guarantee

    mark: ClassVar[str] = ""
    """What the name adds to the base guarantee's."""

    @property
    def name(self) -> str:
        """The base guarantee's name, marked."""
        return self.base.name + self.mark

    @property
    def asymptotic(self) -> bool:
        """As the base guarantee."""
        return self.base.asymptotic


def mixed(guarantee: Guarantee, additions: int, deletions: int) -> Curves:
    """Curves for ``additions`` and ``deletions`` together; either order is sound, so the best.

    k replaced records or clients are k of each.
    """
    add = guarantee.curves(additions, Direction.ADDITIONS)
    delete = guarantee.curves(deletions, Direction.DELETIONS)
    return Best((InTurn(add, delete), InTurn(delete, add)))


@dataclass(frozen=True, slots=True)
class Replacements(Derived):
    """k records or clients replaced: k deletions and k additions, whatever the direction asked.

    This is what k enrolled clients turned malicious do to a run in which they were honest.
    """

    mark = ", replacements"

    def _curves(self, k: int, _direction: Direction) -> Curves:
        return mixed(self.base, k, k)


@dataclass(frozen=True, slots=True)
class WithAbsent(Derived):
    """Beside k malicious clients, ``absent`` honest ones whose absence the attackers can select.

    Whoever can break attempts off chooses among natural absences (docs/soundness.md): so those
    clients count among the K of a bound, as deletions. Without attackers nobody chooses.
    """

    absent: int

    def __post_init__(self) -> None:
        count("absent", self.absent)

    @property
    def name(self) -> str:
        """The base guarantee's name, and how many may be absent."""
        return f"{self.base.name}, {self.absent} absent" if self.absent else self.base.name

    def _curves(self, k: int, direction: Direction) -> Curves:
        # An addition bounds no deletion; a replacement is both.
        if direction is Direction.ADDITIONS and not isinstance(self.base, Replacements):
            return mixed(self.base, k, self.absent)
        return self.base.curves(k + self.absent, direction)


@dataclass(frozen=True, slots=True)
class Redrawn(Derived):
    """Coins that both servers' operators had drawn again, as if the attackers had chosen them.

    A version whose coin was drawn 1 + r times has one of 1 + r independent cohorts. Whoever picks
    makes any event at most 1 + r times as probable as it was without a choice: over all versions
    at most 2^redraws times, and its complement too (docs/certificates.md).
    """

    redraws: int

    def __post_init__(self) -> None:
        count("redraws", self.redraws)

    @property
    def name(self) -> str:
        """The base guarantee's name, and how many coins were drawn again."""
        if not self.redraws:
            return self.base.name
        return f"{self.base.name}, {self.redraws} coin{'s' * (self.redraws > 1)} redrawn"

    def _curves(self, k: int, direction: Direction) -> Curves:
        inner = self.base.curves(k, direction)
        return _Chosen(inner, 2.0**self.redraws) if self.redraws else inner


@dataclass(frozen=True, slots=True)
class _Chosen(Curves):
    inner: Curves
    times: float

    def _upper(self, p: Floats) -> Floats:
        return self.inner.upper(p) * self.times

    def _lower(self, p: Floats) -> Floats:
        return 1 - (1 - self.inner.lower(p)) * self.times


@dataclass(frozen=True, slots=True)
class ValidationAllowance(Derived):
    """The base curves, less the chance that validation let a bad submission through.

    Each malicious submission passes the range test unlawfully with probability at most 2^−bits
    (docs/soundness.md, "Part 1: the range test"). k malicious clients make at most one submission
    an attempt each, counted or not, so by the union bound every bound moves by
    k · attempts · 2^−bits. Deletions submit nothing.
    """

    attempts: int
    soundness_bits: int

    def __post_init__(self) -> None:
        count("attempts", self.attempts)
        count("soundness_bits", self.soundness_bits, least=1)

    def _curves(self, k: int, direction: Direction) -> Curves:
        inner = self.base.curves(k, direction)
        if direction is Direction.DELETIONS:
            return inner
        return _Widened(inner, min(1.0, k * self.attempts * 2.0**-self.soundness_bits))


@dataclass(frozen=True, slots=True)
class _Widened(Curves):
    inner: Curves
    by: float

    def _upper(self, p: Floats) -> Floats:
        return self.inner.upper(p) + self.by

    def _lower(self, p: Floats) -> Floats:
        return self.inner.lower(p) - self.by


def require_guarantee(value: object) -> Guarantee:
    """``value``, if it may be turned into a certificate.

    Raises:
        Misconfiguration: it is a reproduction of a printed bound, or something else.
    """
    if not isinstance(value, Guarantee):
        raise Misconfiguration(
            "guarantee",
            type(value).__name__,
            "only a Guarantee certifies (ExactGroups, RenyiGroups, ApproximateDP, GaussianDP…); "
            "a Reproduction shows what a paper printed and certifies nothing",
        )
    return value
