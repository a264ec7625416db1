"""Start an attempt: the joint coin says who is drawn; the cohort is whom both ledgers allow.

Each server's bytes for a version are a PRF under its own coin key, which lies beside
its signing key and never in the database: no cut link and no lost database draws anew.
Each signs a commitment to its bytes, keeps the other's durably, and only then opens its
own; for that version it accepts nothing but the opening of that commitment. Both keep
the opening before any client hears of the version (docs/protocol.md, "One attempt").
"""

import hashlib
import hmac
from collections.abc import Callable, Collection
from fractions import Fraction

from precad.aggregator import server_messages as messages
from precad.aggregator.attempt_states import Opened
from precad.aggregator.collect.matching import Places
from precad.aggregator.peer_link import SETUP_ATTEMPT
from precad.aggregator.rounds.aggregator import Aggregator
from precad.aggregator.server_messages import (
    Cohort,
    CoinCommitment,
    CoinOpening,
    Verdict,
)
from precad.aggregator.store import Store
from precad.aggregator.store.schema import Permission
from precad.common.errors import PeerUnavailable, PeerViolation, PrecadError
from precad.common.identifiers import ATTEMPTS, ClientId, Digest, Role, Secret
from precad.common.identity.signatures import SignedKind
from precad.common.ring import Keystream, derive, encode_context
from precad.common.roster import Roster
from precad.common.task import Task


def commitment_to(opening: CoinOpening, role: Role) -> CoinCommitment:
    """SHA-256 over role, task, version, salt and bytes."""
    task, salt, coin = (
        bytes.fromhex(i) for i in (opening.task, opening.salt, opening.coin)
    )
    parts = role.value.encode(), task, opening.version, salt, coin
    digest = hashlib.sha256(encode_context("coin-commitment", *parts)).hexdigest()
    return CoinCommitment(
        task=opening.task,
        version=opening.version,
        digest=digest,
    )


def joint_coin(a: CoinOpening, b: CoinOpening) -> Secret:
    """The coin of a version, from server A's and server B's opening."""
    both = Secret(bytes.fromhex(a.coin) + bytes.fromhex(b.coin))
    return derive(both, "coin", bytes.fromhex(a.task), a.version)


def cohort_of(
    coin: Secret,
    roster: Roster,
    client_rate: float,
    version: int,
) -> tuple[ClientId, ...]:
    """Return each enrolled client with probability q: PRF(coin; version, client) < q·2^64.

    No client's draw depends on who else is enrolled, or on their order.
    """
    threshold = int(Fraction(client_rate) * 2**64)

    def word(client: ClientId) -> int:
        stream = Keystream(coin, "cohort", version, client.encoded())
        return int.from_bytes(stream.read(8), "little")

    return tuple(client for client in roster if word(client) < threshold)


def draw(aggregator: Aggregator, version: int) -> tuple[ClientId, ...]:
    """Return whom a version's coin draws, once both agree on it.

    Raises as ``agree_coin``.
    """
    coin = agree_coin(aggregator, version)
    rate = aggregator.task.privacy.client_rate
    return cohort_of(coin, aggregator.roster, rate, version)


def agree_coin(aggregator: Aggregator, version: int) -> Secret:
    """Commit, keep the other's commitment, open, keep the other's opening; the joint coin.

    Raises PeerViolation: the other server opens something else than it committed to;
    PeerUnavailable: a server takes its lost bytes back, and the link starts anew with
    them; NeedsOperators: a coin key is lost, and with it bytes that nobody had opened.
    """
    link = aggregator.link
    store = aggregator.store
    signatures = aggregator.signatures
    own = _own(aggregator, version)
    committed = commitment_to(own, signatures.role)
    kept = store.versions.commitment(version)
    known = None if kept is None else _commitment(aggregator, version, kept, kept=True)
    state = messages.CoinState(
        commitment=signatures.sign(SignedKind.COIN_COMMITMENT, committed),
        known=None if known is None else known.digest,
        held=store.versions.coin_opening(version, own=False),
        discard=store.versions.allowed(Permission.COIN, version) >= 0,
    )
    theirs = messages.exchange(link, "coin-commitment", state)
    commitment = _commitment(aggregator, version, theirs.commitment)
    own_lost = theirs.known not in (None, committed.digest)
    theirs_lost = known is not None and known.digest != commitment.digest
    if own_lost or theirs_lost:
        _mend(
            aggregator,
            version,
            state=state,
            theirs=theirs,
            own_lost=own_lost,
            theirs_lost=theirs_lost,
        )
    store.versions.keep_commitment(version, theirs.commitment)
    kind = SignedKind.COIN_OPENING
    reveal = messages.CoinReveal(opening=signatures.sign(kind, own))
    answer = messages.exchange(link, "coin-opening", reveal)
    opening = signatures.check(signatures.other, kind, answer.opening, CoinOpening)
    if not hmac.compare_digest(
        commitment_to(opening, signatures.other).digest, commitment.digest
    ):
        raise PeerViolation(
            f"the other server opened another coin of version {version}"
        )
    store.versions.keep_opening(version, answer.opening, own=False)
    a, b = (own, opening) if signatures.role is Role.SERVER_A else (opening, own)
    return joint_coin(a, b)


