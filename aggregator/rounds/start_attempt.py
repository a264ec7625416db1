"""Start an attempt: draw clients by the joint coin, and keep those both ledgers allow.

Each server's bytes for a version are a PRF of the version under its own coin key. That
key lies beside the server's signing key and never in the database: no cut link and no
lost database draws anew. Each server signs a commitment to its bytes, keeps the other's
commitment durably, and only then opens its own; for that version it accepts nothing but
the opening of that commitment. Both keep the opening before any client hears of the
version (docs/protocol.md, "One attempt").
"""

import hmac
from collections.abc import Callable, Collection
from fractions import Fraction

from precad.aggregator import (
    SETUP_ATTEMPT,
    Cohort,
    CoinCommitment,
    CoinOpening,
    Opened,
    Verdict,
)
from precad.aggregator import server_messages as messages
from precad.aggregator.collect import Places
from precad.aggregator.rounds.aggregator import Aggregator
from precad.aggregator.store import Permission, Store
from precad.common import (
    ATTEMPTS,
    ClientId,
    Digest,
    Keystream,
    PeerUnavailable,
    PeerViolation,
    PrecadError,
    Role,
    Roster,
    Secret,
    Task,
    derive,
    digest_of,
)
from precad.common.identity import SignedKind


def commitment_to(opening: CoinOpening, role: Role) -> CoinCommitment:
    """Return a server's commitment: SHA-256 of role, task, version, salt and bytes."""
    digest = digest_of(
        "coin-commitment",
        role.value.encode(),
        opening.task,
        opening.version,
        opening.salt,
        opening.coin,
    )
    return CoinCommitment(
        task=opening.task,
        version=opening.version,
        digest=digest.value,
    )


def joint_coin(a: CoinOpening, b: CoinOpening) -> Secret:
    """Return a version's joint coin from server A's and server B's opening."""
    return derive(Secret(a.coin + b.coin), "coin", a.task, a.version)


def cohort_of(
    coin: Secret,
    roster: Roster,
    client_rate: float,
    version: int,
) -> tuple[ClientId, ...]:
    """Draw each enrolled client with probability q, the task's ``client_rate``.

    A client is drawn where PRF(coin; version, client) < q·2^64. No client's draw
    depends on who else is enrolled, or on their order.
    """
    threshold = int(Fraction(client_rate) * 2**64)

    def pseudo_random_word(client: ClientId) -> int:
        stream = Keystream(coin, "cohort", version, client.encoded())
        return stream.words(1).item() % 2**64

    return tuple(client for client in roster if pseudo_random_word(client) < threshold)


def draw(aggregator: Aggregator, version: int) -> tuple[ClientId, ...]:
    """Return the clients whom a version's coin draws, once both servers agree on it.

    Raises as ``agree_coin``.
    """
    coin = agree_coin(aggregator, version)
    rate = aggregator.task.mechanism.owner_rate
    return cohort_of(coin, aggregator.roster, rate, version)


