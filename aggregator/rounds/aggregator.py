"""The aggregator, which servers A and B are alike, and the states of its attempts.

One object per server and task; the round's steps are functions of it and of the attempt's state
(``start_attempt``, ``matching``, ``release``). It knows no gRPC: link and dealing are given to it.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from precad.aggregator.noise import NoiseSource
from precad.aggregator.peer_link import PeerLink
from precad.aggregator.rounds.privacy_cap import PrivacyCap
from precad.aggregator.server_messages import CoinOpening, ServerSignatures
from precad.aggregator.store import Store
from precad.aggregator.validate import in_process
from precad.aggregator.validate.validation import Server, Validation
from precad.common.errors import Rejection
from precad.common.identifiers import ClientId, Digest, Role, Secret
from precad.common.ring import RingVector, derive
from precad.common.roster import Roster
from precad.common.share.proof_submission import AnySubmission
from precad.common.task import Task
from precad.norm_check.dealing import Dealing

Rejections = Mapping[ClientId, Rejection]

# An attempt's states: each carries only what that state may hold. Once prepared, no share exists
# any more: ``Prepared`` has the noisy share alone.


@dataclass(frozen=True, slots=True)
class Opened:
    """Both servers agreed on the cohort and the model; submissions are coming in."""

    attempt: int
    """Used once, ever: an attempt that broke off starts over with a new number."""
    version: int
    """t of the model θ_t that it starts from: how many rounds are done."""
    cohort: tuple[ClientId, ...]
    """Whose submissions are taken: the counted ones, or with `cover_uploads` everybody enrolled."""
    model: Digest
    counted: frozenset[ClientId]
    """Whom the coin drew and both ledgers let take part: only they are summed and charged."""
    seed_holders: Mapping[ClientId, Role] = field(default_factory=dict)
    """Where norms are proved: which server gets whose seed; the other gets the body."""


@dataclass(frozen=True, slots=True)
class Matched:
    """Collection is over; both servers know the same matched and rejected clients."""

    opened: Opened
    submissions: Mapping[ClientId, AnySubmission]
    """Held by both servers, which have the same signed bytes."""
    rejections: Rejections
    early: frozenset[ClientId] = frozenset()
    """Whose submissions went on to validation before collection closed."""


# The way of the sum. Each step takes what the step before made and nothing else: code that
# releases what wasn't validated, or has no noise, doesn't type-check.


@dataclass(frozen=True, slots=True)
class Counted:
    """Who counts in the attempt and who doesn't, as both servers agreed."""

    opened: Opened
    valid: tuple[ClientId, ...]
    valid_set: Digest
    rejections: Rejections


@dataclass(frozen=True, slots=True)
class Summed:
    """The valid shares' sum; nothing else of them is left."""

    counted: Counted
    share_sum: RingVector = field(repr=False)


@dataclass(frozen=True, slots=True)
class Noised:
    """The sum with this server's own noise; not charged yet, so it may not leave."""

    counted: Counted
    noisy_share: RingVector = field(repr=False)


@dataclass(frozen=True, slots=True)
class Prepared:
    """Charged and persisted; the noisy share may not leave before the other is prepared too."""

    counted: Counted
    noisy_share: RingVector = field(repr=False)


@dataclass(frozen=True, slots=True)
class Sent:
    """Both are prepared, and have signed it: the share may leave, any number of times, the same."""

    counted: Counted
    noisy_share: RingVector = field(repr=False)


@dataclass(frozen=True, slots=True)
class Finished:
    """The attempt's outcome, the same on both servers."""

    opened: Opened
    valid: tuple[ClientId, ...]
    rejections: Rejections
    noisy_sum: RingVector = field(repr=False)
    """``[d] int64``: Σ valid updates + both servers' noise, in units of the last place."""
    theta: NDArray[np.float32] = field(repr=False)
    """``[d] float32``: θ_{t+1}."""
    model: Digest


@dataclass(eq=False, repr=False)
class CoinKey:
    """One server's 32 secret bytes, never in the database; ``_keep`` makes new ones durable."""

    _key: Secret
    _keep: Callable[[Secret], None] = lambda _: None

    def opening(self, task: Digest, version: int) -> CoinOpening:
        """This server's bytes and salt for a version; the same whenever they are asked for."""
        return CoinOpening(
            task=str(task),
            version=version,
            coin=derive(self._key, "coin-bytes", task.value, version).reveal().hex(),
            salt=derive(self._key, "coin-salt", task.value, version).reveal().hex(),
        )

    def renew(self) -> None:
        """Take a fresh key, for all versions that have no coin yet."""
        fresh = Secret.random()
        self._keep(fresh)
        self._key = fresh


@dataclass(frozen=True, slots=True)
class Aggregator:
    """One server's part of a training."""

    task: Task
    role: Role
    roster: Roster
    link: PeerLink
    dealing: Dealing
    dealer_key: Secret
    """Shared with the dealer: expands this server's part of correlated randomness."""
    set_secret: Secret
    """Shared with the other server alone: salts the digests of valid sets."""
    nonces: bytes
    """A's and B's for this link, 32 bytes each: dealt randomness is bound to them, so that no two
    restored databases make the dealer deal the same again."""
    signatures: ServerSignatures = field(repr=False)
    coin_key: CoinKey = field(repr=False)
    noise: NoiseSource = field(repr=False)
    store: Store = field(repr=False)
    cap: PrivacyCap = field(repr=False)

    @property
    def for_validation(self) -> Server:
        """What validation needs of it."""
        dealt = self.dealing, self.dealer_key, self.nonces
        return Server(self.task, self.role, self.link, *dealt, spent=self.store.attempts)

    def in_process(self, opened: Opened) -> Validation:
        """Validate an attempt's submissions in this process."""
        return in_process(self.for_validation, opened.attempt, opened.counted)

    def within_budget(self, clients: Iterable[ClientId], version: int) -> tuple[ClientId, ...]:
        """Those whose charge for ``version`` keeps their record-level exact ε within the limit.

        Counted from this server's own durable ledger; against one corrupted server. Only whom both
        servers allow is asked to work. What may have been released counts as released once more.
        """
        if self.task.privacy.epsilon_limit is None:
            return tuple(clients)
        ledger = self.store.ledger
        spent, again = ledger.participations(), ledger.re_releases()
        charged = ledger.charges_in(version)

        def admitted(client: ClientId) -> bool:
            now = spent.get(client, 0), again.get(client, {}), charged.get(client, 0)
            return self.cap.admits(self.roster[client].record_rate, *now)

        return tuple(filter(admitted, clients))

    def precompute_re_releases(self, version: int) -> None:
        """Have the accounts computed, in threads, that another release of ``version`` needs."""
        again, charged = self.store.ledger.re_releases(), self.store.ledger.charges_in(version)
        for client, claim in self.roster.items():
            rate, charges = claim.record_rate, charged.get(client, 0)
            self.cap.precompute_re_release(rate, again.get(client, {}), charges)
