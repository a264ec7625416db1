"""A round's end: the next model is kept and announced, also where a break interrupted the round."""

import logging
from collections import Counter
from typing import assert_never

from precad.aggregator.peer_link import PeerLink
from precad.aggregator.release import countersign, reconstruct
from precad.aggregator.rounds.aggregator import Aggregator
from precad.aggregator.rounds.recovery import Recovery, Remedy
from precad.aggregator.rounds.start_attempt import NeedsOperators
from precad.aggregator.rounds.states import Counted, Opened, Prepared
from precad.aggregator.server_messages import (
    Fact,
    ModelBody,
    ModelTransfer,
    SignedMessage,
    VoidBody,
    read_body,
)
from precad.aggregator.store.attempts import ReleaseRecord
from precad.aggregator.store.schema import Permission
from precad.aggregator.training.event_log import RoundDone, Steps
from precad.aggregator.training.session import Session
from precad.common.errors import Misconfiguration, PeerUnavailable, PeerViolation
from precad.common.identifiers import Digest
from precad.common.identity.signatures import SignedKind
from precad.common.model import ModelVector, byte_view, from_bytes, model_digest
from precad.common.ring import from_bytes as ring_from_bytes

log = logging.getLogger("precad")


def keep(
    session: Session, counted: Counted, theta: ModelVector, model: Digest, steps: Steps
) -> None:
    """Persist θ_{t+1}, ``[d]``; it is announced once the other has it too (``confirm``)."""
    opened = counted.opened
    version = opened.version + 1
    session.model_store.put(version, theta, session.store.versions.model_seal(version), model)
    session.store.attempts.finish(opened.attempt, model)
    session.progress.heard_from_peers(session.clock.now())
    steps.over("keep")
    participations = session.store.ledger.participations()
    session.progress.unannounced = RoundDone(
        opened,
        frozenset(counted.valid),
        counted.rejections,
        model,
        max(participations.values(), default=0),
        tuple(steps.costs),
    )
    reasons = sorted(Counter(reason.value for reason in counted.rejections.values()).items())
    log.info(
        "version %d is made: %d of %d submissions count%s; %s",
        version,
        len(counted.valid),
        len(opened.cohort),
        "".join(f", {number} {reason}" for reason, number in reasons),
        ", ".join(f"{cost.step} {cost.seconds:.2f} s" for cost in steps.costs),
    )


def say_kept(session: Session, link: PeerLink) -> None:
    """Tell each other that the model is on the disk; only then anybody else hears of it.

    A model that is stated to owners is never made again: both servers must have it by then.
    """
    link.exchange("kept", session.model_store.current.digest.value)
    confirm(session)


def confirm(session: Session) -> None:
    """Announce the current model, which the other server is known to hold too."""
    session.store.versions.confirm(session.model_store.current.version)
    done, session.progress.unannounced = session.progress.unannounced, None
    if done is not None:
        session.event_log.publish(done)


def recover(session: Session, aggregator: Aggregator, recovery: Recovery) -> None:
    """Apply one remedy for what a break interrupted; the servers compare again afterwards.

    Raises:
        PeerViolation: the other server says something that doesn't fit.
        NeedsOperators: it lost an attempt that may have left.
    """
    log.info("after a break: %s", recovery.remedy.value)
    match recovery.remedy:
        case Remedy.RELEASE:
            _release(session, aggregator)
        case Remedy.VOID | Remedy.CONFIRM_VOID as remedy:
            _void(session, aggregator, recovery.attempt, prepared_here=remedy is Remedy.VOID)
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
    keep(session, sent.counted, finished.theta, finished.model, steps)
    say_kept(session, aggregator.link)


def _void(session: Session, aggregator: Aggregator, attempt: int, *, prepared_here: bool) -> None:
    """Sign that the attempt isn't prepared on both servers, and keep it; both do.

    First durable where it isn't prepared, so that it never can be; the holder voids on that.
    """
    link, signatures = aggregator.link, aggregator.signatures
    version = session.model_store.current.version
    own = VoidBody(task=str(session.task.digest), version=version, attempt=attempt)

    def hear() -> None:
        answer = SignedMessage.from_bytes(link.receive("void"))
        if signatures.check(signatures.other, SignedKind.NOT_PREPARED, answer, VoidBody) != own:
            raise PeerViolation("the other server voids another attempt")

    if prepared_here:
        hear()
    session.store.attempts.void(version, attempt)
    link.send("void", signatures.sign(SignedKind.NOT_PREPARED, own).to_bytes())
    if not prepared_here:
        hear()


def _give_up(session: Session, aggregator: Aggregator) -> None:
    """Have the other server learn the charge at once; both operators' word writes it off."""
    record, link = _pending(session), aggregator.link
    link.send("lost", record.fact().to_bytes())
    _require_write_off(session, aggregator, record.version, record.attempt)
    session.store.attempts.write_off(record.attempt)


