"""An attempt's states: each carries only what that state may hold.

Once prepared, no share exists any more: ``Prepared`` has the noisy share alone.
"""

from collections.abc import Mapping
from dataclasses import field

from precad.common import (
    ClientId,
    Digest,
    Floats32,
    Rejection,
    RingVector,
    Role,
    frozen_dataclass,
    frozen_kw_only_dataclass,
)
from precad.norm_check import AnySubmission

Rejections = Mapping[ClientId, Rejection]


@frozen_kw_only_dataclass
class Opened:
    """Both servers agreed on the cohort and the model; submissions are coming in."""

    attempt: int
    """Used once, ever: an attempt that broke off starts over with a new number."""
    version: int
    """t of the model θ_t that it starts from: how many rounds are done."""
    cohort: tuple[ClientId, ...]
    """Whose submissions are taken: the counted ones, or with `cover_uploads` everybody
    enrolled."""
    model: Digest
    counted: frozenset[ClientId]
    """Whom the coin drew and both ledgers let take part: only they are summed and
    charged."""
    asleep: frozenset[ClientId] = frozenset()
    """Who missed two versions in a row: once the others are in, nobody waits for it."""
    seed_holders: Mapping[ClientId, Role] = field(default_factory=dict)
    """Where norms are proved: which server gets whose seed; the other gets the body."""


@frozen_kw_only_dataclass
class Matched:
    """Collection is over; both servers know the same matched and rejected clients."""

    opened: Opened
    submissions: Mapping[ClientId, AnySubmission]
    """Held by both servers, which have the same signed bytes."""
    rejections: Rejections
    early: frozenset[ClientId] = frozenset()
    """Whose submissions went on to validation before collection closed."""


# The states of the sum. Each step takes what the step before made and nothing else:
# code that releases what wasn't validated, or has no noise, doesn't type-check.


@frozen_kw_only_dataclass
class Counted:
    """Who counts in the attempt and who doesn't, as both servers agreed."""

    opened: Opened
    valid: tuple[ClientId, ...]
    valid_set: Digest
    rejections: Rejections
    submissions: Mapping[ClientId, str] = field(default_factory=dict)
    """Ids of the matched submissions."""


@frozen_dataclass
class Summed:
    """The valid shares' sum; nothing else of them is left."""

    counted: Counted
    share_sum: RingVector = field(repr=False)


@frozen_dataclass
class Noised:
    """The sum with this server's own noise; not charged yet, so it may not leave."""

    counted: Counted
    noisy_share: RingVector = field(repr=False)


@frozen_dataclass
class Prepared:
    """Charged and persisted.

    The noisy share may not leave before the other server is prepared too.
    """

    counted: Counted
    noisy_share: bytes = field(repr=False)
    """As it travels: ``CutShares.cut``."""


@frozen_dataclass
class Sent:
    """Both are prepared, and have signed it: the noisy share may leave.

    It may leave any number of times, and is the same each time.
    """

    counted: Counted
    noisy_share: bytes = field(repr=False)
    """As it travels: ``CutShares.cut``."""


@frozen_kw_only_dataclass
class Finished:
    """The attempt's outcome, the same on both servers."""

    opened: Opened
    valid: tuple[ClientId, ...]
    rejections: Rejections
    noisy_sum: RingVector = field(repr=False)
    """``[d] int64``: Σ valid updates + both servers' noise, in units of the last place.
    """
    theta: Floats32 = field(repr=False)
    """``[d] float32``: θ_{t+1}."""
    model: Digest
    step: bytes | None = field(repr=False)
    """The rounded sum, of which owners make θ_{t+1} (``step_bytes``); None in a task
    without compact releases."""
