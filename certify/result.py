"""What certifying a point can say. Abstaining is an answer of its own, never a radius of −1."""

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Certified:
    """The prediction stays ``label`` after any change of at most ``radius``.

    Attributes:
        label: class index.
        radius: certified number of records or clients (test-time: an ℓ2 distance).
        additions: the radius against additions alone, where asked.
        deletions: the radius against deletions alone, where asked.
    """

    label: int
    radius: int | float
    additions: int | None = None
    deletions: int | None = None


@dataclass(frozen=True, slots=True)
class Abstained:
    """Nothing is certified at this point, not even the clean prediction."""

    reason: str


Result: TypeAlias = Certified | Abstained
