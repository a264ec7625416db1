"""Hold what server A and server B are alike: one aggregator for each server and task.

A round's steps are functions of an aggregator and of the attempt's state
(``start_attempt``, ``matching``, ``release``). It knows no gRPC: the servers' link and
the dealing are given to it.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property

from precad.aggregator import (
    CoinOpening,
    CutShares,
    NoiseSource,
    Opened,
    PeerLink,
    ServerSignatures,
)
from precad.aggregator.rounds.privacy_cap import PrivacyCap
from precad.aggregator.store import Store
from precad.aggregator.validate import in_process
from precad.aggregator.validate.validation import Server, Validation
from precad.common import ClientId, Digest, Role, Roster, Secret, Task, derive
from precad.norm_check import Dealing


@dataclass(eq=False, repr=False)
class CoinKey:
    """Hold one server's 32 secret bytes for coins, which are never in the database."""

    _key: Secret
    _keep: Callable[[Secret], None] = lambda _: None
    """Makes a new key durable."""

    def opening(self, task: Digest, version: int) -> CoinOpening:
        """Return this server's bytes and salt for a version, always the same ones."""
        coin = derive(self._key, "coin-bytes", task.value, version)
        salt = derive(self._key, "coin-salt", task.value, version)
        return CoinOpening(
            task=task.value,
            version=version,
            coin=coin.reveal(),
            salt=salt.reveal(),
        )

    def renew(self) -> None:
        """Take a fresh key, for all versions that have no coin yet.

        Raises what ``_keep`` raises, as StorageFailure; the old key stays then.
        """
        fresh = Secret.random()
        self._keep(fresh)
        self._key = fresh


@dataclass(frozen=True, kw_only=True)
class Aggregator:
    """Play one server's part of a training, over one link to the other server."""

    task: Task
    role: Role
    roster: Roster
    link: PeerLink
    dealing: Dealing
    dealer_key: Secret
    """Shared with the dealer; it expands to this server's correlated randomness."""
    set_secret: Secret
    """Shared with the other server alone; it salts the digests of valid sets."""
    nonces: bytes
    """A's and B's nonce for this link, 32 bytes each.

    Dealt randomness is bound to them, so that no two restored databases make the dealer
    deal the same randomness again.
    """
    signatures: ServerSignatures
    coin_key: CoinKey
    noise: NoiseSource
    store: Store
    cap: PrivacyCap

    @cached_property
    def shares(self) -> CutShares:
        """How noisy shares travel."""
        return CutShares.of(self.task, self.roster.values())

    def in_process(self, opened: Opened) -> Validation:
        """Return what validates an attempt's submissions in this process."""
        server = Server(
            task=self.task,
            role=self.role,
            link=self.link,
            dealing=self.dealing,
            dealer_key=self.dealer_key,
            nonces=self.nonces,
            spent=self.store.attempts,
            bound_of=self.bound_of,
        )
        return in_process(server, opened.attempt, opened.counted)

    def bound_of(self, client: ClientId) -> int:
        """Return β_i, the bound on one enrolled client's updates."""
        return self.task.mechanism.bound_of(self.roster[client])

    def within_budget(
        self, clients: Iterable[ClientId], version: int
    ) -> tuple[ClientId, ...]:
        """Return those clients who may take part in a release of ``version``.

        With its charge their record-level exact ε, against one corrupted server, stays
        within the task's limit. It is counted from this server's own durable ledger,
        where what may have been released counts as released once more. Only clients
        whom both servers allow are asked to work.
        """
        if self.task.privacy.epsilon_limit is None:
            return tuple(clients)
        ledger = self.store.ledger
        participations = ledger.participations()
        re_releases = ledger.re_releases()
        charges = ledger.charges_in(version)
        return tuple(
            client
            for client in clients
            if self.cap.admits(
                self.roster[client].record_rate,
                spent=participations.get(client, 0),
                re_releases=re_releases.get(client, {}),
                charges=charges.get(client, 0),
            )
        )