def agree_coin(aggregator: Aggregator, version: int) -> Secret:
    """Agree on a version's coin with the other server, and return it.

    Each server commits to its bytes, keeps the other's commitment, opens its own bytes
    and keeps the other's opening, in this order.

    Raises PeerViolation: the other server opens something else than it committed to;
    PeerUnavailable: the link breaks, or a server takes its lost bytes back, and a new
    link starts with them; NeedsOperators: a coin key is lost, and with it bytes that
    nobody had opened; StorageFailure: the database fails.
    """
    link = aggregator.link
    versions = aggregator.store.versions
    signatures = aggregator.signatures
    own_opening = _own(aggregator, version)
    own_commitment = commitment_to(own_opening, signatures.role)
    kept = versions.commitment(version)
    known = None if kept is None else _commitment(aggregator, version, kept, kept=True)
    own_state = messages.CoinState(
        commitment=signatures.sign(SignedKind.COIN_COMMITMENT, own_commitment),
        known=None if known is None else known.digest,
        held=versions.coin_opening(version, own=False),
        discard=versions.allowed(Permission.COIN, version) >= 0,
    )
    their_state = messages.exchange(link, "coin-commitment", own_state)
    their_commitment = _commitment(aggregator, version, their_state.commitment)
    own_lost = their_state.known not in (None, own_commitment.digest)
    theirs_lost = known is not None and known.digest != their_commitment.digest
    if own_lost or theirs_lost:
        _mend(
            aggregator,
            version,
            own_state=own_state,
            their_state=their_state,
            own_lost=own_lost,
            theirs_lost=theirs_lost,
        )
    versions.keep_commitment(version, their_state.commitment)
    kind = SignedKind.COIN_OPENING
    own_reveal = messages.CoinReveal(opening=signatures.sign(kind, own_opening))
    their_reveal = messages.exchange(link, "coin-opening", own_reveal)
    their_opening = signatures.check(
        signatures.other, kind, their_reveal.opening, CoinOpening
    )
    if not hmac.compare_digest(
        commitment_to(their_opening, signatures.other).digest, their_commitment.digest
    ):
        raise PeerViolation(
            f"the other server opened another coin of version {version}"
        )
    versions.keep_opening(version, their_reveal.opening, own=False)
    if signatures.role is Role.SERVER_A:
        return joint_coin(own_opening, their_opening)
    return joint_coin(their_opening, own_opening)


def _own(aggregator: Aggregator, version: int) -> CoinOpening:
    """Return this server's bytes for a version: what it took back, or its key's."""
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
    """Return the other server's commitment to its bytes, which it has ``signed``.

    ``kept``: it comes from this server's database. Raises PeerViolation: the other
    server hasn't signed it, or it is for another task or version.
    """
    signatures = aggregator.signatures
    commitment = signatures.check(
        signatures.other,
        SignedKind.COIN_COMMITMENT,
        signed,
        CoinCommitment,
        kept=kept,
    )
    if (commitment.task, commitment.version) != (signatures.task.value, version):
        raise PeerViolation("a coin was committed to for another task or version")
    return commitment


