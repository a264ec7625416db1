"""After a break: what the two servers make of where each of them stands.

An attempt is prepared (charged, noisy share persisted), countersigned (this server has
signed that it is prepared too), sent (it holds the other's countersignature, and the
share may have left) and done. A share leaves only after both are prepared, and never
changes. So:

| here | there | then |
| --- | --- | --- |
| nothing prepared | nothing prepared | a new attempt |
| prepared | prepared, the same attempt | the release goes on where it stopped |
| prepared, nothing countersigned | nothing prepared | void: it costs nothing |
| countersigned or sent | nothing prepared | lost there: both operators decide |
| countersigned or sent | another prepared, not countersigned | that one is void |
| done | not done | the other takes the model, whose digest it has signed itself |

The same comparison is made again after each remedy, until nothing is left to do. It is
the plan of `release_model` (tests/model), which a search has gone through with cuts,
crashes and replaced databases.
"""

import logging
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import NamedTuple, assert_never

from precad.aggregator import server_messages as messages
from precad.aggregator.attempt_states import Counted, Opened, Prepared
from precad.aggregator.peer_link import PeerLink
from precad.aggregator.release import countersign, reconstruct
from precad.aggregator.rounds.aggregator import Aggregator
from precad.aggregator.rounds.start_attempt import NeedsOperators
from precad.aggregator.server_messages import Evidence, Fact, HeadBody, Position
from precad.aggregator.store.attempts import ReleaseRecord
from precad.aggregator.store.ledger import history_after
from precad.aggregator.store.schema import Permission
from precad.aggregator.training.round_end import Steps, keep, say_kept
from precad.aggregator.training.session import Session
from precad.common.errors import Misconfiguration, PeerUnavailable, PeerViolation
from precad.common.identifiers import Digest
from precad.common.identity.signatures import SignedKind
from precad.common.model import byte_view, from_bytes, model_digest
from precad.common.ring import from_bytes as ring_from_bytes

log = logging.getLogger("precad")


class Remedy(Enum):
    """What this server does about the newest attempt before a new one may open."""

    NOTHING = "nothing"
    # Both are prepared and neither is done.
    RELEASE = "release"
    # One alone is prepared, and has countersigned nothing: this server, or the other.
    VOID = "void"
    CONFIRM_VOID = "confirm-void"
    # One has countersigned or sent, and the other isn't prepared.
    LOST = "lost"
    LEARN_LOST = "learn-lost"
    # One lacks the model that the other has.
    SERVE = "serve"
    CATCH_UP = "catch-up"


class Recovery(NamedTuple):
    """The remedy, and the attempt that it is about."""

    remedy: Remedy
    attempt: int = -1


def compare(own: Position, theirs: Position) -> Recovery:
    """Return what to do about the newest attempt: on both what fits.

    Raises PeerViolation.
    """
    if own.version != theirs.version:
        return Recovery(
            Remedy.SERVE if own.version > theirs.version else Remedy.CATCH_UP
        )
    if own.model != theirs.model:
        raise PeerViolation(
            f"the servers' trainings differ: after {own.version} rounds model"
            f" {own.model} here, {theirs.model} there. Restore both servers' newest"
            " state, or start a new task"
        )
    here = own.prepared
    there = theirs.prepared
    if here is None or there is None:
        if here is not None:
            return Recovery(Remedy.LOST if here.bound else Remedy.VOID, here.attempt)
        if there is not None:
            remedy = Remedy.LEARN_LOST if there.bound else Remedy.CONFIRM_VOID
            return Recovery(remedy, there.attempt)
        return Recovery(Remedy.NOTHING)
    if here.attempt != there.attempt and here.bound != there.bound:
        # One was put back. Of what isn't bound nothing has left.
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
    """The facts without those of attempts that one of the servers hasn't finished."""
    return tuple(fact for fact in facts if fact.attempt not in pending)


