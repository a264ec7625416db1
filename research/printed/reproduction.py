"""What a printed statement gives, beside why it isn't a guarantee."""

from dataclasses import dataclass
from typing import Generic, TypeVar

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Reproduction(Generic[Value]):
    """A printed number, reproduced to be compared; never a budget or a certificate.

    Deliberately not a `Guarantee`, a `Result` or a `PrivacyStatement`: nothing that certifies or
    charges takes one.

    Attributes:
        source: the printed statement.
        value: what it gives: an ε, a radius (None where not even 0 holds), or two bounds.
        flaw: why it certifies nothing.
        delta: of an ε.
        mu: of the Gaussian that an ε was read from, where one is printed.
    """

    source: str
    value: Value
    flaw: str
    delta: float | None = None
    mu: float | None = None