def _mend(
    aggregator: Aggregator,
    version: int,
    *,
    own_state: messages.CoinState,
    their_state: messages.CoinState,
    own_lost: bool,
    theirs_lost: bool,
) -> None:
    """Mend a lost coin key: a server's bytes aren't those that it committed to.

    For ``agree_coin``; it always raises. Raises PeerUnavailable: the servers meet
    again, with the old bytes or with new ones; NeedsOperators: the operators of both
    servers must allow new ones; PeerViolation: what the other server gives back isn't
    this server's opening of this version.
    """
    store = aggregator.store
    signatures = aggregator.signatures
    held_there = their_state.held
    # An opening from before the operators' word isn't taken back: the other server
    # would choose between two coins of this server.
    if own_lost and held_there is not None and not store.versions.was_redrawn(version):
        given_back = signatures.check(
            signatures.role, SignedKind.COIN_OPENING, held_there, CoinOpening
        )
        if (given_back.task, given_back.version) != (signatures.task.value, version):
            raise PeerViolation(
                "the other server gave back a coin of another task or version"
            )
        store.versions.keep_opening(version, held_there, own=True)
        raise PeerUnavailable("this server took back the coin bytes that it had signed")
    if theirs_lost and own_state.held is not None:
        raise PeerUnavailable(
            "the other server takes back the coin bytes that it had signed"
        )
    if not (own_state.discard and their_state.discard):
        raise NeedsOperators(
            Permission.COIN,
            version,
            "a server's coin key isn't the one that it has drawn with",
        )
    # The new key is kept first: where that fails nothing is forgotten, and no old coin
    # is drawn again.
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
    """Play A's part: propose whom A's ledger allows, and open the attempt with B.

    ``drawn`` are the clients whom the coin draws, ``model`` is θ_t's digest. The
    attempt is opened once B agrees.

    Raises NeedsOperators: the operators must allow one more attempt; PeerViolation: B
    refuses, or answers with somebody who wasn't proposed; PeerUnavailable: the link
    breaks, or the attempt's number was used, as B has learned since they met.
    """
    within_budget = aggregator.within_budget(drawn, version)
    own_doubt = doubt(
        aggregator.store, aggregator.task, attempt=attempt, version=version
    )
    # Clients are named by their places in the roster, which both servers have signed.
    places = Places(aggregator.roster)
    proposal = Cohort(
        attempt=attempt,
        clients=places.steps(within_budget),
        model=model.value,
        doubt=own_doubt,
    )
    verdict = _ask(aggregator, proposal)
    if own_doubt or verdict.operators:
        raise NeedsOperators(Permission.ATTEMPTS, version, own_doubt or verdict.refusal)
    if verdict.refusal:
        # Where the attempt's number was used the servers meet again, and take the
        # larger one.
        error = PeerUnavailable if verdict.used else PeerViolation
        raise error(f"server B refused attempt {attempt}: {verdict.refusal}")
    counted = set(places.clients(verdict.clients))
    if not counted <= set(within_budget):
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
    """Play A's part: tell B that no attempt follows the final model.

    ``attempt`` is the number that the next one would have. Raises PeerUnavailable;
    PeerViolation: B refuses.
    """
    over = Cohort(
        attempt=attempt,
        clients=(),
        model=model.value,
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
    """Play B's part: check A's proposal against the coin, B's ledger and B's model.

    ``drawn`` are the clients whom the coin draws, ``model`` is θ_t's digest. If all is
    well, ``before_agreeing`` opens the inbox before A hears of it, so that no client
    that A calls finds it closed. Return None when A says that the training is over.

    Raises NeedsOperators: the operators must allow one more attempt; PeerViolation: A
    proposes somebody whom the coin didn't draw, or another model; PeerUnavailable: the
    link breaks, or A proposes an attempt that was used before, and the servers meet
    again.
    """
    link = aggregator.link
    link.begin_attempt(SETUP_ATTEMPT)
    proposal = Cohort.from_bytes(link.receive("cohort"))
    attempt = proposal.attempt
    places = Places(aggregator.roster)
    proposed = set(places.clients(proposal.clients))
    refusal = ""
    doubts = ""
    used = False
    not_drawn = sorted(map(str, proposed - set(drawn)))
    if not_drawn:
        refusal = f"the coin didn't draw {not_drawn[:3]}"
    elif proposal.model != model.value:
        refusal = f"A's model is {proposal.model.hex()}, B's is {model}"
    elif not proposal.over:
        used = attempt < aggregator.store.attempts.next_number()
        if used:
            refusal = f"attempt {attempt} was used before"
        else:
            doubts = proposal.doubt or doubt(
                aggregator.store, aggregator.task, attempt=attempt, version=version
            )
    if refusal or doubts:
        verdict = Verdict(
            refusal=refusal or doubts,
            operators=bool(doubts),
            used=used,
        )
        link.send("cohort", verdict.to_bytes())
        if doubts:
            raise NeedsOperators(Permission.ATTEMPTS, version, doubts)
        error = PeerUnavailable if used else PeerViolation
        raise error(f"server A's proposal for attempt {attempt}: {refusal}")
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
    """Open the attempt on this server, durably, and return its state.

    ``counted`` are the clients who are summed and charged. Raises PeerViolation: no
    number is left for the attempt after it, or its number was used before.
    """
    if attempt >= ATTEMPTS:
        raise PeerViolation(
            f"attempt {attempt} is the last number that there is: no server that"
            " follows the protocol has come to it"
        )
    task = aggregator.task
    roster = aggregator.roster
    cohort = tuple(sorted(roster if task.mechanism.hides_coin else counted))
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
        asleep=aggregator.store.versions.asleep(version, task.mechanism),
        seed_holders=holders,
    )