def adoptable(
    start: Digest,
    evidence: Sequence[Evidence],
    signed: HeadBody | None,
    heard: range = range(0),
) -> tuple[Fact, ...]:
    """Those of the other server's facts, version by version, that one's own signature stands for.

    All facts of the newest head that this server ``signed``, as the other kept it, and
    at most one charge more: the attempt that the other has prepared and countersigned
    or sent, or that its journal remembers. Nobody can invent others. And all voids:
    they charge nobody, and don't touch what this server has countersigned. And charges
    of attempts that were ``heard`` of: this server has forgotten them, and the dealer,
    an owner or the other server has named them to it. They are charged anyway
    (``training.reconcile``).
    """
    pending = evidence[0].pending if evidence else None
    facts = [fact for each in evidence for fact in each.facts]
    found = [] if pending is None else [pending]
    found += [fact for fact in facts if fact.voided or fact.attempt in heard]
    if signed is None or signed.version >= len(evidence):
        return tuple(found)
    history = start
    for earlier in evidence[: signed.version]:
        history = history_after(history, earlier.facts)
    last = [
        fact
        for fact in evidence[signed.version].facts
        if fact.attempt <= signed.attempt
    ]
    shown = {fact.attempt for fact in last}
    if (
        pending is not None
        and pending.attempt == signed.attempt
        and pending.attempt not in shown
    ):
        last.append(pending)
    if str(history_after(history, last)) != signed.history:
        return tuple(found)
    return (
        *(fact for each in evidence[: signed.version] for fact in each.facts),
        *last,
        *found,
    )


def recover(session: Session, aggregator: Aggregator, recovery: Recovery) -> None:
    """Apply one remedy for what a break interrupted; the servers compare again afterwards.

    Raises PeerViolation; NeedsOperators: the other lost an attempt that may have left.
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
    steps = Steps(session.clock)
    sent = countersign(aggregator, _prepared_again(_pending(session)))
    finished = reconstruct(aggregator, sent, session.model_store.theta())
    steps.over("release")
    keep(
        session,
        sent.counted,
        finished.theta,
        finished.model,
        steps,
    )
    say_kept(session, aggregator.link)


def _void(
    session: Session,
    aggregator: Aggregator,
    attempt: int,
    *,
    prepared_here: bool,
) -> None:
    """Sign that the attempt isn't prepared on both servers, and keep it; both do.

    First durable where it isn't prepared, so that it never can be; the holder voids on
    that.
    """
    link = aggregator.link
    signatures = aggregator.signatures
    version = session.version
    own = messages.VoidBody(
        task=str(session.task.digest),
        version=version,
        attempt=attempt,
    )

    def hear() -> None:
        answer = messages.SignedMessage.from_bytes(link.receive("void"))
        found = signatures.check(
            signatures.other, SignedKind.NOT_PREPARED, answer, type(own)
        )
        if found != own:
            raise PeerViolation("the other server voids another attempt")

    if prepared_here:
        hear()
    session.store.attempts.void(version, attempt)
    link.send("void", signatures.sign(SignedKind.NOT_PREPARED, own).to_bytes())
    if not prepared_here:
        hear()


def _give_up(session: Session, aggregator: Aggregator) -> None:
    """Have the other server learn the charge at once; both operators' word writes it off."""
    record = _pending(session)
    aggregator.link.send("lost", record.fact().to_bytes())
    _require_write_off(session, aggregator, record.fact())
    session.store.attempts.write_off(record.attempt)


def _learn_lost(session: Session, aggregator: Aggregator, attempt: int) -> None:
    fact = Fact.from_bytes(aggregator.link.receive("lost"))
    if (fact.version, fact.attempt, fact.voided) != (session.version, attempt, False):
        raise PeerViolation(
            "the other server shows another attempt than the one it has prepared"
        )
    session.store.attempts.learn([fact])
    _require_write_off(session, aggregator, fact)


def _require_write_off(session: Session, aggregator: Aggregator, fact: Fact) -> None:
    what = f"a database was replaced, and attempt {fact.attempt} may have left"
    require_word(
        session,
        aggregator.link,
        Permission.WRITE_OFF,
        (fact.version, fact.attempt),
        what,
    )


