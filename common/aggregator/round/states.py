"""A round's states: each carries only what that state may hold.

After the release no share exists any more: ``Released`` has the noisy share alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from precad.common.aggregator.collect import Held
from precad.common.errors import Rejection
from precad.common.identifiers import ClientId, Digest
from precad.common.ring import RingVector

Rejections = Mapping[ClientId, Rejection]


@dataclass(frozen=True, slots=True)
class Opened:
    """Both servers agreed on the cohort and the model; submissions are coming in."""

    number: int
    """Used once, ever: a round that broke off starts over with a new number."""
    version: int
    """t of the model θ_t that it starts from: how many rounds are done."""
    cohort: tuple[ClientId, ...]
    model: Digest


@dataclass(frozen=True, slots=True)
class MatchedSubmission:
    """A submission that both servers hold, with both commitments cross-checked."""

    held: Held = field(repr=False)
    commitment_a: bytes
    commitment_b: bytes


@dataclass(frozen=True, slots=True)
class Matched:
    """Collection is over; both servers know the same matched and rejected clients."""

    opened: Opened
    submissions: Mapping[ClientId, MatchedSubmission]
    rejections: Rejections


@dataclass(frozen=True, slots=True)
class Validated:
    """Norms are checked; the valid shares are summed and nothing else of them is left."""

    opened: Opened
    valid: tuple[ClientId, ...]
    valid_set: Digest
    rejections: Rejections
    share_sum: RingVector = field(repr=False)


@dataclass(frozen=True, slots=True)
class Released:
    """Charged and persisted; the noisy share may leave, any number of times, unchanged."""

    opened: Opened
    valid: tuple[ClientId, ...]
    valid_set: Digest
    rejections: Rejections
    noisy_share: RingVector = field(repr=False)


@dataclass(frozen=True, slots=True)
class Finished:
    """The round's outcome, the same on both servers."""

    opened: Opened
    valid: tuple[ClientId, ...]
    rejections: Rejections
    noisy_sum: RingVector = field(repr=False)
    """``[d] int64``: Σ valid updates + both servers' noise, in units of the last place."""
    theta: NDArray[np.float64] = field(repr=False)
    """``[d] float64``: θ_{t+1}."""
    model: Digest
