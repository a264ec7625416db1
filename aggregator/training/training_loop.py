"""A whole training on one server: what A and B do alike.

`server_a` and `server_b` say what a leader and a helper do differently
(`RoleBehaviour`); the other server and the dealer come in through `Peers`.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from precad.aggregator.attempt_states import Opened
from precad.aggregator.collect.matching import Closed, match
from precad.aggregator.enrol.agreement import agree_nonces, agree_set_secret
from precad.aggregator.noise import DrawnAhead, NoiseSource
from precad.aggregator.peer_link import FrameTransport, PeerLink
from precad.aggregator.release import (
    add_noise,
    aggregate,
    countersign,
    prepare,
    reconstruct,
)
from precad.aggregator.rounds.aggregator import Aggregator
from precad.aggregator.rounds.start_attempt import NeedsOperators
from precad.aggregator.server_messages import OpenedCount, exchange
from precad.aggregator.training.reconcile import (
    charge_unknown,
    meet,
    require_nothing_lost,
    take_back,
)
from precad.aggregator.training.recovery import Remedy, recover
from precad.aggregator.training.round_end import Steps, keep, say_kept
from precad.aggregator.training.session import (
    Phase,
    Session,
    TrainingDone,
    TrainingStopped,
)
from precad.aggregator.validate import longest_opening
from precad.aggregator.validate.validation import Take, Validation
from precad.common.clock import Retries, RetryPolicy
from precad.common.errors import (
    PeerUnavailable,
    PeerViolation,
    PrecadError,
    StorageFailure,
)
from precad.common.identifiers import Role, Secret
from precad.common.process import doing, give_back_freed
from precad.common.ring import WORD_BYTES
from precad.norm_check.dealing import Dealing
from precad.norm_check.prime_field import group_of

log = logging.getLogger("precad")


class Dealer(Dealing, Protocol):
    """The dealer, as one server reaches it."""

    @property
    def bytes_received(self) -> int:
        """Correction words, in bytes."""

    @property
    def newest_attempt(self) -> int:
        """The newest attempt that the dealer has dealt for."""

    def join(self) -> Secret:
        """This server's key for the task. Raises PeerUnavailable, PeerViolation."""


@dataclass(frozen=True, slots=True)
class Peers:
    """The other server and the dealer, if the task has one; this server's noise and validators."""

    connect: Callable[[], AbstractContextManager[tuple[FrameTransport, Dealer]]]
    """The other server's link and the dealer, until the block ends. Raises
    PeerUnavailable."""
    noise: NoiseSource = field(repr=False)
    validation: Callable[[Aggregator, Opened], Validation] = Aggregator.in_process
    """Of one attempt's submissions."""


class RoleBehaviour(Protocol):
    """What a leader and a helper do differently."""

    def agree_roster(self, link: PeerLink) -> None:
        """Freeze the roster that both servers know.

        Raises PeerViolation, Misconfiguration.
        """

    def open(self, aggregator: Aggregator) -> Opened | None:
        """Open a round with the other server; None when the training is over."""

    def collect(
        self,
        opened: Opened,
        link: PeerLink,
        closes: float,
        take: Take,
    ) -> Closed:
        """Until all have come or ``closes``; what both hold alike is taken at once."""


def run_to_end(session: Session, training: Callable[[Session], None]) -> None:
    """Run ``training`` and say how it ended, whatever happens."""

    def stop(error: str) -> None:
        progress.error = error
        progress.phase = Phase.STOPPED
        session.event_log.publish(TrainingStopped())
        log.error("training stopped: %s", error)

    progress = session.progress
    try:
        training(session)
        final = session.model_store.current
        session.store.attempts.drop_shares(session.store.versions.confirmed())
        progress.phase = Phase.DONE
        session.event_log.publish(TrainingDone(final.version, final.digest))
        log.info(
            "training is over after %d rounds: model %s", final.version, final.digest
        )
    except PrecadError as error:
        stop(str(error))
    except Exception:
        log.exception("a bug stopped the training")
        stop("internal error; see this server's log")


