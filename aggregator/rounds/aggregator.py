"""The aggregator, what server A and server B are alike.

One object per server and task; the round's steps are functions of it and of the
attempt's state (``start_attempt``, ``matching``, ``release``). It knows no gRPC: link
and dealing are given to it.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from precad.aggregator.attempt_states import Opened
from precad.aggregator.noise import NoiseSource
from precad.aggregator.peer_link import PeerLink
from precad.aggregator.rounds.privacy_cap import PrivacyCap
from precad.aggregator.server_messages import CoinOpening, ServerSignatures
from precad.aggregator.store import Store
from precad.aggregator.validate import in_process
from precad.aggregator.validate.validation import Server, Validation
from precad.common.identifiers import ClientId, Digest, Role, Secret
from precad.common.ring import derive
from precad.common.roster import Roster
from precad.common.task import Task
from precad.norm_check.dealing import Dealing


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


@dataclass(frozen=True, slots=True, kw_only=True)
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
    """A's and B's for this link, 32 bytes each: dealt randomness is bound to them, so
    that no two restored databases make the dealer deal the same again."""
    signatures: ServerSignatures = field(repr=False)
    coin_key: CoinKey = field(repr=False)
    noise: NoiseSource = field(repr=False)
    store: Store = field(repr=False)
    cap: PrivacyCap = field(repr=False)

    def in_process(self, opened: Opened) -> Validation:
        """Validate an attempt's submissions in this process."""
        server = Server(
            task=self.task,
            role=self.role,
            link=self.link,
            dealing=self.dealing,
            dealer_key=self.dealer_key,
            nonces=self.nonces,
            spent=self.store.attempts,
        )
        return in_process(server, opened.attempt, opened.counted)

    def within_budget(
        self, clients: Iterable[ClientId], version: int
    ) -> tuple[ClientId, ...]:
        """Those whose charge for ``version`` keeps their record-level exact ε within the limit.

        Counted from this server's own durable ledger; against one corrupted server.
        Only whom both servers allow is asked to work. What may have been released
        counts as released once more.
        """
        if self.task.privacy.epsilon_limit is None:
            return tuple(clients)
        ledger = self.store.ledger
        spent = ledger.participations()
        again = ledger.re_releases()
        charged = ledger.charges_in(version)

        def admitted(client: ClientId) -> bool:
            return self.cap.admits(
                self.roster[client].record_rate,
                spent=spent.get(client, 0),
                re_releases=again.get(client, {}),
                charges=charged.get(client, 0),
            )

        return tuple(filter(admitted, clients))

    def precompute_re_releases(self, version: int) -> None:
        """Have the accounts computed, in threads, that another release of ``version`` needs."""
        again = self.store.ledger.re_releases()
        charged = self.store.ledger.charges_in(version)
        for client, claim in self.roster.items():
            rate = claim.record_rate
            charges = charged.get(client, 0)
            self.cap.precompute_re_release(rate, again.get(client, {}), charges)
