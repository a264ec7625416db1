"""Taking part in a whole training: watch, fetch, compute, submit, until it is over.

One version gets one update, and one attempt one submission, whatever breaks. The update
is kept on the disk, then charged on the owner's account, then sent. For a further
attempt it is shared afresh; within an attempt the same bytes are sent again. A lost one
is never replaced: a second sample would cost privacy that nobody counts. An upload
begins a public time after the model's last byte, whatever the records.
"""

import math
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np

from precad.client.connection import Servers
from precad.client.own_account import OwnAccount
from precad.client.participation import (
    Compute,
    Observer,
    Participation,
    RoundView,
    TrainedModel,
    VersionOver,
)
from precad.client.pending_update import Kept, Pending
from precad.client.server_statements import ServerStatements, StatedOpening
from precad.common import (
    CLOCK,
    SERVERS,
    BudgetExceeded,
    Clock,
    Digest,
    Misidentified,
    ModelVector,
    NotOnOffer,
    PeerUnavailable,
    PeerViolation,
    Rejection,
    Retries,
    RetryPolicy,
    RingVector,
    Task,
    log,
    submission_id,
)
from precad.common.process import warn
from precad.common.wire import (
    Notice,
    RoundOpen,
    RoundOver,
    TrainingOver,
    TrainingPaused,
)

RECONNECTION = RetryPolicy(first_s=0.2, longest_s=5.0, spread=True)
"""Waits before server A's notices are asked for again."""
MOST_LATE = 3
"""Attempts whose work overran ``deadlines.work``, after which an owner leaves."""
STEADY_S = 10.0
"""Seconds: a watch that lasted so long was a connection; attempts to get one fail
sooner."""


