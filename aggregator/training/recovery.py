"""Decide what becomes of an attempt that a break interrupted, and do it.

An attempt is first *prepared*: charged, and the noisy share is persisted. Then
*countersigned*: this server has signed that it is prepared too. Then *sent*: this
server holds the other's countersignature, and the share may have left. Then *done*.
A share leaves only after both servers are prepared, and it never changes. So:

| here | there | then |
| --- | --- | --- |
| nothing prepared | nothing prepared | a new attempt |
| prepared | prepared, the same attempt | the release goes on where it stopped |
| prepared, nothing countersigned | nothing prepared | void: it costs nothing |
| countersigned or sent | nothing prepared | lost there: both operators decide |
| countersigned or sent | another prepared, not countersigned | that one is void |
| done | not done | the other takes the model, whose digest it has signed itself |

The same comparison is made again after each remedy, until nothing is left to do. It is
the plan of `release_model` (tests/model). A search has gone through that model with
cuts, crashes and replaced databases.
"""

from collections.abc import Iterable, Sequence
from enum import Enum
from typing import NamedTuple, assert_never

from precad.aggregator import (
    Counted,
    Evidence,
    Fact,
    HeadBody,
    Opened,
    PeerLink,
    Position,
    Prepared,
    countersign,
    reconstruct,
)
from precad.aggregator import server_messages as messages
from precad.aggregator.rounds.aggregator import Aggregator
from precad.aggregator.rounds.start_attempt import NeedsOperators
from precad.aggregator.store import (
    AttemptState,
    Permission,
    ReleaseRecord,
    history_after,
)
from precad.aggregator.training import Session, Steps, keep, say_kept
from precad.common import (
    ClientId,
    Digest,
    Misconfiguration,
    PeerUnavailable,
    PeerViolation,
    byte_view,
    digest_of_model,
    log,
)
from precad.common.identity import SignedKind
from precad.common.model import from_bytes


class Remedy(Enum):
    """Name what this server does about the newest attempt before a new one may open."""

    NOTHING = "nothing"
    RELEASE = "release"
    """Go on with the release: both servers are prepared and neither is done."""
    VOID = "void"
    """Void it: this server alone is prepared, and has countersigned nothing."""
    CONFIRM_VOID = "confirm-void"
    """Void it: the other server alone is prepared, and has countersigned nothing."""
    LOST = "lost"
    """This server has countersigned or sent, and the other isn't prepared."""
    LEARN_LOST = "learn-lost"
    """The other server has countersigned or sent, and this one isn't prepared."""
    SERVE = "serve"
    """Send the other server the model that it lacks."""
    CATCH_UP = "catch-up"
    """Take the model that this server lacks from the other server."""


class Recovery(NamedTuple):
    """Hold a remedy, and the attempt that it is about."""

    remedy: Remedy
    attempt: int = -1
    """-1 where the remedy is about no attempt."""


def compare(own: Position, theirs: Position) -> Recovery:
    """Return what this server does about the newest attempt.

    The other server makes the same comparison, and its remedy fits this one.

    Raises PeerViolation: the servers' trainings, attempts or valid sets differ.
    """
    if own.version > theirs.version:
        return Recovery(Remedy.SERVE)
    if own.version < theirs.version:
        return Recovery(Remedy.CATCH_UP)
    if own.model != theirs.model:
        raise PeerViolation(
            f"the servers' trainings differ: after {own.version} rounds model"
            f" {own.model.hex()} here, {theirs.model.hex()} there. Restore both"
            " servers' newest state, or start a new task"
        )
    here = own.prepared
    there = theirs.prepared
    if here is None:
        if there is None:
            return Recovery(Remedy.NOTHING)
        remedy = Remedy.LEARN_LOST if there.bound else Remedy.CONFIRM_VOID
        return Recovery(remedy, there.attempt)
    if there is None:
        remedy = Remedy.LOST if here.bound else Remedy.VOID
        return Recovery(remedy, here.attempt)
    if here.attempt != there.attempt and here.bound != there.bound:
        # One server's database was put back from an old copy. Nothing has left of the
        # attempt that isn't bound.
        if here.bound:
            return Recovery(Remedy.CONFIRM_VOID, there.attempt)
        return Recovery(Remedy.VOID, here.attempt)
    if (here.attempt, here.valid_set) != (there.attempt, there.valid_set):
        raise PeerViolation(
            "the servers prepared different attempts, or different valid sets, of one"
            " version"
        )
    return Recovery(Remedy.RELEASE, here.attempt)


def settled(facts: Iterable[Fact], *pending: int | None) -> tuple[Fact, ...]:
    """Return the facts without those of ``pending`` attempts, which aren't finished."""
    return tuple(fact for fact in facts if fact.attempt not in pending)