def require_word(
    session: Session,
    link: PeerLink,
    permission: Permission,
    of: tuple[int, int],
    what: str,
) -> None:
    """Go on with both operators' word for a version up to an attempt, or raise NeedsOperators."""
    version, attempt = of
    own = session.store.versions.allowed(permission, version) >= attempt
    theirs = link.exchange("word", bytes([own]))
    if not own or theirs != bytes([True]):
        raise NeedsOperators(permission, version, what)


def _serve(session: Session, aggregator: Aggregator) -> None:
    """Send the model, with the other server's own word on its digest."""
    signatures = aggregator.signatures
    current = session.model_store.current
    version = current.version
    digest = str(current.digest)
    body = messages.ModelBody(
        task=str(session.task.digest),
        version=version,
        digest=digest,
    )
    kept = session.store.versions.model_seal(version), session.model_store.signature()
    found = [
        i
        for i in kept
        if i and messages.read_body(bytes.fromhex(i.body), type(body)) == body
    ]
    if not found:
        # Both were put back, and an owner was here first: it is on its way there too.
        raise PeerUnavailable(
            f"the other server lacks model {version}, and its signature over it isn't"
            " kept here, as after an owner gave the model back: the other server waits"
            " for an owner to give it there too, or for its operator to put its newest"
            " model file in place"
        )
    own = signatures.sign(SignedKind.MODEL, body)
    transfer = messages.ModelTransfer(
        version=version,
        signed=found[0],
        own=own,
    )
    aggregator.link.send("transfer", transfer.to_bytes())
    aggregator.link.send("model-bytes", byte_view(session.model_store.theta()))
    aggregator.link.receive("transferred")


def _catch_up(session: Session, aggregator: Aggregator) -> None:
    """Take a model that this server has signed itself, and finish or void what led to it."""
    signatures = aggregator.signatures
    link = aggregator.link
    task = session.task
    store = session.store
    transfer = messages.ModelTransfer.from_bytes(link.receive("transfer"))
    data = link.receive("model-bytes")
    body = signatures.check(
        signatures.role, SignedKind.MODEL, transfer.signed, messages.ModelBody
    )
    theirs = signatures.check(
        signatures.other, SignedKind.MODEL, transfer.own, messages.ModelBody
    )
    try:
        theta = from_bytes(data, task.dimension)
    except Misconfiguration as error:
        raise PeerViolation(
            f"the other server sent no model of this task: {error}"
        ) from None
    digest = model_digest(task.digest, transfer.version, task.model.parameters, theta)
    expected = messages.ModelBody(
        task=str(task.digest),
        version=transfer.version,
        digest=str(digest),
    )
    if not body == theirs == expected:
        raise PeerViolation(
            "the other server's model isn't the one that both servers signed"
        )
    pending = store.attempts.pending()
    newest = transfer.version - 1
    for version in range(session.version, newest + 1):
        if all(fact.voided for fact in store.ledger.facts(version)):
            raise PeerViolation(
                f"this server's ledger has no charge for version {version}, which is"
                " over: model and ledger don't belong together. Restore this server's"
                " newest state"
            )
    store.versions.keep_model_seal(transfer.version, transfer.own)
    if pending is not None and pending.version == newest:
        keep(
            session,
            _prepared_again(pending).counted,
            theta,
            digest,
            Steps(session.clock),
        )
    else:
        session.model_store.put(transfer.version, theta, transfer.own, digest)
    link.send("transferred", b"")


def _prepared_again(record: ReleaseRecord) -> Prepared:
    # The cohort isn't needed any more: those who count and those who don't are known.
    cohort = tuple(sorted({*record.valid, *record.rejections}))
    opened = Opened(
        attempt=record.attempt,
        version=record.version,
        cohort=cohort,
        model=record.model,
        counted=frozenset(record.valid),
    )
    counted = Counted(
        opened=opened,
        valid=record.valid,
        valid_set=record.valid_set,
        rejections=record.rejections,
    )
    return Prepared(counted, ring_from_bytes(record.noisy_share))


def _pending(session: Session) -> ReleaseRecord:
    record = session.store.attempts.pending()
    if record is None:
        raise AssertionError("a prepared attempt has no record")
    return record