def _learn_lost(session: Session, aggregator: Aggregator, attempt: int) -> None:
    fact = Fact.from_bytes(aggregator.link.receive("lost"))
    version = session.model_store.current.version
    if (fact.version, fact.attempt, fact.voided) != (version, attempt, False):
        raise PeerViolation("the other server shows another attempt than the one it has prepared")
    session.store.attempts.learn([fact])
    _require_write_off(session, aggregator, version, attempt)


def _require_write_off(
    session: Session, aggregator: Aggregator, version: int, attempt: int
) -> None:
    what = f"a database was replaced, and attempt {attempt} may have left"
    require_word(session, aggregator.link, Permission.WRITE_OFF, (version, attempt), what)


def require_word(
    session: Session, link: PeerLink, permission: Permission, of: tuple[int, int], what: str
) -> None:
    """Go on with the word of both operators for this version, up to this attempt.

    Raises NeedsOperators: one of them hasn't given it; on both servers alike.
    """
    version, attempt = of
    own = session.store.versions.allowed(permission, version) >= attempt
    theirs = link.exchange("word", bytes([own]))
    if not own or theirs != bytes([True]):
        raise NeedsOperators(permission, version, what)


def _serve(session: Session, aggregator: Aggregator) -> None:
    """Send the model, with the other server's own word on its digest."""
    signatures, current = aggregator.signatures, session.model_store.current
    task, digest = str(session.task.digest), str(current.digest)
    body = ModelBody(task=task, version=current.version, digest=digest)
    kept = (session.store.versions.model_seal(current.version), session.model_store.signature())
    found = [
        each for each in kept if each and read_body(bytes.fromhex(each.body), ModelBody) == body
    ]
    if not found:
        # Both were put back, and an owner was here first: it is on its way there too.
        raise PeerUnavailable(
            f"the other server lacks model {current.version}, and its signature over it isn't kept "
            "here, as after an owner gave the model back: the other server waits for an owner to "
            "give it there too, or for its operator to put its newest model file in place"
        )
    own = signatures.sign(SignedKind.MODEL, body)
    transfer = ModelTransfer(version=current.version, signed=found[0], own=own)
    aggregator.link.send("transfer", transfer.to_bytes())
    aggregator.link.send("model-bytes", byte_view(session.model_store.theta()))
    aggregator.link.receive("transferred")


def _catch_up(session: Session, aggregator: Aggregator) -> None:
    """Take a model that this server has signed itself, and finish or void what led to it."""
    signatures, link = aggregator.signatures, aggregator.link
    task, store = session.task, session.store
    transfer = ModelTransfer.from_bytes(link.receive("transfer"))
    data = link.receive("model-bytes")
    body = signatures.check(signatures.role, SignedKind.MODEL, transfer.signed, ModelBody)
    theirs = signatures.check(signatures.other, SignedKind.MODEL, transfer.own, ModelBody)
    try:
        theta = from_bytes(data, task.dimension)
    except Misconfiguration as error:
        raise PeerViolation(f"the other server sent no model of this task: {error}") from None
    digest = model_digest(task.digest, transfer.version, task.model.parameters, theta)
    expected = ModelBody(task=str(task.digest), version=transfer.version, digest=str(digest))
    if not body == theirs == expected:
        raise PeerViolation("the other server's model isn't the one that both servers signed")
    pending, newest = store.attempts.pending(), transfer.version - 1
    for version in range(session.model_store.current.version, newest + 1):
        charged = [fact for fact in store.ledger.facts(version) if not fact.voided]
        if not charged:
            raise PeerViolation(
                f"this server's ledger has no charge for version {version}, which is over: model "
                "and ledger don't belong together. Restore this server's newest state"
            )
    store.versions.keep_model_seal(transfer.version, transfer.own)
    if pending is not None and pending.version == newest:
        keep(session, _prepared_again(pending).counted, theta, digest, Steps(session.clock))
    else:
        session.model_store.put(transfer.version, theta, transfer.own, digest)
    link.send("transferred", b"")


def _prepared_again(record: ReleaseRecord) -> Prepared:
    """Return the prepared state of an attempt, from the database."""
    # The cohort isn't needed any more: those who count and those who don't are known.
    cohort = tuple(sorted({*record.valid, *record.rejections}))
    opened = Opened(record.attempt, record.version, cohort, record.model, frozenset(record.valid))
    counted = Counted(opened, record.valid, record.valid_set, record.rejections)
    return Prepared(counted, ring_from_bytes(record.noisy_share))


def _pending(session: Session) -> ReleaseRecord:
    record = session.store.attempts.pending()
    if record is None:
        raise AssertionError("a prepared attempt has no record")
    return record
