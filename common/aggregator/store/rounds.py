"""What a round is on one server, as its database keeps it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from precad.common.errors import Rejection
from precad.common.identifiers import ClientId, Digest


class RoundState(Enum):
    """How far a round has come on this server."""

    OPEN = "open"
    """Nothing has left; a crash here costs nothing but the round."""
    ABANDONED = "abandoned"
    """Broken off before anything was released."""
    RELEASED = "released"
    """Charged, and the noisy share is persisted: nothing about it may change any more."""
    FORFEITED = "forfeited"
    """One server released and the other no longer can: charged on both, never reconstructed."""
    DONE = "done"
    """Both noisy shares were held and the next model is persisted."""


CHARGED = frozenset({RoundState.RELEASED, RoundState.FORFEITED, RoundState.DONE})
"""States of a round that the ledger must have charged."""


@dataclass(frozen=True, slots=True)
class ReleaseRecord:
    """A round that has released on this server, as it is kept."""

    number: int
    version: int
    """t of the model θ_t that the round started from."""
    state: RoundState
    cohort_size: int
    model: Digest
    valid_set: Digest
    valid: tuple[ClientId, ...]
    rejections: Mapping[ClientId, Rejection]
    noisy_share: bytes = field(repr=False)
