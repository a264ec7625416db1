"""What the rounds ask of a server's durable state; `aggregator.store` keeps it in a database."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from precad.common.errors import Rejection
from precad.common.identifiers import ClientId, Digest


class AttemptState(Enum):
    """How far an attempt has come on this server."""

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


@dataclass(frozen=True, slots=True)
class ReleaseRecord:
    """An attempt that has released on this server, as it is kept."""

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


class Journal(Protocol):
    """One server's memory of its rounds: what a method did is durable when it returns, or undone.

    Raises:
        StorageFailure: by every method, when the state can't be read or written.
    """

    def next_attempt(self) -> int:
        """The first attempt that was never used here."""

    def begin_attempt(self, attempt: int, version: int, cohort_size: int, model: Digest) -> None:
        """An attempt is about to open. Raises PeerViolation when its number was used before."""

    def abandon_open(self) -> int:
        """Rounds that were open when this server or the link broke off. Returns how many."""

    def spend(self, attempt: int, batch: int) -> None:
        """Spend a batch of correlated randomness. Raises PeerViolation on reuse."""

    def release(
        self,
        attempt: int,
        valid: Collection[ClientId],
        valid_set: Digest,
        rejections: Mapping[ClientId, Rejection],
        noisy_share: bytes,
    ) -> None:
        """Charge every valid client and persist the noisy share, both or neither.

        After this the share may leave; before it, nothing may.

        Raises:
            AlreadyReleased: the attempt has released before, or another from the same model.
        """

    def release_of(self, version: int) -> ReleaseRecord | None:
        """The attempt that released from model ``version`` and isn't forfeited, if there is one.

        Raises:
            StorageFailure: the noisy share isn't the one that was released.
        """

    def finish_attempt(self, attempt: int, next_model: Digest) -> None:
        """Both noisy shares were held and the next model is persisted."""

    def forfeit(
        self,
        attempt: int,
        version: int,
        cohort_size: int,
        model: Digest,
        valid: Collection[ClientId],
    ) -> None:
        """Give an attempt up that only one server released, charging it here too.

        What the other server may have seen of it counts as spent on both ledgers.

        Raises:
            AlreadyReleased: the attempt is done; both servers hold its model.
        """

    def participations(self) -> Mapping[ClientId, int]:
        """T_i so far: how often each client was charged."""