def _own(aggregator: Aggregator, version: int) -> CoinOpening:
    signatures = aggregator.signatures
    kind = SignedKind.COIN_OPENING
    given_back = aggregator.store.versions.coin_opening(version, own=True)
    if given_back is None:
        return aggregator.coin_key.opening(aggregator.task.digest, version)
    return signatures.check(signatures.role, kind, given_back, CoinOpening)


def _commitment(
    aggregator: Aggregator,
    version: int,
    signed: messages.SignedMessage,
    *,
    kept: bool = False,
) -> CoinCommitment:
    signatures = aggregator.signatures
    kind = SignedKind.COIN_COMMITMENT
    found = signatures.check(
        signatures.other,
        kind,
        signed,
        CoinCommitment,
        kept=kept,
    )
    if (found.task, found.version) != (str(signatures.task), version):
        raise PeerViolation("a coin was committed to for another task or version")
    return found


def _mend(
    aggregator: Aggregator,
    version: int,
    *,
    state: messages.CoinState,
    theirs: messages.CoinState,
    own_lost: bool,
    theirs_lost: bool,
) -> None:
    """A server's bytes aren't those that it committed to: it lost its coin key."""
    store = aggregator.store
    signatures = aggregator.signatures
    # From before the operators' word it isn't: the other would choose between two of
    # its coins.
    if own_lost and theirs.held is not None and not store.versions.was_redrawn(version):
        given = signatures.check(
            signatures.role, SignedKind.COIN_OPENING, theirs.held, CoinOpening
        )
        if (given.task, given.version) != (str(signatures.task), version):
            raise PeerViolation(
                "the other server gave back a coin of another task or version"
            )
        store.versions.keep_opening(version, theirs.held, own=True)
        raise PeerUnavailable("this server took back the coin bytes that it had signed")
    if theirs_lost and state.held is not None:
        raise PeerUnavailable(
            "the other server takes back the coin bytes that it had signed"
        )
    if not (state.discard and theirs.discard):
        what = "a server's coin key isn't the one that it has drawn with"
        raise NeedsOperators(Permission.COIN, version, what)
    # First: where no new key can be kept nothing is forgotten, and no old coin is drawn
    # again.
    aggregator.coin_key.renew()
    store.versions.discard_coin(version)
    raise PeerUnavailable(f"both servers take new coins for version {version}")


def propose(
    aggregator: Aggregator,
    *,
    attempt: int,
    version: int,
    drawn: Collection[ClientId],
    model: Digest,
) -> Opened:
    """A's part: propose whom its own ledger allows, and open the attempt once B agrees.

    Raises NeedsOperators; PeerViolation: B refuses, or answers with somebody who wasn't
    proposed; PeerUnavailable: the attempt's number was used, as B has learned since
    they met.
    """
    within = aggregator.within_budget(drawn, version)
    why = doubt(aggregator.store, aggregator.task, attempt=attempt, version=version)
    # By places in the roster, which both servers have signed.
    places = Places(aggregator.roster)
    proposal = Cohort(
        attempt=attempt,
        clients=places.steps(within),
        model=str(model),
        doubt=why,
    )
    verdict = _ask(aggregator, proposal)
    if why or verdict.operators:
        raise NeedsOperators(Permission.ATTEMPTS, version, why or verdict.refusal)
    if verdict.refusal:
        # Where its number was used the servers meet again, and take the larger one.
        kind = PeerUnavailable if verdict.used else PeerViolation
        raise kind(f"server B refused attempt {attempt}: {verdict.refusal}")
    counted = set(places.clients(verdict.clients))
    if not counted <= set(within):
        raise PeerViolation(
            "server B's cohort isn't made of the clients that A proposed"
        )
    opened = _opened(
        aggregator,
        attempt=attempt,
        version=version,
        counted=counted,
        model=model,
    )
    aggregator.link.begin_attempt(attempt)
    return opened


def say_over(aggregator: Aggregator, attempt: int, model: Digest) -> None:
    """A's part: tell B that no attempt follows the final model.

    Raises PeerViolation.
    """
    over = Cohort(
        attempt=attempt,
        clients=(),
        model=str(model),
        over=True,
    )
    refusal = _ask(aggregator, over).refusal
    if refusal:
        raise PeerViolation(f"server B refused the training's end: {refusal}")


