"""Play a whole training on one server: what server A and server B do alike.

`server_a` and `server_b` say what a leader and a helper do differently
(`RoleBehaviour`). The other server and the dealer come in through `Peers`.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from precad.aggregator import (
    DrawnAhead,
    FrameTransport,
    NoiseSource,
    Opened,
    OpenedCount,
    PeerLink,
    add_noise,
    aggregate,
    countersign,
    exchange,
    prepare,
    reconstruct,
)
from precad.aggregator.collect import Closed, match
from precad.aggregator.enrol import agree_nonces, agree_set_secret
from precad.aggregator.rounds.aggregator import Aggregator
from precad.aggregator.rounds.start_attempt import (
    NeedsOperators,
    agree_enough_counted,
)
from precad.aggregator.training import (
    Phase,
    Remedy,
    RoundOpened,
    Session,
    Steps,
    TrainingDone,
    TrainingStopped,
    charge_unknown,
    keep,
    meet,
    recover,
    require_nothing_lost,
    say_kept,
    take_back,
)
from precad.aggregator.validate import longest_opening
from precad.aggregator.validate.validation import Take, Validation
from precad.common import (
    WORD_BYTES,
    PeerUnavailable,
    PeerViolation,
    PrecadError,
    Retries,
    RetryPolicy,
    Role,
    Secret,
    StorageFailure,
    StorageGone,
    doing,
    frozen_dataclass,
    give_back_freed,
    log,
)
from precad.norm_check import Dealing, group_of


class Dealer(Dealing, Protocol):
    """Deal one server's correlated randomness: the dealer as that server reaches it."""

    bytes_received: int
    """How many bytes of correction words came from the dealer so far."""

    @property
    def newest_attempt(self) -> int:
        """Number of the newest attempt that the dealer has dealt for."""

    def join(self) -> Secret:
        """Return this server's key for the task.

        Raises PeerUnavailable: the dealer isn't there; PeerViolation: it breaks the
        protocol.
        """


@frozen_dataclass
class Peers:
    """Give a training the other server, the dealer, noise and what validates."""

    connect: Callable[[], AbstractContextManager[tuple[FrameTransport, Dealer]]]
    """Gives the other server's link and the dealer, if any, until the block ends.

    Raises PeerUnavailable.
    """
    noise: NoiseSource
    validation: Callable[[Aggregator, Opened], Validation] = Aggregator.in_process
    """Gives what validates one attempt's submissions."""


class RoleBehaviour(Protocol):
    """Do what a leader and a helper do differently."""

    def agree_roster(self, link: PeerLink) -> None:
        """Freeze the roster of those clients that both servers know.

        Raises PeerUnavailable; PeerViolation: the other server disagrees;
        Misconfiguration: too few clients enrolled.
        """

    def open(self, aggregator: Aggregator) -> Opened | None:
        """Start an attempt with the other server, or return None: training is over."""

    def collect(
        self,
        opened: Opened,
        link: PeerLink,
        closes: float,
        take: Take,
    ) -> Closed:
        """Collect submissions until all have come, or until ``closes``, by the clock.

        What both servers hold alike is given to ``take`` at once.
        """


def run_to_end(session: Session, training: Callable[[Session], None]) -> None:
    """Run ``training``, and say in log, events and progress how it ended.

    Raises nothing: an error of the training is its end.
    """

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
    """Train over one link; return when both servers know that the training is over.

    Raises PeerUnavailable: the other server or the dealer is lost, which a later call
    may mend; NeedsOperators: the operators must decide; other PrecadErrors: the
    training can't go on.
    """
    session.identity.check_time()
    identity = session.identity.current()
    with peers.connect() as (transport, dealer):
        with _unless_another_leads(session):
            link = open_link(session, transport)
            recovery = meet(session, link)
        uncharged = session.store.ledger.uncharged_versions(session.version)
        if recovery.remedy is Remedy.NOTHING and session.finished and not uncharged:
            # Both servers hold the final model: their positions alone say so.
            return
        if not session.register.frozen:
            # What is wrong with the dealer, such as another wire version, shows before
            # owners are waited for. Their claims are taken meanwhile.
            dealer.join()
        with _unless_another_leads(session):
            behaviour.agree_roster(link)
        aggregator = make_aggregator(session, link, dealer, peers.noise)
        _note_contact(session)
        while recovery.remedy is not Remedy.NOTHING:
            recover(session, aggregator, recovery)
            recovery = meet(session, link)
        require_nothing_lost(session)
        charge_unknown(session, aggregator)
        role = session.role.value
        other = session.signatures.other.value
        while True:
            link_bytes = link.bytes_sent
            dealer_bytes = dealer.bytes_received
            require_nothing_lost(session)
            session.identity.check_time()
            if session.identity.current() is not identity:
                raise PeerUnavailable("this server's certificate was renewed")
            agree_enough_counted(aggregator, session.version)
            opened = behaviour.open(aggregator)
            if opened is None:
                return
            collect_s = session.task.deadlines.collect
            session.event_log.publish(RoundOpened(opened, collect_s))
            run_attempt(
                session,
                behaviour,
                aggregator,
                opened,
                peers.validation,
            )
            traffic = session.traffic
            traffic[f"{role} to {other}"] += link.bytes_sent - link_bytes
            if session.task.has_dealer:
                traffic[f"dealer to {role}"] += dealer.bytes_received - dealer_bytes