def adoptable(
    start: Digest,
    evidence: Sequence[Evidence],
    signed: HeadBody | None,
    heard: range = range(0),
) -> tuple[Fact, ...]:
    """Return those of the other server's facts that this server takes into its ledger.

    ``evidence`` is what the other server shows, version by version from version 0.
    ``start`` is the digest of the history before that version. Taken are

    - all facts up to the newest head that this server ``signed``, as the other server
      kept it: this server's own signature stands for them;
    - at most one charge more: the attempt that the other server has prepared and
      countersigned or sent, or that its journal remembers. Nobody can invent others;
    - all voids: they charge nobody, and don't touch what this server has countersigned;
    - charges of attempts that were ``heard`` of: this server has forgotten them, and
      the dealer, an owner or the other server has named them to it. They are charged
      anyway (``training.reconcile``).
    """
    pending = evidence[0].pending if evidence else None
    facts = [fact for of_version in evidence for fact in of_version.facts]
    unsigned = [] if pending is None else [pending]
    unsigned += [fact for fact in facts if fact.voided or fact.attempt in heard]
    if signed is None or signed.version >= len(evidence):
        return tuple(unsigned)
    earlier = evidence[: signed.version]
    history = start
    for of_version in earlier:
        history = history_after(history, of_version.facts)
    last = [
        fact
        for fact in evidence[signed.version].facts
        if fact.attempt <= signed.attempt
    ]
    last_attempts = {fact.attempt for fact in last}
    if (
        pending is not None
        and pending.attempt == signed.attempt
        and pending.attempt not in last_attempts
    ):
        last.append(pending)
    if history_after(history, last).value != signed.history:
        return tuple(unsigned)
    return (
        *(fact for of_version in earlier for fact in of_version.facts),
        *last,
        *unsigned,
    )


def recover(session: Session, aggregator: Aggregator, recovery: Recovery) -> None:
    """Apply one remedy for what a break interrupted; then the servers compare again.

    Raises PeerUnavailable; PeerViolation: the other server does something else;
    NeedsOperators: one server lost an attempt that may have left; StorageFailure: the
    disk or the database fails.
    """
    log.info("after a break: %s", recovery.remedy.value)
    match recovery.remedy:
        case Remedy.RELEASE:
            _release(session, aggregator)
        case Remedy.VOID | Remedy.CONFIRM_VOID as remedy:
            _void(
                session,
                aggregator,
                recovery.attempt,
                prepared_here=remedy is Remedy.VOID,
            )
        case Remedy.LOST:
            _give_up(session, aggregator)
        case Remedy.LEARN_LOST:
            _learn_lost(session, aggregator, recovery.attempt)
        case Remedy.SERVE:
            _serve(session, aggregator)
        case Remedy.CATCH_UP:
            _catch_up(session, aggregator)
        case Remedy.NOTHING:
            raise AssertionError("there is nothing to remedy")
        case never:
            assert_never(never)


def _release(session: Session, aggregator: Aggregator) -> None:
    """Go on with the release of the pending attempt, to the next model."""
    steps = Steps(session.clock)
    sent = countersign(aggregator, _prepared_again(session))
    finished = reconstruct(aggregator, sent, session.model_store.theta())
    steps.over("release")
    keep(
        session,
        sent.counted,
        finished.theta,
        finished.model,
        steps,
        step=finished.step,
    )
    say_kept(session, aggregator.link)


def _void(
    session: Session,
    aggregator: Aggregator,
    attempt: int,
    *,
    prepared_here: bool,
) -> None:
    """Keep, and tell the other server signed, that the attempt isn't prepared on both.

    Both servers do so. It is durable first where the attempt isn't prepared, so that it
    never can be; the server that holds it voids it only after that.
    """
    link = aggregator.link
    signatures = aggregator.signatures
    version = session.version
    own = messages.VoidBody(
        task=session.task.digest.value,
        version=version,
        attempt=attempt,
    )

    def require_their_void() -> None:
        answer = messages.SignedMessage.from_bytes(link.receive("void"))
        theirs = signatures.check(
            signatures.other, SignedKind.NOT_PREPARED, answer, type(own)
        )
        if theirs != own:
            raise PeerViolation("the other server voids another attempt")

    if prepared_here:
        require_their_void()
    session.store.attempts.void(version, attempt)
    link.send("void", signatures.sign(SignedKind.NOT_PREPARED, own).to_bytes())
    if not prepared_here:
        require_their_void()


def _give_up(session: Session, aggregator: Aggregator) -> None:
    """Write off an attempt that the other server has lost, on both operators' word.

    The other server learns of its charge at once.
    """
    record = _pending(session)
    aggregator.link.send("lost", record.fact().to_bytes())
    _require_write_off(session, aggregator, record.fact())
    session.store.attempts.end(record.attempt, AttemptState.WRITTEN_OFF)


def _learn_lost(session: Session, aggregator: Aggregator, attempt: int) -> None:
    """Take the charge of an attempt that this server has lost and the other shows.

    The other server plays ``_give_up``. Raises PeerViolation: it shows another attempt.
    """
    fact = Fact.from_bytes(aggregator.link.receive("lost"))
    if (fact.version, fact.attempt, fact.voided) != (session.version, attempt, False):
        raise PeerViolation(
            "the other server shows another attempt than the one it has prepared"
        )
    session.store.attempts.learn([fact])
    _require_write_off(session, aggregator, fact)