def train(session: Session, behaviour: RoleBehaviour, peers: Peers) -> None:
    """Train over one link; return when both servers know that the training is over."""
    progress = session.progress
    traffic = session.traffic
    role = session.role.value
    other = session.signatures.other.value
    session.identity.check_time()
    with peers.connect() as (transport, dealer):
        with _unless_another_leads(session):
            link = open_link(session, transport)
            recovery = meet(session, link)
        forgotten = session.store.ledger.uncharged_versions(session.version)
        if recovery.remedy is Remedy.NOTHING and session.finished and not forgotten:
            # Both servers hold the final model: their positions alone say so.
            return
        with _unless_another_leads(session):
            behaviour.agree_roster(link)
        aggregator = make_aggregator(session, link, dealer, peers.noise)
        away = progress.heard_from_peers(session.clock.now())
        if away is not None:
            others = (
                f"{other} and the dealer are"
                if session.task.has_dealer
                else f"{other} is"
            )
            log.info("%s back after %.0f s", others, away)
        if not session.finished:
            progress.phase = Phase.TRAINING
        while recovery.remedy is not Remedy.NOTHING:
            recover(session, aggregator, recovery)
            recovery = meet(session, link)
        require_nothing_lost(session)
        charge_unknown(session, aggregator)
        aggregator.precompute_re_releases(session.version)
        while True:
            before = link.bytes_sent, dealer.bytes_received
            require_nothing_lost(session)
            session.identity.check_time()
            opened = behaviour.open(aggregator)
            if opened is None:
                return
            run_attempt(
                session,
                behaviour,
                aggregator,
                opened,
                peers.validation,
            )
            traffic[f"{role} to {other}"] += link.bytes_sent - before[0]
            if session.task.has_dealer:
                traffic[f"dealer to {role}"] += dealer.bytes_received - before[1]


@contextmanager
def _unless_another_leads(session: Session) -> Iterator[None]:
    """Before the first round of a link: whoever dialled B may be a stale copy of A.

    So B waits for the true A, with PeerUnavailable, in place of what would end its
    training. Before the roster is frozen there is nothing to lose, and a mistake shows
    at once on both.
    """
    try:
        yield
    except (PeerUnavailable, StorageFailure):
        raise
    except PrecadError as error:
        if session.role is not Role.SERVER_B or not session.register.frozen:
            raise
        raise PeerUnavailable(
            f"whoever dialled as server A doesn't lead this training: {error}; waiting"
            " for the one that does"
        ) from error


def run_attempt(
    session: Session,
    behaviour: RoleBehaviour,
    aggregator: Aggregator,
    opened: Opened,
    validation: Callable[[Aggregator, Opened], Validation],
) -> None:
    """Play an opened attempt, from its collection to the next model, kept and announced."""
    doing(version=opened.version, attempt=opened.attempt)
    steps = Steps(session.clock)
    closes = session.clock.now() + session.task.deadlines.collect
    noise = DrawnAhead(aggregator.noise, session.task.dimension, session.clock)
    # While clients fetch the model.
    session.store.attempts.drop_shares(session.store.versions.confirmed())
    try:
        with validation(aggregator, opened) as validator:
            closed = behaviour.collect(opened, aggregator.link, closes, validator.take)
            steps.over("collect")
            # Of the bodies' pieces; next come what decides on them, and vectors.
            give_back_freed()
            matched = match(opened, session.role, *closed)
            require_nothing_lost(session)
            if matched.submissions:
                # An attempt that nobody was there to validate opened nothing.
                validator.ready()
            count_opened(aggregator, opened)
            summed = aggregate(aggregator, matched, validator)
        steps.over("validate")
        give_back_freed()
        noised = add_noise(summed, noise, group_of(session.task))
        # A vector each, and a large model has room for few.
        del validator, summed
        sent = countersign(aggregator, prepare(aggregator.store, noised))
        del noised
        finished = reconstruct(aggregator, sent, session.model_store.theta())
        steps.over("release")
    finally:
        # Spooled shares go, however the round ends.
        session.inbox.cancel()
    counted = sent.counted
    theta = finished.theta
    model = finished.model
    del sent, finished
    keep(
        session,
        counted,
        theta,
        model,
        steps,
    )
    say_kept(session, aggregator.link)


def count_opened(aggregator: Aggregator, opened: Opened) -> None:
    """Count the attempt as opened, durably, before a masked word leaves; the larger one stands."""
    version = opened.version
    store = aggregator.store
    own = OpenedCount(count=store.versions.count_opened(version, opened.attempt))
    theirs = exchange(aggregator.link, "opened", own)
    # Attempts are numbered from 0, and each is opened once: a larger count would stay
    # for ever.
    if theirs.count > opened.attempt + 1:
        raise PeerViolation(
            f"the other server has counted {theirs.count} opened attempts of version"
            f" {version}, and this is attempt {opened.attempt}"
        )
    store.versions.raise_opened(version, theirs.count)