def _note_contact(session: Session) -> None:
    """Note that the other server and the dealer are there, and log any outage."""
    progress = session.progress
    seconds_away = progress.heard_from_peers(session.clock.now())
    if seconds_away is not None:
        other = session.signatures.other.value
        back = f"{other} is"
        if session.task.has_dealer:
            back = f"{other} and the dealer are"
        log.info("%s back after %.0f s", back, seconds_away)
    if not session.finished:
        progress.phase = Phase.TRAINING


@contextmanager
def _unless_another_leads(session: Session) -> Iterator[None]:
    """Turn an error at a link's beginning on server B into PeerUnavailable.

    Whoever dialled server B may be a stale copy of server A. So B waits for the true A,
    in place of an error that would end its training. Before the roster is frozen there
    is nothing to lose: then an error is raised as it is, and a mistake shows at once on
    both servers.
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
    """Play an attempt from its collection to the next model, kept and announced.

    ``validation`` gives what validates its submissions. Raises as ``train``.
    """
    doing(version=opened.version, attempt=opened.attempt)
    steps = Steps(session.clock)
    closes = session.clock.now() + session.task.deadlines.collect
    noise = DrawnAhead(aggregator.noise, session.task.dimension, session.clock)
    # Now clients fetch the model, and nobody waits for this.
    session.store.attempts.drop_shares(session.store.versions.confirmed())
    try:
        with validation(aggregator, opened) as validator:
            closed = behaviour.collect(opened, aggregator.link, closes, validator.take)
            steps.over("collect")
            # Memory of the bodies' pieces goes back to the system: next come vectors,
            # and what decides on the submissions.
            give_back_freed()
            matched = match(
                opened,
                session.role,
                closed.collected,
                closed.theirs,
                closed.early,
            )
            require_nothing_lost(session)
            if matched.submissions:
                # Before the attempt is counted: one that nobody was there to validate
                # opened nothing.
                validator.ready()
            count_opened(aggregator, opened)
            summed = aggregate(aggregator, matched, validator)
        steps.over("validate")
        give_back_freed()
        noised = add_noise(summed, noise, group_of(session.task))
        # Each holds a vector, and beside a large model there is room for few.
        del validator, summed
        sent = countersign(
            aggregator, prepare(aggregator.store, noised, aggregator.shares)
        )
        del noised
        finished = reconstruct(aggregator, sent, session.model_store.theta())
        steps.over("release")
    finally:
        # Spooled shares go, however the attempt ends.
        session.inbox.cancel()
    counted = sent.counted
    theta = finished.theta
    model = finished.model
    step = finished.step
    # Their vectors aren't needed any more.
    del sent, finished
    keep(
        session,
        counted,
        theta,
        model,
        steps,
        step=step,
    )
    say_kept(session, aggregator.link)


def count_opened(aggregator: Aggregator, opened: Opened) -> None:
    """Count the attempt as opened, durably, before any masked word leaves.

    Of both servers' counts of its version the larger one stands. Raises
    PeerUnavailable; PeerViolation: the other server's count is too large.
    """
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
    """Put the servers' link on a transport, and drop what an older link left open.

    Raises StorageFailure: the disk or the database fails.
    """
    take_back(session)
    note_done(session)
    session.store.attempts.abandon_open()
    session.inbox.cancel()
    task = session.task
    # The largest messages are a noisy share, the comparisons' openings, and lists over
    # a cohort, which have at most 1 KiB an entry.
    share_bytes = task.dimension * WORD_BYTES
    list_bytes = task.enrolment.clients * 1024
    return PeerLink(
        transport=transport,
        task=task.digest,
        max_message_bytes=max(share_bytes, list_bytes, longest_opening(task)) + 4096,
        timeout_s=task.deadlines.peer,
    )


def note_done(session: Session) -> None:
    """Mark the attempt done that led to the kept model, after a crash between the two.

    The other's signature over that model is kept before the model is. Without that
    signature the database is older than the model, and the other server knows what
    became of the attempt (``meet``).
    """
    current = session.model_store.current
    attempts = session.store.attempts
    pending = attempts.pending()
    their_signature = session.store.versions.model_seal(current.version)
    if (
        pending is not None
        and pending.version == current.version - 1
        and their_signature is not None
    ):
        attempts.finish(pending.attempt, current.digest)


def make_aggregator(
    session: Session,
    link: PeerLink,
    dealer: Dealer,
    noise: NoiseSource,
) -> Aggregator:
    """Return what plays this server's part over one link; the roster is frozen by now.

    Raises PeerUnavailable: the other server or the dealer isn't there, or the servers
    joined different starts of the dealer.
    """
    set_secret = agree_set_secret(link, session.role, session.task)
    dealer_key = dealer.join()
    if link.exchange("dealer", dealer.epoch) != dealer.epoch:
        raise PeerUnavailable(
            "the dealer restarted between the servers' joins; joining again"
        )
    session.store.attempts.hear(dealer.newest_attempt)
    # Server A alone proposes attempts, and server B refuses a number that it has used.
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


WAITS = RetryPolicy(first_s=0.2, longest_s=3.0)
"""Waits between tries to get back to the other server or the dealer."""
_OPERATORS_S = 2.0
"""Seconds between two looks at whether the operators have given their word."""
_NAMED_FAILURES = 5
"""How many different failures of one outage its error names.