def _require_write_off(session: Session, aggregator: Aggregator, fact: Fact) -> None:
    require_word(
        session,
        aggregator.link,
        Permission.WRITE_OFF,
        version=fact.version,
        attempt=fact.attempt,
        reason=f"a database was replaced, and attempt {fact.attempt} may have left",
    )


def require_word(
    session: Session,
    link: PeerLink,
    permission: Permission,
    *,
    version: int,
    attempt: int,
    reason: str,
) -> None:
    """Check that both servers' operators allow something of a version up to an attempt.

    Raises NeedsOperators, with ``reason``: the operators of one server don't.
    """
    own = session.store.versions.allowed(permission, version) >= attempt
    theirs = link.exchange("word", bytes([own]))
    if not own or theirs != bytes([True]):
        raise NeedsOperators(permission, version, reason)


def _serve(session: Session, aggregator: Aggregator) -> None:
    """Send the newest model, with the other server's own signature over its digest.

    Raises PeerUnavailable: that signature isn't kept here, or the link breaks.
    """
    signatures = aggregator.signatures
    current = session.model_store.current
    version = current.version
    body = messages.ModelBody(
        task=session.task.digest.value,
        version=version,
        digest=current.digest.value,
    )
    kept = (
        session.store.versions.model_seal(version),
        session.model_store.signature(),
    )
    their_signatures = [
        signed
        for signed in kept
        if signed and messages.read_body(signed.body, type(body)) == body
    ]
    if not their_signatures:
        # Both servers were put back, and an owner came to this one first: it is on its
        # way to the other server too.
        raise PeerUnavailable(
            f"the other server lacks model {version}, and its signature over it isn't"
            " kept here, as after an owner gave the model back: the other server waits"
            " for an owner to give it there too, or for its operator to put its newest"
            " model file in place"
        )
    transfer = messages.ModelTransfer(
        version=version,
        signed=their_signatures[0],
        own=signatures.sign(SignedKind.MODEL, body),
    )
    aggregator.link.send("transfer", transfer.to_bytes())
    aggregator.link.send("model-bytes", byte_view(session.model_store.theta()))
    aggregator.link.receive("transferred")


def _catch_up(session: Session, aggregator: Aggregator) -> None:
    """Take a model that this server has signed itself, and finish what led to it.

    Raises PeerUnavailable; PeerViolation: the other server sends something else than
    both servers signed, or this server's ledger lacks a charge; StorageFailure: the
    disk or the database fails.
    """
    signatures = aggregator.signatures
    link = aggregator.link
    task = session.task
    store = session.store
    transfer = messages.ModelTransfer.from_bytes(link.receive("transfer"))
    signed_version = transfer.version
    model_bytes = link.receive("model-bytes")
    signed_here = signatures.check(
        signatures.role, SignedKind.MODEL, transfer.signed, messages.ModelBody
    )
    signed_there = signatures.check(
        signatures.other, SignedKind.MODEL, transfer.own, messages.ModelBody
    )
    try:
        theta = from_bytes(model_bytes, task.dimension)
    except Misconfiguration as error:
        raise PeerViolation(
            f"the other server sent no model of this task: {error}"
        ) from None
    digest = digest_of_model(task, signed_version, theta)
    expected = messages.ModelBody(
        task=task.digest.value,
        version=signed_version,
        digest=digest.value,
    )
    if not signed_here == signed_there == expected:
        raise PeerViolation(
            "the other server's model isn't the one that both servers signed"
        )
    pending = store.attempts.pending()
    for version in range(session.version, signed_version):
        if all(fact.voided for fact in store.ledger.facts(version)):
            raise PeerViolation(
                f"this server's ledger has no charge for version {version}, which is"
                " over: model and ledger don't belong together. Restore this server's"
                " newest state"
            )
    store.versions.keep_model_seal(signed_version, transfer.own)
    if pending is not None and pending.version == signed_version - 1:
        keep(
            session,
            _prepared_again(session).counted,
            theta,
            digest,
            Steps(session.clock),
        )
    else:
        session.model_store.put(signed_version, theta, transfer.own, digest)
    link.send("transferred", b"")


def _prepared_again(session: Session) -> Prepared:
    """Return the pending attempt's prepared state, as the database kept it."""
    record = _pending(session)
    kept = session.store.ledger.submissions(attempt=record.attempt)
    opened = Opened(
        attempt=record.attempt,
        version=record.version,
        # The whole cohort isn't needed any more: who counts and who doesn't is known.
        cohort=tuple(sorted({*record.valid, *record.rejections})),
        model=record.model,
        counted=frozenset(record.valid),
    )
    counted = Counted(
        opened=opened,
        valid=record.valid,
        valid_set=record.valid_set,
        rejections=record.rejections,
        submissions={ClientId(each.owner): each.submission for each in kept},
    )
    return Prepared(counted, record.noisy_share)


def _pending(session: Session) -> ReleaseRecord:
    record = session.store.attempts.pending()
    if record is None:
        raise AssertionError("a prepared attempt has no record")
    return record