def open_link(session: Session, transport: FrameTransport) -> PeerLink:
    """Put the protocol's link on a transport; what an older one left open is dropped."""
    take_back(session)
    note_done(session)
    session.store.attempts.abandon_open()
    session.inbox.cancel()
    task = session.task
    # The largest messages are a noisy share, the comparisons' openings and lists over a
    # cohort, of a KiB an entry at most.
    lists = task.enrolment.clients * 1024
    most = max(task.dimension * WORD_BYTES, lists, longest_opening(task)) + 4096
    return PeerLink(
        transport, task.digest, max_message_bytes=most, timeout_s=task.deadlines.peer
    )


def note_done(session: Session) -> None:
    """Mark the round done that led to the kept model, if a crash came between the two.

    The other's signature over that model is kept before the model is: without it the
    database is older than the model, and the other server knows what became of the
    attempt (``meet``).
    """
    current = session.model_store.current
    attempts = session.store.attempts
    pending = attempts.pending()
    sealed = session.store.versions.model_seal(current.version)
    if (
        pending is not None
        and pending.version == current.version - 1
        and sealed is not None
    ):
        attempts.finish(pending.attempt, current.digest)


def make_aggregator(
    session: Session,
    link: PeerLink,
    dealer: Dealer,
    noise: NoiseSource,
) -> Aggregator:
    """Make this server's role object for one link; its roster is frozen.

    Raises PeerUnavailable: the dealer isn't there, or the servers joined different
    starts of it.
    """
    set_secret = agree_set_secret(link, session.role, session.task)
    dealer_key = dealer.join()
    if link.exchange("dealer", dealer.epoch) != dealer.epoch:
        raise PeerUnavailable(
            "the dealer restarted between the servers' joins; joining again"
        )
    session.store.attempts.hear(dealer.newest_attempt)
    # Of the two, one alone proposes attempts, and the other refuses those that it has
    # used.
    progress = session.progress
    progress.next_attempt = max(progress.next_attempt, dealer.newest_attempt + 1)
    return Aggregator(
        task=session.task,
        role=session.role,
        roster=session.register.roster(),
        link=link,
        dealing=dealer,
        dealer_key=dealer_key,
        set_secret=set_secret,
        nonces=agree_nonces(link, session.role),
        signatures=session.signatures,
        coin_key=session.coin_key,
        noise=noise,
        store=session.store,
        cap=session.register.cap,
    )


WAITS = RetryPolicy(0.2, 3.0)
"""Between attempts to get back to the other server or the dealer."""
_OPERATORS_S = 2.0
"""Between looks at whether the operators have given their word."""
_TOLD = 5
"""Different failures of one outage that its error names: gRPC has two or three wordings
of a dealer that is gone, and as many of a server."""


def persist(session: Session, attempt: Callable[[], None]) -> None:
    """Call ``attempt`` until it returns; a lost link or dealer is tried again for ``outage``.

    The outage counts from the first failure after both were last heard from: a long
    round or a long enrolment isn't one. Raises PeerUnavailable: nothing worked for that
    long; it names the last failures. And any other PrecadError, which can't be mended
    by trying again.
    """
    patience = Retries(
        total_s=session.task.deadlines.outage,
        policy=WAITS,
        clock=session.clock,
    )
    progress = session.progress
    failures: list[str] = []
    while True:
        contacts = progress.contacts
        try:
            attempt()
        except PeerUnavailable as error:
            if progress.contacts > contacts:
                patience.renew()
                failures.clear()
            told = _outage(failures, str(error))
            progress.error = f"{told}; trying again"
            if progress.lost_at is None and progress.contacts:
                progress.lost_at = session.clock.now()
            log.warning(
                "%s; trying again for %.0f s", error, max(0.0, patience.remaining())
            )
            patience.wait(told)
        except NeedsOperators as error:
            # No deadline: who decides is a person.
            if progress.error != str(error):
                log.warning("%s", error)
            progress.error = str(error)
            progress.needs = error
            patience.renew()
            failures.clear()
            session.clock.sleep(_OPERATORS_S)
            progress.needs = None
        else:
            progress.error = ""
            return


def _outage(failures: list[str], newest: str) -> PeerUnavailable:
    """Return the newest failure with the last different ones before; ``failures`` takes it up.

    While the dealer is away the servers lose each other too, between tries that never
    quite meet: the newest failure alone would send an operator to the wrong machine.
    """
    failures[:] = [newest, *(failure for failure in failures if failure != newest)][
        :_TOLD
    ]
    if len(failures) == 1:
        return PeerUnavailable(newest)
    return PeerUnavailable(
        f"{newest} (earlier in this outage: {'; '.join(failures[1:])})"
    )