gRPC has two or three wordings of a dealer that is gone, and as many of a server.
"""


def persist(session: Session, attempt: Callable[[], None]) -> None:
    """Call ``attempt`` until it returns, again while a peer or the state is lost.

    A lost link, dealer or database, or a full disk, is tried again for the task's
    ``deadlines.outage``, counted from the first failure after the peers were last heard
    from: a long round or a long enrolment isn't an outage. Where the operators must
    decide there is no deadline.

    What a database or disk that failed was asked last is never taken for done or
    undone: each try begins, as a server's start does, from what they hold.

    Raises PeerUnavailable: nothing worked for that long; it names the last failures.
    And any other PrecadError, which can't be mended by trying again.
    """
    patience = Retries(
        total_s=session.task.deadlines.outage,
        policy=WAITS,
        clock=session.clock,
    )
    progress = session.progress
    failures: list[str] = []
    state_was_lost = False
    while True:
        contacts = progress.contacts
        try:
            if state_was_lost:
                session.store.attempts.take_back()
                state_was_lost = False
            attempt()
        except (PeerUnavailable, StorageGone) as error:
            state_was_lost |= isinstance(error, StorageGone)
            if progress.contacts > contacts:
                patience.renew()
                failures.clear()
            outage = _outage(failures, str(error))
            progress.error = f"{outage}; trying again"
            if progress.lost_at is None and progress.contacts:
                progress.lost_at = session.clock.now()
            log.warning(
                "%s; trying again for %.0f s", error, max(0.0, patience.remaining())
            )
            patience.wait(outage)
        except NeedsOperators as error:
            # There is no deadline: a person decides.
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
    """Return an error of the newest failure, with the last different ones before it.

    ``failures`` are those of this outage, the newest first; ``newest`` is added. While
    the dealer is away the servers lose each other too, between tries that never quite
    meet: the newest failure alone would send an operator to the wrong machine.
    """
    earlier = [failure for failure in failures if failure != newest]
    failures[:] = [newest, *earlier][:_NAMED_FAILURES]
    if len(failures) == 1:
        return PeerUnavailable(newest)
    return PeerUnavailable(
        f"{newest} (earlier in this outage: {'; '.join(failures[1:])})"
    )
