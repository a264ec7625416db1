"""The joint coin of a version: who is drawn, from both servers' bytes, once.

Each server's bytes for a version are a PRF under its own coin key, which lies beside its signing
key and never in the database: a lost database changes no coin. Each signs a commitment to its
bytes, keeps the other's durably, and only then opens its own; for that version it accepts nothing
but the opening of that commitment. Both keep the opening before any client hears of the version
(docs/protocol.md, "One attempt").
"""

import hashlib
from collections.abc import Callable
from fractions import Fraction

from precad.aggregator.rounds.server_messages import (
    CoinCommitment,
    CoinOpening,
)
from precad.common.identifiers import ClientId, Digest, Role
from precad.common.keystream import Keystream, derive, encode_context
from precad.common.roster import Roster
from precad.common.secret import Secret


class CoinKey:
    """One server's, 32 secret bytes; never in the database.

    Args:
        key: the bytes.
        keep: makes new ones durable, where the operators want them.
    """

    def __init__(self, key: Secret, keep: Callable[[Secret], None] = lambda _: None) -> None:
        self._key = key
        self._keep = keep

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


def commitment_to(opening: CoinOpening, role: Role) -> CoinCommitment:
    """SHA-256 over role, task, version, salt and bytes."""
    digest = hashlib.sha256(
        encode_context(
            "coin-commitment",
            role.value.encode(),
            bytes.fromhex(opening.task),
            opening.version,
            bytes.fromhex(opening.salt),
            bytes.fromhex(opening.coin),
        )
    )
    return CoinCommitment(task=opening.task, version=opening.version, digest=digest.hexdigest())


def joint_coin(a: CoinOpening, b: CoinOpening) -> Secret:
    """The coin of a version, from server A's and server B's opening."""
    both = Secret(bytes.fromhex(a.coin) + bytes.fromhex(b.coin))
    return derive(both, "coin", bytes.fromhex(a.task), a.version)


# Select: who is drawn for a version, by its joint coin.


def cohort_of(
    coin: Secret, roster: Roster, client_rate: float, version: int
) -> tuple[ClientId, ...]:
    """Each enrolled client with probability q: PRF(coin; version, client) < q·2^64.

    No client's draw depends on who else is enrolled, or on their order.

    Args:
        coin: of this version, from both servers' bytes.
        roster: everybody enrolled.
        client_rate: q; exact to 2^−64.
        version: t.
    """
    threshold = int(Fraction(client_rate) * 2**64)

    def word(client: ClientId) -> int:
        return int.from_bytes(
            Keystream(coin, "cohort", version, client.encoded()).read(8), "little"
        )

    return tuple(client for client in roster if word(client) < threshold)