@dataclass(slots=True, kw_only=True)
class Participant:
    """One client's part in a training, notice by notice: ``run`` takes it.

    After a reconnection the newest notice comes again, so the newest attempts that were
    handled are kept.
    """

    servers: Servers
    """Calls to both servers; the client is enrolled with them."""
    budget: OwnAccount
    """The owner's account, which is charged before a version's update is first shared.
    """
    pending: Pending
    """Keeps that update, and the open attempt's pair for retries."""
    compute: Compute
    """Makes the update."""
    clock: Clock = CLOCK
    """What waits pass by."""
    statements: ServerStatements
    """Keeps what the servers sign."""
    observer: Observer = field(default_factory=Observer)
    """Is told how the training goes."""
    wait_s: float | None = None
    """Seconds that servers may be away; the task's outage unless given."""
    result: Participation = field(default_factory=Participation)
    answered: int = -1
    """The newest attempt that needs no answer any more."""
    over: int = -1
    """The newest attempt whose end was heard."""
    sent: int = -1
    """The newest attempt that counts as sent in ``result``."""
    uploaded: dict[int, str] = field(default_factory=dict)
    """The newest attempt of which an upload began, with its submission's id."""
    taken: dict[int, Kept] = field(default_factory=dict)
    """The newest attempt whose pair both servers took, and what it held."""
    opened: tuple[RoundOpen, float] | None = None
    """The newest attempt that was announced, and the clock's instant of that."""

    @property
    def task(self) -> Task:
        """The servers' task, which is the owner's."""
        return self.servers.task

    @property
    def cover(self) -> bool:
        """Whether every client uploads in every attempt, drawn or not."""
        return self.task.mechanism.hides_coin

    def run(self) -> Participation:
        """Take part until the training is over, or the owner's limit is reached.

        Server A's notices are handled to the end; where they break off they are asked
        for again. Under ``cover_uploads`` a client whose limit is reached stays, and
        sends zeros.

        Raises:
            PeerViolation: the servers disagree about the model, a signature is wrong,
                or a server has forgotten what it signed.
            PeerUnavailable: a server stayed away, or A paused, for longer than
                ``wait_s``.
            StorageFailure: the owner's own disk fails.
        """
        result = self.result
        outage = self.task.deadlines.outage
        wait_s = outage if self.wait_s is None else self.wait_s
        retries = Retries(total_s=wait_s, policy=RECONNECTION, clock=self.clock)
        while not result.ended:
            connected_at = math.inf
            failure = PeerUnavailable("server A ended the notices")
            try:
                # A server that has lost its memory learns here what it signed.
                self._exchange_statements()
                connected_at = self.clock.now()
                if self.opened is None:
                    self.observer.doing(
                        "enrolled; waiting for the others and the first round"
                    )
                for notice in self.servers.watch():
                    if not isinstance(notice, TrainingPaused):
                        retries.renew()
                    self._handle(notice, self.clock.now())
                    if result.ended:
                        break
            except PeerUnavailable as error:
                if self.clock.now() - connected_at > STEADY_S:
                    retries.renew()
                waited = wait_s - retries.remaining() > outage
                if waited and isinstance(error, Misidentified):
                    # Waiting for longer than servers do doesn't mend that.
                    raise
                log.warning("%s; reconnecting", error)
                failure = error
            finally:
                self.observer.free()
            if not result.ended:
                until = self.clock.now() + retries.remaining()
                self.observer.doing(f"waiting for server A ({failure})", until)
                retries.wait(failure)
        result.epsilon = self.budget.epsilon()
        return result

    def _exchange_statements(self, signed: bytes | None = None) -> None:
        """Get both servers' statements and compare their charges with the account.

        ``signed`` is server A's statement, where it came with a notice. What both have
        charged and the account lacks is charged now.

        Raises PeerUnavailable: one server alone has signed more charges than the
        account has. Nothing is shared until that is cleared up.
        """
        self.statements.exchange(self.servers, signed)
        versions, charges = self.statements.charged()
        of_both = (charges.get(role, []) for role in SERVERS)
        charged_by_both = list(map(min, *of_both))
        if self.budget.lacks(charged_by_both):
            log.warning(
                "the owner's account is an older copy, or another one is in use: both"
                " servers have signed more charges. They count here from now on"
            )
            self.budget.adopt(charged_by_both, versions)
        for role, counts in charges.items():
            if self.budget.lacks(counts):
                raise PeerUnavailable(
                    f"{role.value} has signed more charges ({counts[0]} versions) than"
                    " the other server and this owner's account: nothing is shared"
                    " until they agree; ask both operators, and look for a newer copy"
                    " of the account"
                )

    def _handle(self, notice: Notice, came: float) -> None:
        """Do what a notice of server A calls for.

        ``came`` is the clock's instant at which it was heard.

        Raises PeerUnavailable: the training is paused, or a server isn't there.
        """
        match notice:
            case RoundOpen():
                self._handle_open_attempt(notice, came)
            case RoundOver():
                self._forget_versions_below(notice.version + 1)
                if notice.attempt > self.over:
                    self.over = notice.attempt
                    self._tally(notice)
            case TrainingOver(version, model):
                self.pending.drop()
                self.observer.doing("fetching the final model")
                if self.statements.stated(version) is None:
                    # Server B may have stated itself before it heard that A holds it.
                    # Once all owners have the model, servers may end.
                    self._exchange_statements()
                theta = self.statements.final_model(self.servers, version, model)
                self.statements.saw(version, model, theta)
                self.result.ended = "finished"
                self._saw(version, model, theta)
            case TrainingPaused():
                # It may come back, with all that counts: the submission waits as long
                # as others.
                raise PeerUnavailable(
                    "server A paused the training; its operators know why"
                )

    def _handle_open_attempt(self, notice: RoundOpen, came: float) -> None:
        """Answer an attempt once, if this client has a part in it."""
        self.opened = notice, came
        self._forget_versions_below(notice.version)
        if (notice.selected or self.cover) and notice.attempt > self.answered:
            self.observer.hold()
            self._answer(notice, came)
            self.observer.free()
        if self.result.ended:
            return
        if self.answered == notice.attempt:
            part = "update sent"
        else:
            part = "sitting it out" if notice.selected else "not drawn"
        self.observer.doing(
            f"round {notice.version + 1}: {part}; waiting for the others",
            self._closes(notice, came),
        )

    def _closes(self, event: RoundOpen, came: float) -> float:
        """Return the clock's instant at which collection ends.

        Nothing that is announced, NaN too, makes that later than the task's own
        deadline.
        """
        return came + min(self.task.deadlines.collect, event.collect_seconds)

    def _saw(self, version: int, model: Digest, theta: ModelVector) -> None:
        """Make this model the result's and the observer's, if it is the newest."""
        newest = self.result.model
        if newest is None or newest.version < version or self.result.ended:
            self.result.model = TrainedModel(
                task=self.task, version=version, theta=theta, digest=model
            )
            self.observer.saw(self.result.model)

    def _forget_versions_below(self, version: int) -> None:
        """Remove an older version's update: versions follow one another."""
        if self.pending.version is not None and self.pending.version < version:
            self.pending.drop()

    def _tally(self, over: RoundOver) -> None:
        """Count and tell the end of a version, and compare what the servers state."""
        rejection = "" if over.counted else over.rejection
        if rejection == Rejection.ABSENT.value and over.attempt in self.uploaded:
            rejection = "late"  # nothing whole had arrived when the round closed
        if over.counted:
            self.result.counted += 1
        elif rejection:
            self.result.rejected[rejection] += 1
            self._warn(over, f"submission rejected: {rejection}")
        self._exchange_statements(over.signed)
        self._look_after_own(over)
        drawn = over.counted or bool(rejection)
        seconds = None
        if self.opened is not None:
            opened, came = self.opened
            if opened.attempt == over.attempt:
                drawn = drawn or opened.selected
                seconds = self.clock.now() - came
        self.observer.over(
            VersionOver(
                version=over.version,
                attempt=over.attempt,
                submission=self.uploaded.get(over.attempt),
                drawn=drawn,
                counted=over.counted,
                rejected=rejection,
                seconds=seconds,
                spent=self.budget.spent(),
            )
        )
        self.observer.doing("waiting for the next round")

    def _warn(self, event: RoundOpen | RoundOver, text: str) -> None:
        about = dict[str, int | str](version=event.version, attempt=event.attempt)
        if event.attempt in self.uploaded:
            about["submission"] = self.uploaded[event.attempt]
        warn(about, text)

    def _look_after_own(self, over: RoundOver) -> None:
        """Follow an attempt for which both servers took this owner's pair.

        The owner warns if the servers state that it doesn't count, and keeps the model
        that it led to.
        """
        kept = self.taken.get(over.attempt)
        if kept is None:
            return
        if kept.re_releases is not None and not self.statements.counted(over.version):
            self._warn(
                over,
                "both servers took the submission and state that it doesn't count; an"
                " honest one always does: one of them may be bad",
            )
        # The model that this owner helped to make, in case both servers lose it.
        version = over.version + 1
        model = self.statements.stated(version)
        newest = self.result.model
        before = newest.theta if newest and newest.digest == kept.model else None
        if model is not None:
            with suppress(PeerUnavailable):
                theta = self.statements.next_model(self.servers, version, model, before)
                self._saw(version, model, theta)
                self.statements.saw(version, model, theta)

    def _answer(self, event: RoundOpen, came: float) -> None:
        """Answer one attempt: compute, keep, charge, wait for the time to upload, upload.

        After a PeerUnavailable the attempt is unanswered: its notice comes again.
        """
        doing = self.observer.doing
        result = self.result
        deadline = self._closes(event, came)
        number = event.version + 1
        doing(f"round {number}: computing", deadline)
        kept = self._ready_to_send(event)
        begun = came
        makes = kept is None
        if makes:
            begun = self._make(event)
            kept = self._ready_to_send(event)
        if kept is None:
            self.answered = event.attempt
            return
        if self.sent != event.attempt:
            self.sent = event.attempt
            if kept.re_releases is None:
                result.covered += 1
            else:
                result.submitted += 1
        # However long the work took: that is nobody's business.
        early_s = begun + self.task.deadlines.work - self.clock.now()
        if makes and early_s < 0 < self.task.deadlines.work:
            self._overran(event, -early_s)
        if early_s > 0:
            doing(
                f"round {number}: ready; the public time to upload comes",
                self.clock.now() + early_s,
            )
            self.clock.sleep(early_s)
        doing(f"round {number}: uploading", deadline)
        self._send(event, kept, deadline)
        # Never before it is sent: one record would take the whole update with it.
        if result.late >= MOST_LATE:
            log.error(
                "the work overran deadlines.work %d times; leaving the training: once"
                " this machine does less, the same command takes part again",
                result.late,
            )
            result.ended = "late"

    def _overran(self, event: RoundOpen, late_s: float) -> None:
        """Count an upload that begins late, which tells everybody that it does."""
        self.result.late += 1
        self._warn(
            event,
            f"the work took {late_s:.2g} s longer than deadlines.work ="
            f" {self.task.deadlines.work:g} s, so the upload begins late, and when it"
            f" begins may tell of the records ({self.result.late} of {MOST_LATE} times,"
            " after which this owner leaves): let this machine do less beside, or the"
            " task's deadlines.work be longer (precad doctor)",
        )

    def _ready_to_send(self, event: RoundOpen) -> Kept | None:
        """Return what this attempt sends, if it is on the disk and charged.

        Raises PeerViolation: the attempt had another model before.
        """
        kept = self.pending.of_attempt(event.attempt)
        if kept is None:
            return None
        if kept.model != event.model:
            raise PeerViolation(
                f"attempt {event.attempt} was announced with model {kept.model} and now"
                f" with {event.model}; nothing more is sent"
            )
        re_releases = kept.re_releases
        if re_releases is not None and not self.budget.charged(
            event.version, re_releases
        ):
            # The process died between the two: not a byte of this pair has left.
            return None
        return kept

    def _make(self, event: RoundOpen) -> float:
        """Make what this attempt sends, keep it, and then charge it.

        That is the update, or zeros under ``cover_uploads`` where the update may not be
        shared. Nothing is kept where this client sits the attempt out.

        What is returned is the clock's instant at which the work began: all that it
        needs had come, the last byte of the model too. A server that holds something
        back moves the upload with it, and sees nothing of how long the work takes.
        """
        version = event.version
        model = event.model
        # Before the models of all owners fill the servers' lines.
        try:
            opening = self.statements.opening(self.servers, event)
        except NotOnOffer:
            self._warn(event, "was over before it could be answered")
            return self.clock.now()
        theta = self.statements.model(version, model)
        if theta is None:
            # Both statements name it.
            theta = self.servers.fetch_model(version, model, signed=True)
        begun = self.clock.now()
        self._saw(version, model, theta)
        re_releases = self._re_releases(event, opening)
        shares_update = event.selected and self._may_share(event, re_releases)
        if not (shares_update or self.cover):
            return begun
        self.statements.saw(version, model, theta)
        update = self._work(event, begun, theta, shares_update=shares_update)
        if shares_update and update is not None:
            self._keep(event, opening, update, shared=update, re_releases=re_releases)
            try:
                self.budget.charge(version, re_releases)
            except BudgetExceeded:
                # Another task of this data set was charged while this one computed.
                self._limit_is_reached(event)
            else:
                return begun
        if self.cover:
            if event.selected:
                self.budget.cover(version)
            self._keep(
                event,
                opening,
                update,
                shared=np.zeros(self.task.dimension, dtype=np.int64),
                re_releases=None,
            )
        return begun

    def _re_releases(self, event: RoundOpen, opening: StatedOpening) -> int:
        """Return m: how many releases of this version's update may have left before.

        No more than the attempts that shared it, whatever a server has signed.
        """
        shared = self.pending.answered(event.version, event.attempt)
        if opening.re_releases > shared:
            self._warn(
                event,
                "a server signed that this owner's update was released"
                f" {opening.re_releases} times before, and it answered {shared}"
                " attempts with it, which are counted: that server may be bad",
            )
        return min(opening.re_releases, shared)

    def _keep(
        self,
        event: RoundOpen,
        opening: StatedOpening,
        update: RingVector | None,
        *,
        shared: RingVector,
        re_releases: int | None,
    ) -> None:
        """Share ``shared`` for this attempt, and keep the pair with the update X."""
        pair = self.servers.prepare(
            version=event.version,
            attempt=event.attempt,
            model=event.model,
            x=shared,
            proof=opening.proof,
        )
        self.pending.keep(event.version, update, pair, re_releases)

    def _work(
        self,
        event: RoundOpen,
        begun: float,
        theta: ModelVector,
        *,
        shares_update: bool,
    ) -> RingVector | None:
        """Return X of this version, computed once; None where there is none to share.

        Under ``cover_uploads`` there is always the same work, so that a late upload
        tells nothing.
        """
        update = self.pending.update(event.version)
        is_first = shares_update and update is None
        view = RoundView(
            attempt=event.attempt,
            theta=theta,
            model=event.model,
            version=event.version,
            covering=not is_first,
            left_s=begun + self.task.deadlines.work - self.clock.now(),
        )
        if is_first:
            return self.compute(view)
        if self.cover:
            self.compute(view)
        return update

    def _may_share(self, event: RoundOpen, re_releases: int) -> bool:
        """Return whether this version's update may be shared with m = ``re_releases``.

        A reason against it goes to the log.
        """
        version = event.version
        model = event.model
        kept_model = self.pending.model(version)
        if self.statements.released(version):
            reason = "a server has stated that this version is over"
        elif self.statements.changed(version, model) or kept_model not in (None, model):
            reason = "this version had another model before"
        elif self.budget.charged(version) and self.pending.update(version) is None:
            reason = "what was shared before the restart is lost"
        elif not self.budget.allows(version, re_releases):
            self._limit_is_reached(event)
            return False
        else:
            return True
        instead = "sending zeros" if self.cover else "sitting it out"
        self._warn(event, f"{reason}; {instead}")
        return False

    def _limit_is_reached(self, event: RoundOpen) -> None:
        """Leave the training, or stay and send zeros under ``cover_uploads``."""
        if self.cover:
            self._warn(event, "the owner's privacy limit is reached; sending zeros")
            return
        log.warning("the owner's privacy limit is reached; leaving the training")
        self.result.ended = "budget"

    def _send(self, event: RoundOpen, kept: Kept, deadline: float) -> None:
        """Upload an attempt's pair until ``deadline``; note the servers' answers."""
        submission = submission_id(kept.pair[0].context.digest.value)
        self.uploaded = {event.attempt: submission}
        left_s = deadline - self.clock.now()
        try:
            receipts = self.servers.submit(kept.pair, max(1.0, left_s))
        except PeerUnavailable as error:
            # The attempt goes on without this client, or its notice comes again.
            self._warn(event, str(error))
            return
        self.answered = event.attempt
        rejected = [receipt for receipt in receipts if receipt.rejection is not None]
        for receipt in rejected:
            self._warn(event, f"{receipt.role.value} rejected it: {receipt.detail}")
        if not rejected:
            self.taken = {event.attempt: kept}