def answer(
    aggregator: Aggregator,
    version: int,
    drawn: Collection[ClientId],
    model: Digest,
    *,
    before_agreeing: Callable[[Opened], None],
) -> Opened | None:
    """B's part: check A's proposal against the coin, its own ledger and model.

    All being well, ``before_agreeing`` opens the inbox, so that no client that A calls
    finds it closed. None when A says that training is over.

    Raises NeedsOperators; PeerViolation: A proposes somebody whom the coin didn't draw,
    or another model; PeerUnavailable: it proposes an attempt that was used before, and
    they meet again.
    """
    link = aggregator.link
    link.begin_attempt(SETUP_ATTEMPT)
    proposal = Cohort.from_bytes(link.receive("cohort"))
    attempt = proposal.attempt
    places = Places(aggregator.roster)
    proposed = set(places.clients(proposal.clients))
    refusal = ""
    why = ""
    used = False
    strangers = sorted(map(str, proposed - set(drawn)))
    if strangers:
        refusal = f"the coin didn't draw {strangers[:3]}"
    elif proposal.model != str(model):
        refusal = f"A's model is {proposal.model}, B's is {model}"
    elif (
        used := not proposal.over and attempt < aggregator.store.attempts.next_number()
    ):
        refusal = f"attempt {attempt} was used before"
    elif not proposal.over:
        why = proposal.doubt or doubt(
            aggregator.store, aggregator.task, attempt=attempt, version=version
        )
    if refusal or why:
        verdict = Verdict(
            refusal=refusal or why,
            operators=bool(why),
            used=used,
        )
        link.send("cohort", verdict.to_bytes())
        if why:
            raise NeedsOperators(Permission.ATTEMPTS, version, why)
        kind = PeerUnavailable if used else PeerViolation
        raise kind(f"server A's proposal for attempt {attempt}: {refusal}")
    if proposal.over:
        link.send("cohort", Verdict().to_bytes())
        return None
    counted = aggregator.within_budget(sorted(proposed), version)
    opened = _opened(
        aggregator,
        attempt=attempt,
        version=version,
        counted=counted,
        model=model,
    )
    before_agreeing(opened)
    link.send("cohort", Verdict(clients=places.steps(counted)).to_bytes())
    link.begin_attempt(attempt)
    return opened


def _opened(
    aggregator: Aggregator,
    *,
    attempt: int,
    version: int,
    counted: Collection[ClientId],
    model: Digest,
) -> Opened:
    """Open it here, durably.

    Raises PeerViolation: no number is left for the one after it.
    """
    if attempt >= ATTEMPTS:
        why = (
            "the last number that there is: no server that follows the protocol has"
            " come to it"
        )
        raise PeerViolation(f"attempt {attempt} is {why}")
    task = aggregator.task
    roster = aggregator.roster
    cohort = tuple(sorted(roster if task.privacy.cover_uploads else counted))
    aggregator.store.attempts.begin(
        attempt=attempt,
        version=version,
        cohort_size=len(cohort),
        model=model,
    )
    holders = {} if task.proof is None else roster.seed_holders(task.digest)
    return Opened(
        attempt=attempt,
        version=version,
        cohort=cohort,
        model=model,
        counted=frozenset(counted),
        seed_holders=holders,
    )


def _ask(aggregator: Aggregator, proposal: Cohort) -> Verdict:
    aggregator.link.begin_attempt(SETUP_ATTEMPT)
    return Verdict.from_bytes(aggregator.link.exchange("cohort", proposal.to_bytes()))


OPENED_CAP = 3
"""Attempts of one version whose comparisons may be opened before the operators are
asked: in each a server that departs from the protocol reads a bit of X. Of proofs it
reads none, and attempts are only counted (docs/cheating-server.md)."""
GRANTED = 3
"""Attempts that one word of the operators allows."""
_WHY = {
    Permission.ATTEMPTS: "go on trying",
    Permission.WRITE_OFF: (
        "write off the attempt that the other server has lost (its charge stands)"
    ),
    Permission.CLAIMED: f"charge them all the same ({GRANTED} with each word)",
    Permission.COIN: "take new coins, because a server has lost its coin key",
}


class NeedsOperators(PrecadError):
    """Only the operators of both servers can decide how to go on; it is asked again and again."""

    def __init__(self, permission: Permission, version: int, what: str) -> None:
        super().__init__(
            f"version {version} waits for the operators of both servers: {what}. To"
            f" {_WHY[permission]}, each says to its own server: precad allow"
            f" {permission.value} HOST:PORT --server a|b --version {version} --identity"
            " FOLDER"
        )
        self.permission = permission
        self.version = version


def doubt(
    store: Store,
    task: Task,
    *,
    attempt: int,
    version: int,
) -> str:
    """Why another attempt of ``version`` needs the operators' word; empty when it needs none."""
    if attempt <= store.versions.allowed(Permission.ATTEMPTS, version):
        return ""
    if any(not fact.voided for fact in store.ledger.facts(version)):
        return "a release of it may have left already, and another one costs privacy"
    opened = store.versions.opened(version)
    if opened >= OPENED_CAP and task.has_dealer:
        return f"the comparisons of {opened} of its attempts were opened"
    tried = store.attempts.count_of(version)
    if tried >= task.training.attempts:
        return f"{tried} attempts failed (training.attempts = {task.training.attempts})"
    return ""
