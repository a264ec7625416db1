"""What the rounds ask of a server's durable state; `aggregator.store` keeps it in a database.

States and transitions are those of `release_model` (tests/model).
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from precad.aggregator.rounds.server_messages import Fact, HeadBody, SealMessage
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


class Word(Enum):
    """What only the operators of both servers can decide, for one version."""

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


@dataclass(frozen=True, slots=True)
class Head:
    """The newest entry of a ledger."""

    length: int
    head: Digest


class Journal(Protocol):
    """One server's memory of its rounds: what a method did is durable when it returns, or undone.

    Raises:
        StorageFailure: by every method, when the state can't be read or written.
    """

    def next_attempt(self) -> int:
        """The first attempt that nobody remembers, as far as this server has heard."""

    def begin_attempt(self, attempt: int, version: int, cohort_size: int, model: Digest) -> None:
        """An attempt is about to open. Raises PeerViolation when its number was used before."""

    def abandon_open(self) -> int:
        """Attempts that were open when the link or a server broke off. Returns how many."""

    def attempts_of(self, version: int) -> int:
        """How many attempts of ``version`` there were."""

    def spend(self, attempt: int, batch: int) -> None:
        """Spend a batch of correlated randomness. Raises PeerViolation on reuse."""

    def count_opened(self, version: int, attempt: int) -> int:
        """An attempt's comparisons are about to be opened; also kept outside the database.

        Returns:
            How many of the version's attempts were opened, this one included.
        """

    def raise_opened(self, version: int, at_least: int) -> None:
        """The other server has counted that many."""

    def opened(self, version: int) -> int:
        """How many of the version's attempts had their comparisons opened."""

    def prepare(
        self,
        attempt: int,
        valid: Collection[ClientId],
        valid_set: Digest,
        rejections: Mapping[ClientId, Rejection],
        noisy_share: bytes | memoryview,
    ) -> None:
        """Charge every valid client and persist the noisy share, both or neither.

        Raises:
            AlreadyReleased: the attempt was prepared before, or another of its version is
                prepared or done.
        """

    def head(self) -> Head:
        """The ledger's newest."""

    def countersign(self, attempt: int, head: HeadBody, sealed: SealMessage) -> None:
        """This server is about to countersign the other's head; also kept outside the database."""

    def sent(self, attempt: int, countersignature: SealMessage) -> None:
        """The other's countersignature is here: the noisy share is about to leave."""

    def pending(self) -> ReleaseRecord | None:
        """The attempt that is prepared and not over.

        Raises:
            StorageFailure: the noisy share isn't the one that was prepared.
        """

    def finish_attempt(self, attempt: int, next_model: Digest) -> None:
        """The next model is persisted."""

    def keep_model_seal(self, version: int, sealed: SealMessage) -> None:
        """Keep the other server's word on the digest of model ``version``."""

    def confirm(self, version: int) -> None:
        """The other server holds model ``version`` too: owners may hear of it."""

    def confirmed(self) -> int:
        """The newest version that both servers are known to hold."""

    def model_seal(self, version: int) -> SealMessage | None:
        """The other server's word on the digest of model ``version``."""

    def void(self, version: int, attempt: int) -> None:
        """The attempt isn't prepared on both servers: it costs nothing, and stands in the ledger.

        Raises:
            AlreadyReleased: this server has countersigned or sent it.
        """

    def settle(self, attempt: int) -> None:
        """A prepared attempt whose version is over, as the model says: its charge stands."""

    def write_off(self, attempt: int) -> None:
        """A prepared attempt that both operators gave up; its charge stands."""

    def facts(self, version: int) -> tuple[Fact, ...]:
        """What the ledger holds of ``version``, by attempt."""

    def history(self, version: int) -> Digest:
        """Of all facts of the versions before ``version``."""

    def witness(self) -> SealMessage | None:
        """The other server's newest head: its word on the common history."""

    def learn(self, facts: Collection[Fact]) -> int:
        """Take facts that this server had forgotten into its ledger. Returns how many."""

    def charges_in(self, version: int) -> Mapping[ClientId, int]:
        """How many releases of ``version`` may have left with each client in the counted set."""

    def participations(self) -> Mapping[ClientId, int]:
        """T_i so far: how many versions each client was charged for."""

    def upgrades(self) -> Mapping[ClientId, Mapping[int, int]]:
        """Of those clients with a version that was released again: versions by m."""

    def commitment(self, version: int) -> SealMessage | None:
        """The other server's commitment to its coin of ``version``."""

    def coin_opening(self, version: int, *, own: bool) -> SealMessage | None:
        """An opening for ``version``: the other server's, or one's own that it gave back."""

    def keep_commitment(self, version: int, sealed: SealMessage) -> None:
        """Keep the other's commitment; the first one stays, whatever comes later."""

    def keep_opening(self, version: int, sealed: SealMessage, *, own: bool) -> None:
        """Keep an opening."""

    def discard_coin(self, version: int) -> None:
        """Both operators discard the version's coin; their word is used up."""

    def was_redrawn(self, version: int) -> bool:
        """Whether the operators had the version's coin drawn again."""

    def allowed(self, word: Word, version: int) -> int:
        """Up to which attempt the operators' word reaches; -1 without one."""

    def allow(self, word: Word, version: int, until: int) -> None:
        """Keep the operators' word."""
