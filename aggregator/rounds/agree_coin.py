"""The two servers agree on a version's coin: commit, keep, open, keep."""

import hmac

from precad.aggregator.rounds.aggregator import Aggregator
from precad.aggregator.rounds.attempt_state import Permission
from precad.aggregator.rounds.joint_coin import commitment_to, joint_coin
from precad.aggregator.rounds.server_messages import (
    CoinCommitment,
    CoinOpening,
    CoinReveal,
    CoinState,
    SealMessage,
)
from precad.aggregator.rounds.start_attempt import NeedsOperators
from precad.common.errors import PeerUnavailable, PeerViolation
from precad.common.identifiers import Role
from precad.common.identity.signatures import SignedKind
from precad.common.secret import Secret


def agree_coin(aggregator: Aggregator, version: int) -> Secret:
    """Commit, keep the other's commitment, open, keep the other's opening; the joint coin.

    Asked again for a version it gives the same: no cut link and no lost database draws anew.

    Raises:
        PeerViolation: the other server opens something else than it committed to.
        PeerUnavailable: a server takes its lost bytes back; the link starts anew with them.
        NeedsOperators: a coin key is lost, and with it bytes that nobody had opened.
    """
    link, store, seals = aggregator.link, aggregator.store, aggregator.seals
    own = _own(aggregator, version)
    committed = commitment_to(own, seals.role)
    kept = store.versions.commitment(version)
    known = None if kept is None else _commitment(aggregator, version, kept, kept=True)
    state = CoinState(
        commitment=seals.write(SignedKind.COIN_COMMITMENT, committed),
        known=None if known is None else known.digest,
        held=store.versions.coin_opening(version, own=False),
        discard=store.versions.allowed(Permission.COIN, version) >= 0,
    )
    theirs = CoinState.from_bytes(link.exchange("coin-commitment", state.to_bytes()))
    commitment = _commitment(aggregator, version, theirs.commitment)
    own_lost = theirs.known not in (None, committed.digest)
    theirs_lost = known is not None and known.digest != commitment.digest
    if own_lost or theirs_lost:
        _mend(aggregator, version, state, theirs, own_lost=own_lost, theirs_lost=theirs_lost)
    store.versions.keep_commitment(version, theirs.commitment)
    reveal = CoinReveal(opening=seals.write(SignedKind.COIN_OPENING, own))
    answer = CoinReveal.from_bytes(link.exchange("coin-opening", reveal.to_bytes()))
    opening = seals.read(seals.other, SignedKind.COIN_OPENING, answer.opening, CoinOpening)
    if not hmac.compare_digest(commitment_to(opening, seals.other).digest, commitment.digest):
        raise PeerViolation(f"the other server opened another coin of version {version}")
    store.versions.keep_opening(version, answer.opening, own=False)
    a, b = (own, opening) if seals.role is Role.SERVER_A else (opening, own)
    return joint_coin(a, b)


def _own(aggregator: Aggregator, version: int) -> CoinOpening:
    seals = aggregator.seals
    given_back = aggregator.store.versions.coin_opening(version, own=True)
    if given_back is None:
        return aggregator.coin_key.opening(aggregator.task.digest, version)
    return seals.read(seals.role, SignedKind.COIN_OPENING, given_back, CoinOpening)


def _commitment(
    aggregator: Aggregator, version: int, sealed: SealMessage, *, kept: bool = False
) -> CoinCommitment:
    seals = aggregator.seals
    found = seals.read(seals.other, SignedKind.COIN_COMMITMENT, sealed, CoinCommitment, kept=kept)
    if (found.task, found.version) != (str(seals.task), version):
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
    store, seals = aggregator.store, aggregator.seals
    # From before the operators' word it isn't: the other would choose between two of its coins.
    if own_lost and theirs.held is not None and not store.versions.was_redrawn(version):
        given = seals.read(seals.role, SignedKind.COIN_OPENING, theirs.held, CoinOpening)
        if (given.task, given.version) != (str(seals.task), version):
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