def _ask(aggregator: Aggregator, proposal: Cohort) -> Verdict:
    aggregator.link.begin_attempt(SETUP_ATTEMPT)
    return Verdict.from_bytes(aggregator.link.exchange("cohort", proposal.to_bytes()))


OPENED_CAP = 3
"""How many attempts of one version may be opened before the operators are asked.

In each attempt whose comparisons are opened, a server that departs from the protocol
reads a bit of X. Of proofs it reads none, and such attempts are only counted
(docs/cheating-server.md).
"""
GRANTED = 3
"""How many attempts one word of the operators allows."""
ROUNDS_BELOW = 3
"""Rounds in a row with too few owners after which the operators are asked, and which
one word of theirs allows."""
_ALLOWS = {
    Permission.ATTEMPTS: "go on trying",
    Permission.WRITE_OFF: (
        "write off the attempt that the other server has lost (its charge stands)"
    ),
    Permission.CLAIMED: f"charge them all the same ({GRANTED} with each word)",
    Permission.COIN: "take new coins, because a server has lost its coin key",
    Permission.FEW: f"play {ROUNDS_BELOW} more rounds all the same",
}
"""What each permission of the operators allows, as their error says it."""


class NeedsOperators(PrecadError):
    """Only the operators of both servers can decide how to go on.

    The servers ask again and again until they have decided.
    """

    def __init__(self, permission: Permission, version: int, reason: str) -> None:
        super().__init__(
            f"version {version} waits for the operators of both servers: {reason}. To"
            f" {_ALLOWS[permission]}, each says to its own server: precad allow"
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
    """Return why one more attempt of ``version`` needs the operators' word.

    ``attempt`` is that attempt's number. Empty where it needs no word.
    """
    if attempt <= store.versions.allowed(Permission.ATTEMPTS, version):
        return ""
    if any(not fact.voided for fact in store.ledger.facts(version)):
        return "a release of it may have left already, and another one costs privacy"
    opened = store.versions.opened(version)
    if opened >= OPENED_CAP and task.has_dealer:
        return f"the comparisons of {opened} of its attempts were opened"
    tried = store.attempts.count_of(version)
    if tried >= task.mechanism.attempts:
        return (
            f"{tried} attempts failed (training.attempts = {task.mechanism.attempts})"
        )
    return ""


def rounds_below_least(store: Store, task: Task, version: int) -> int:
    """Return how many of the newest rounds in a row counted too few owners.

    Fewer than ``training.least_counted``, or nobody where the task wishes nothing. At
    most ``ROUNDS_BELOW`` are looked at. ``version`` is the one that is open; what
    counted is what both ledgers charge.
    """
    least = task.training.least_counted or 1
    below = 0
    while below < min(version, ROUNDS_BELOW):
        if len(store.ledger.charges_in(version - below - 1)) >= least:
            break
        below += 1
    return below


def agree_enough_counted(aggregator: Aggregator, version: int) -> None:
    """Agree with the other server that a version may be played, by who counted lately.

    Both pause where either finds too few owners in ``ROUNDS_BELOW`` rounds in a row,
    unless its operators have said in one of them that it may go on.

    Raises NeedsOperators: both pause; PeerUnavailable: the link breaks.
    """
    task = aggregator.task
    versions = aggregator.store.versions
    least = task.training.least_counted
    if least is None or version == task.mechanism.releases:
        return
    lately = range(version - ROUNDS_BELOW + 1, version + 1)
    too_few = rounds_below_least(aggregator.store, task, version) == ROUNDS_BELOW
    word = any(versions.allowed(Permission.FEW, each) >= 0 for each in lately)
    own = bytes([too_few and not word])
    if own + aggregator.link.exchange("counted", own) != bytes(2):
        raise NeedsOperators(
            Permission.FEW,
            version,
            f"fewer than training.least_counted = {least} owners counted in each of the"
            f" last {ROUNDS_BELOW} rounds",
        )
