"""Taking part in a whole training: watch, fetch, compute, submit, until it is over.

One version gets one update, and one attempt one submission, whatever breaks. The update
is kept, then counted on the owner's account, then shared; for a further attempt it is
shared afresh, and within an attempt the same bytes are sent again. An update that was
lost is not replaced: a second sample of records would cost privacy that nobody counts.
What others see of this depends on no record: uploads begin at a public time, and under
``cover_uploads`` whoever isn't drawn sends zeros.
"""

import logging
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np

from precad.client.connection import Servers
from precad.client.own_account import OwnAccount
from precad.client.participation import (
    Observer,
    Participation,
    TrainedModel,
    VersionOver,
)
from precad.client.pending_update import Kept, Pending
from precad.client.server_statements import ServerStatements, StatedOpening
from precad.common import errors
from precad.common.clock import CLOCK, Clock, Retries, RetryPolicy
from precad.common.identifiers import Digest
from precad.common.model import ModelVector
from precad.common.ring import RingVector
from precad.common.task import Task
from precad.common.wire import messages as wire

log = logging.getLogger("precad")

RECONNECTION = RetryPolicy(0.2, 5.0, spread=True)
"""Before reconnecting."""
STEADY_S = 10.0
"""A watch that lasted so long was a connection; attempts to get one fail sooner."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundView:
    """What a client knows of the attempt that it computes for."""

    attempt: int
    theta: ModelVector = field(repr=False)
    """``[d] float32``, θ_t; float64 where it was made so."""
    model: Digest
    version: int = 0
    """t."""
    covering: bool = False
    """Whether this is work for show, as much as ever and on no record; its result isn't
    used."""
    left_s: float = math.inf
    """Seconds until the public time, at which uploads begin."""


Compute = Callable[[RoundView], RingVector]
"""Gives the encoded update ``[d] int64`` for a version."""


def take_part(
    servers: Servers,
    budget: OwnAccount,
    pending: Pending,
    compute: Compute,
    clock: Clock = CLOCK,
    statements: ServerStatements | None = None,
    observer: Observer | None = None,
    wait_s: float | None = None,
) -> Participation:
    """Take part until the training is over or, without ``cover_uploads``, the owner's budget is.

    The client is enrolled with ``servers``. ``budget`` is charged before a version's update is
    first shared; ``pending`` keeps that update, and the open attempt's pair for retries. What the
    servers sign is kept in memory without ``statements``. They may be away for ``wait_s``, the
    task's outage unless given.

    Raises:
        PeerViolation: the servers disagree about the model, a signature is wrong, or a
            server has forgotten what it signed.
        PeerUnavailable: a server stayed away, or A paused, for longer than ``wait_s``.
        StorageFailure: the owner's own disk fails.
    """
    statements = statements or ServerStatements(servers.task, servers.client)
    observer = observer or Observer()
    wait_s = servers.task.deadlines.outage if wait_s is None else wait_s
    return _Participant(
        servers=servers,
        budget=budget,
        pending=pending,
        compute=compute,
        clock=clock,
        statements=statements,
        observer=observer,
        wait_s=wait_s,
    ).run()


@dataclass(slots=True, kw_only=True)
class _Participant:
    servers: Servers
    budget: OwnAccount
    pending: Pending
    compute: Compute
    clock: Clock
    statements: ServerStatements
    observer: Observer
    wait_s: float
    result: Participation = field(default_factory=Participation)
    # After a reconnection the newest notice comes again.
    answered: int = -1
    over: int = -1
    sent: int = -1
    taken: tuple[int, Kept] | None = None
    """The newest attempt whose pair both servers took, and what it held."""
    opened: tuple[wire.RoundOpen, float] | None = None
    """The newest attempt that was announced, and when."""

    @property
    def task(self) -> Task:
        return self.servers.task

    @property
    def cover(self) -> bool:
        return self.task.privacy.cover_uploads

    def run(self) -> Participation:
        result = self.result
        retries = Retries(
            total_s=self.wait_s,
            policy=RECONNECTION,
            clock=self.clock,
        )
        while not result.ended:
            connected: float | None = None
            ended = errors.PeerUnavailable("server A ended the notices")
            try:
                # A server that has lost its memory learns here what it signed.
                self._exchange()
                connected = self.clock.now()
                if self.opened is None:
                    self.observer.doing(
                        "enrolled; waiting for the others and the first round"
                    )
                for notice in self.servers.watch():
                    if not isinstance(notice, wire.TrainingPaused):
                        retries.renew()
                    self._handle(notice, self.clock.now())
                    if result.ended:
                        break
            except errors.PeerUnavailable as error:
                if connected is not None and self.clock.now() - connected > STEADY_S:
                    retries.renew()
                gone_s = self.wait_s - retries.remaining()
                if (
                    isinstance(error, errors.Misidentified)
                    and gone_s > self.task.deadlines.outage
                ):
                    # Waiting for longer than servers do doesn't mend that.
                    raise
                log.warning("%s; reconnecting", error)
                ended = error
            finally:
                self.observer.free()
            if not result.ended:
                until = self.clock.now() + retries.remaining()
                self.observer.doing(f"waiting for server A ({ended})", until)
                retries.wait(ended)
        result.epsilon = self.budget.epsilon()
        return result

    def _exchange(self, signed: bytes | None = None) -> None:
        self.statements.exchange(self.servers, signed)
        versions, counts = self.statements.charged()
        both = [min(pair) for pair in zip(*counts.values(), strict=False)]
        if self.budget.lacks(both):
            log.warning(
                "the owner's account is an older copy, or another one is in use: both"
                " servers have signed more charges. They count here from now on"
            )
            self.budget.adopt(both, versions)
        for role, each in counts.items():
            if self.budget.lacks(each):
                raise errors.PeerUnavailable(
                    f"{role.value} has signed more charges ({each[0]} versions) than"
                    " the other server and this owner's account: nothing is shared"
                    " until they agree; ask both operators, and look for a newer copy"
                    " of the account"
                )

    def _handle(self, notice: wire.Notice, came: float) -> None:
        match notice:
            case wire.RoundOpen():
                self.opened = notice, came
                self._forget_versions_below(notice.version)
                if (notice.selected or self.cover) and notice.attempt > self.answered:
                    self.observer.hold()
                    self._answer(notice, came)
                    self.observer.free()
                if not self.result.ended:
                    what = "sitting it out" if notice.selected else "not drawn"
                    what = "update sent" if self.answered == notice.attempt else what
                    text = f"round {notice.version + 1}: {what}; waiting for the others"
                    self.observer.doing(text, self._closes(notice, came))
            case wire.RoundOver():
                self._forget_versions_below(notice.version + 1)
                if notice.attempt > self.over:
                    self.over = notice.attempt
                    self._tally(notice)
            case wire.TrainingOver(version, model):
                self.pending.drop()
                self.observer.doing("fetching the final model")
                theta = self.servers.fetch_model(version, model)
                self.statements.saw(version, model, theta)
                self.result.ended = "finished"
                self._saw(version, model, theta)
            case wire.TrainingPaused():
                # It may come back, with all that counts: the submission waits as long
                # as others.
                raise errors.PeerUnavailable(
                    "server A paused the training; its operators know why"
                )

    def _closes(self, event: wire.RoundOpen, came: float) -> float:
        """When collection ends.

        Nothing that is announced, NaN too, stretches the task's own.
        """
        return came + min(self.task.deadlines.collect, event.collect_seconds)

    def _saw(self, version: int, model: Digest, theta: ModelVector) -> None:
        newest = self.result.model
        if newest is None or newest.version < version or self.result.ended:
            self.result.model = TrainedModel(
                task=self.task,
                version=version,
                theta=theta,
                digest=model,
            )
            self.observer.saw(self.result.model)

    def _forget_versions_below(self, version: int) -> None:
        """Versions follow one another, so an older one's update has no further use."""
        if self.pending.version is not None and self.pending.version < version:
            self.pending.drop()

    def _tally(self, over: wire.RoundOver) -> None:
        rejected = "" if over.counted else over.rejection
        if over.counted:
            self.result.counted += 1
        elif rejected:
            self.result.rejected[rejected] += 1
            self._warn(over, f"submission rejected: {rejected}")
        self._exchange(over.signed)
        self._look_after_own(over)
        opened, came = self.opened or (None, 0.0)
        heard = (
            opened if opened is not None and opened.attempt == over.attempt else None
        )
        self.observer.over(
            VersionOver(
                version=over.version,
                drawn=over.counted
                or bool(rejected)
                or (heard is not None and heard.selected),
                counted=over.counted,
                rejected=rejected,
                seconds=None if heard is None else self.clock.now() - came,
                spent=self.budget.spent(),
            )
        )
        self.observer.doing("waiting for the next round")

    def _warn(self, event: wire.RoundOpen | wire.RoundOver, what: str) -> None:
        log.warning("attempt %d of version %d: %s", event.attempt, event.version, what)

    def _look_after_own(self, over: wire.RoundOver) -> None:
        """Where both servers took this owner's pair: whether it counted, and what it led to."""
        if self.taken is None or self.taken[0] != over.attempt:
            return
        if self.taken[1].re_releases is not None and not self.statements.counted(
            over.version
        ):
            self._warn(
                over,
                "both servers took the submission and state that it doesn't count; an"
                " honest one always does: one of them may be bad",
            )
        # The model that this owner helped to make, in case both servers lose it.
        version = over.version + 1
        model = self.statements.stated(version)
        if model is not None:
            with suppress(errors.PeerUnavailable):
                theta = self.servers.fetch_model(version, model, signed=True)
                self._saw(version, model, theta)
                self.statements.saw(version, model, theta)

    def _answer(self, event: wire.RoundOpen, came: float) -> None:
        """Answer one attempt.

        PeerUnavailable leaves it unanswered: the notice comes again.
        """
        deadline = self._closes(event, came)
        number = event.version + 1
        self.observer.doing(f"round {number}: computing", deadline)
        kept = self._kept(event)
        if kept is None:
            self._make(event, came)
            kept = self._kept(event)
        if kept is None:
            self.answered = event.attempt
            return
        if self.sent != event.attempt:
            self.sent = event.attempt
            self.result.submitted += kept.re_releases is not None
            self.result.covered += kept.re_releases is None
        # Not before a time that everybody knows: how long the work took is nobody's
        # business.
        early = came + self.task.deadlines.work - self.clock.now()
        if early > 0:
            public = self.clock.now() + early
            self.observer.doing(
                f"round {number}: ready; the public time to upload comes", public
            )
            self.clock.sleep(early)
        self.observer.doing(f"round {number}: uploading", deadline)
        self._send(event.attempt, kept, deadline)

    def _kept(self, event: wire.RoundOpen) -> Kept | None:
        """What this attempt sends, once it may be sent: it is on the disk, and counted."""
        kept = self.pending.of_attempt(event.attempt)
        if kept is None:
            return None
        if kept.model != event.model:
            raise errors.PeerViolation(
                f"attempt {event.attempt} was announced with model {kept.model} and now"
                f" with {event.model}; nothing more is sent"
            )
        m = kept.re_releases
        if m is not None and not self.budget.charged(event.version, m):
            # The process died between the two: not a byte of this pair has left.
            return None
        return kept

    def _make(self, event: wire.RoundOpen, came: float) -> None:
        version = event.version
        model = event.model
        # Before the models of all owners fill the servers' lines.
        try:
            opened = self.statements.opening(self.servers, event)
        except errors.NotOnOffer:
            log.warning(
                "attempt %d was over before it could be answered", event.attempt
            )
            return
        theta = self.statements.model(version, model)
        if theta is None:
            # Both statements name it.
            theta = self.servers.fetch_model(version, model, signed=True)
        self._saw(version, model, theta)
        signed = opened.re_releases
        re_releases = min(signed, self.pending.answered(version, event.attempt))
        if signed > re_releases:
            what = (
                "a server signed that this owner's update was released {} times before,"
                " and it "
            )
            what += (
                "answered {} attempts with it, which are counted: that server may"
                " be bad"
            )
            self._warn(event, what.format(signed, re_releases))
        records = event.selected and self._may_share(event, re_releases)
        if not (records or self.cover):
            return
        self.statements.saw(version, model, theta)
        update = self._work(event, came, theta, records=records)
        if records and update is not None:
            self._keep(
                event,
                opened,
                update,
                update,
                re_releases,
            )
            try:
                self.budget.charge(version, re_releases)
            except errors.BudgetExceeded:
                # Another task of this data set was charged while this one computed.
                self._limit_is_reached(event)
            else:
                return
        if self.cover:
            if event.selected:
                self.budget.cover(version)
            zeros = np.zeros(self.task.dimension, dtype=np.int64)
            self._keep(
                event,
                opened,
                update,
                zeros,
                None,
            )

    def _keep(
        self,
        event: wire.RoundOpen,
        opened: StatedOpening,
        update: RingVector | None,
        shared: RingVector,
        re_releases: int | None,
    ) -> None:
        pair = self.servers.prepare(
            version=event.version,
            attempt=event.attempt,
            model=event.model,
            x=shared,
            proof=opened.proof,
        )
        self.pending.keep(event.version, update, pair, re_releases)

    def _work(
        self,
        event: wire.RoundOpen,
        came: float,
        theta: ModelVector,
        *,
        records: bool,
    ) -> RingVector | None:
        """X of this version, computed once; None where there is none to share.

        Under ``cover_uploads`` there is always the same work, so that a late upload
        tells nothing.
        """
        update = self.pending.update(event.version)
        fresh = records and update is None
        view = RoundView(
            attempt=event.attempt,
            theta=theta,
            model=event.model,
            version=event.version,
            covering=not fresh,
            left_s=came + self.task.deadlines.work - self.clock.now(),
        )
        if fresh:
            return self.compute(view)
        if self.cover:
            self.compute(view)
        return update

    def _may_share(self, event: wire.RoundOpen, re_releases: int) -> bool:
        version = event.version
        model = event.model
        kept_of = self.pending.model(version)
        if self.statements.released(version):
            why = "a server has stated that this version is over"
        elif self.statements.changed(version, model) or kept_of not in (None, model):
            why = "this version had another model before"
        elif self.budget.charged(version) and self.pending.update(version) is None:
            why = "what was shared before the restart is lost"
        elif not self.budget.allows(version, re_releases):
            self._limit_is_reached(event)
            return False
        else:
            return True
        self._warn(
            event, f"{why}; {'sending zeros' if self.cover else 'sitting it out'}"
        )
        return False

    def _limit_is_reached(self, event: wire.RoundOpen) -> None:
        if self.cover:
            self._warn(event, "the owner's privacy limit is reached; sending zeros")
            return
        log.warning("the owner's privacy limit is reached; leaving the training")
        self.result.ended = "budget"

    def _send(self, attempt: int, kept: Kept, deadline: float) -> None:
        try:
            receipts = self.servers.submit(
                kept.pair, max(1.0, deadline - self.clock.now())
            )
        except errors.PeerUnavailable as error:
            # The attempt goes on without this client, or its notice comes again.
            log.warning("attempt %d: %s", attempt, error)
            return
        self.answered = attempt
        refused = [each for each in receipts if each.rejection is not None]
        for each in refused:
            said = attempt, each.role.value, each.detail
            log.warning("attempt %d: %s rejected the upload: %s", *said)
        if not refused:
            self.taken = attempt, kept
