"""The joint coin of a version: who is drawn, from both servers' bytes, once.

Each server's bytes for a version are a PRF under its own coin key, which lies beside its signing
key and never in the database: a lost database changes no coin. Each signs a commitment to its
bytes, keeps the other's durably, and only then opens its own; for that version it accepts nothing
but the opening of that commitment. Both keep the opening before any client hears of the version
(docs/protocol.md, "One attempt").
"""

import hashlib
import hmac
from fractions import Fraction

from precad.aggregator.rounds.aggregator import Aggregator
from precad.aggregator.rounds.start_attempt import NeedsOperators
from precad.aggregator.server_messages import (
    CoinCommitment,
    CoinOpening,
    CoinReveal,
    CoinState,
    SignedMessage,
    exchange,
)
from precad.aggregator.store.schema import Permission
from precad.common.errors import PeerUnavailable, PeerViolation
from precad.common.identifiers import ClientId, Role, Secret
from precad.common.identity.signatures import SignedKind
from precad.common.ring import Keystream, derive, encode_context
from precad.common.roster import Roster


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


def cohort_of(
    coin: Secret, roster: Roster, client_rate: float, version: int
) -> tuple[ClientId, ...]:
    """Return each enrolled client with probability q: PRF(coin; version, client) < q·2^64.

    No client's draw depends on who else is enrolled, or on their order.
    """
    threshold = int(Fraction(client_rate) * 2**64)

    def word(client: ClientId) -> int:
        return int.from_bytes(
            Keystream(coin, "cohort", version, client.encoded()).read(8), "little"
        )

    return tuple(client for client in roster if word(client) < threshold)


def draw(aggregator: Aggregator, version: int) -> tuple[ClientId, ...]:
    """Return whom a version's coin draws, once both servers agree on it. Raises as ``agree_coin``.

    Once per version, whatever breaks: who cuts links draws nobody anew.
    """
    coin, rate = agree_coin(aggregator, version), aggregator.task.privacy.client_rate
    return cohort_of(coin, aggregator.roster, rate, version)


def agree_coin(aggregator: Aggregator, version: int) -> Secret:
    """Commit, keep the other's commitment, open, keep the other's opening; the joint coin.

    Asked again for a version it gives the same: no cut link and no lost database draws anew.

    Raises:
        PeerViolation: the other server opens something else than it committed to.
        PeerUnavailable: a server takes its lost bytes back; the link starts anew with them.
        NeedsOperators: a coin key is lost, and with it bytes that nobody had opened.
    """
    link, store, signatures = aggregator.link, aggregator.store, aggregator.signatures
    own = _own(aggregator, version)
    committed = commitment_to(own, signatures.role)
    kept = store.versions.commitment(version)
    known = None if kept is None else _commitment(aggregator, version, kept, kept=True)
    state = CoinState(
        commitment=signatures.sign(SignedKind.COIN_COMMITMENT, committed),
        known=None if known is None else known.digest,
        held=store.versions.coin_opening(version, own=False),
        discard=store.versions.allowed(Permission.COIN, version) >= 0,
    )
    theirs = exchange(link, "coin-commitment", state)
    commitment = _commitment(aggregator, version, theirs.commitment)
    own_lost = theirs.known not in (None, committed.digest)
    theirs_lost = known is not None and known.digest != commitment.digest
    if own_lost or theirs_lost:
        _mend(aggregator, version, state, theirs, own_lost=own_lost, theirs_lost=theirs_lost)
    store.versions.keep_commitment(version, theirs.commitment)
    kind = SignedKind.COIN_OPENING
    answer = exchange(link, "coin-opening", CoinReveal(opening=signatures.sign(kind, own)))
    opening = signatures.check(signatures.other, kind, answer.opening, CoinOpening)
    if not hmac.compare_digest(commitment_to(opening, signatures.other).digest, commitment.digest):
        raise PeerViolation(f"the other server opened another coin of version {version}")
    store.versions.keep_opening(version, answer.opening, own=False)
    a, b = (own, opening) if signatures.role is Role.SERVER_A else (opening, own)
    return joint_coin(a, b)


def _own(aggregator: Aggregator, version: int) -> CoinOpening:
    signatures = aggregator.signatures
    given_back = aggregator.store.versions.coin_opening(version, own=True)
    if given_back is None:
        return aggregator.coin_key.opening(aggregator.task.digest, version)
    return signatures.check(signatures.role, SignedKind.COIN_OPENING, given_back, CoinOpening)


def _commitment(
    aggregator: Aggregator, version: int, signed: SignedMessage, *, kept: bool = False
) -> CoinCommitment:
    signatures = aggregator.signatures
    found = signatures.check(
        signatures.other, SignedKind.COIN_COMMITMENT, signed, CoinCommitment, kept=kept
    )
    if (found.task, found.version) != (str(signatures.task), version):
        raise PeerViolation("a coin was committed to for another task or version")
    return found


def _mend(
    aggregator: Aggregator,
    version: int,
    state: CoinState,
    theirs: CoinState,
    *,
    own_lost: bool,
    theirs_lost: bool,
) -> None:
    """A server's bytes aren't those that it committed to: it lost its coin key."""
    store, signatures = aggregator.store, aggregator.signatures
    # From before the operators' word it isn't: the other would choose between two of its coins.
    if own_lost and theirs.held is not None and not store.versions.was_redrawn(version):
        given = signatures.check(signatures.role, SignedKind.COIN_OPENING, theirs.held, CoinOpening)
        if (given.task, given.version) != (str(signatures.task), version):
            raise PeerViolation("the other server gave back a coin of another task or version")
        store.versions.keep_opening(version, theirs.held, own=True)
        raise PeerUnavailable("this server took back the coin bytes that it had signed")
    if theirs_lost and state.held is not None:
        raise PeerUnavailable("the other server takes back the coin bytes that it had signed")
    if not (state.discard and theirs.discard):
        what = "a server's coin key isn't the one that it has drawn with"
        raise NeedsOperators(Permission.COIN, version, what)
    # First: where no new key can be kept nothing is forgotten, and no old coin is drawn again.
    aggregator.coin_key.renew()
    store.versions.discard_coin(version)
    raise PeerUnavailable(f"both servers take new coins for version {version}")
