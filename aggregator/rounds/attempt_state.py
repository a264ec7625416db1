"""How far an attempt has come on a server, and what is kept of one; `aggregator.store` keeps it.

States and transitions are those of `release_model` (tests/model).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from precad.common.errors import Rejection
from precad.common.identifiers import ClientId, Digest


class AttemptState(Enum):
    """How far an attempt has come on this server."""

    OPEN = "open"
    """Nothing has left; a crash here costs nothing but the attempt."""
    ABANDONED = "abandoned"
    """Broken off before it was prepared."""
    PREPARED = "prepared"
    """Charged, and the noisy share is persisted: nothing about it may change any more."""
    COUNTERSIGNED = "countersigned"
    """This server has countersigned the other's head: it never voids."""
    SENT = "sent"
    """This server holds the other's countersignature: the noisy share may leave."""
    DONE = "done"
    """Both noisy shares were held and the next model is persisted."""
    VOIDED = "voided"
    """Prepared on one server only, which had countersigned nothing: costs nothing."""
    WRITTEN_OFF = "written-off"
    """It may have left, and is lost beyond repair: charged, and never used."""
    LEARNED = "learned"
    """A charge that this server had forgotten."""


PENDING = (AttemptState.PREPARED, AttemptState.COUNTERSIGNED, AttemptState.SENT)
"""Prepared and not over: no attempt opens meanwhile."""
BOUND = (AttemptState.COUNTERSIGNED, AttemptState.SENT)
"""Never voided."""
CHARGED = (*PENDING, AttemptState.DONE, AttemptState.WRITTEN_OFF, AttemptState.LEARNED)
"""It costs its clients something."""


class Permission(Enum):
    """What only the operators of both servers can allow, for one version."""

    ATTEMPTS = "attempts"
    """Go on trying: many attempts have failed, or a release may have left already."""
    WRITE_OFF = "write-off"
    """A prepared attempt that the other server has lost: its charge stands, it is never used."""
    COIN = "coin"
    """A coin key is lost: both servers take new ones for this version."""


@dataclass(frozen=True, slots=True)
class ReleaseRecord:
    """An attempt that was prepared on this server, as it is kept."""

    attempt: int
    version: int
    """t of the model θ_t that the attempt started from."""
    state: AttemptState
    cohort_size: int
    model: Digest
    valid_set: Digest
    valid: tuple[ClientId, ...]
    rejections: Mapping[ClientId, Rejection]
    noisy_share: bytes = field(repr=False)
