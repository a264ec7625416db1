"""The aggregator: what server A and server B are alike.

One object per server and task; the round's steps are functions of it and of the round's state
(``start_attempt``, ``matching``, ``release``). It knows no gRPC: link and dealing are
given to it.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from precad.aggregator.noise import NoiseSource
from precad.aggregator.peer_link import PeerLink
from precad.aggregator.rounds.joint_coin import CoinKey
from precad.aggregator.rounds.privacy_cap import begin, may_take_part, released_again
from precad.aggregator.rounds.server_signatures import ServerSignatures
from precad.common.identifiers import ClientId, Role
from precad.common.roster import Roster
from precad.common.secret import Secret
from precad.common.task import Task
from precad.norm_check.dealing import Dealing
from precad.norm_check.dealt_triples import DealRequest, DealtRandomness, SpentTriples

if TYPE_CHECKING:
    from precad.aggregator.store import Store


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
    seals: ServerSignatures = field(repr=False)
    coin_key: CoinKey = field(repr=False)
    noise: NoiseSource = field(repr=False)
    store: "Store" = field(repr=False)

    @property
    def spent(self) -> SpentTriples:
        """Which dealt randomness was used, durably."""
        return self.store.attempts

    @property
    def denominator(self) -> float:
        """Fixed for the whole task."""
        return self.roster.denominator(self.task.privacy.client_rate)

    def within_budget(self, clients: Iterable[ClientId], version: int) -> tuple[ClientId, ...]:
        """Those whose charge for ``version`` keeps their record-level exact ε within the limit.

        Counted from this server's own durable ledger; against one corrupted server. Both servers
        ask before any client is asked to work, and only whom both allow takes part. A version
        that may have been released before is charged as released once more.
        """
        if self.task.privacy.epsilon_limit is None:
            return tuple(clients)
        ledger = self.store.ledger
        spent, again = ledger.participations(), ledger.re_releases()
        charged = ledger.charges_in(version)
        return tuple(
            client
            for client in clients
            if may_take_part(
                self.task,
                self.roster[client].record_rate,
                spent.get(client, 0),
                again.get(client, {}),
                charged.get(client, 0),
            )
        )

    def begin_accounts(self, version: int) -> None:
        """Have the accounts computed that another release of ``version`` needs, in other threads.

        Most trainings need none: no release of theirs was ever lost.
        """
        again = self.store.ledger.re_releases()
        charged = self.store.ledger.charges_in(version)
        for client, claim in self.roster.items():
            then = released_again(again.get(client, {}), charged.get(client, 0))
            begin(self.task, claim.record_rate, then)

    def randomness(self, request: DealRequest) -> DealtRandomness:
        """Binary triples for one batch of decisions."""
        corrections = self.dealing.deal(request)
        return DealtRandomness(self.role, self.dealer_key, request, corrections)
