"""Taking part in a whole training: watch, fetch, compute, submit, until it is over.

One attempt gets one submission, whatever breaks. The pair of shares is kept, then counted on
the owner's account, then sent; after a break, or after this process was killed, the same bytes
are sent again if the attempt is still open. A pair that was lost is not replaced: the attempt is
sat out, because a second sample of records under it would cost privacy that nobody counts.
"""

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from precad.client.connection import Servers, rejection_of
from precad.client.own_account import OwnAccount
from precad.client.pending import Pair, Pending
from precad.common.clock import CLOCK, Clock
from precad.common.errors import PeerUnavailable, PeerViolation
from precad.common.identifiers import Digest
from precad.common.retry import Patience, Waits
from precad.common.ring import RingVector
from precad.protos import precad_pb2 as pb

log = logging.getLogger("precad")

WAITS = Waits(0.2, 5.0, spread=True)
"""Before reconnecting."""
STEADY_S = 10.0
"""A watch that lasted so long was a connection; attempts to get one fail sooner."""


@dataclass(frozen=True, slots=True)
class RoundView:
    """What a client knows of the attempt that it computes for."""

    attempt: int
    theta: NDArray[np.float64] = field(repr=False)
    """``[d] float64``, θ_t."""
    model: Digest


Compute = Callable[[RoundView], RingVector]
"""Gives the encoded update ``[d] int64`` for an attempt."""


@dataclass(slots=True)
class Participation:
    """How a client's training went."""

    submitted: int = 0
    counted: int = 0
    rejected: Counter[str] = field(default_factory=Counter)
    epsilon: float = 0.0
    """The owner's own account: exact, record level, one server corrupted."""
    ended: str = ""
    """`finished`, or `budget` when the owner's limit was reached first."""
    version: int = 0
    """t of the final model."""
    theta: NDArray[np.float64] | None = field(default=None, repr=False)
    """The final model, ``[d] float64``; None when the owner's limit ended it."""
    model: Digest | None = None


def take_part(
    servers: Servers,
    budget: OwnAccount,
    pending: Pending,
    compute: Compute,
    on_notice: Callable[[Participation, pb.Notice], None] | None = None,
    clock: Clock = CLOCK,
) -> Participation:
    """Take part until the training is over or the owner's budget is.

    Args:
        servers: enrolled already.
        budget: charged before each submission.
        pending: keeps the open attempt's pair for retries.
        compute: called for each attempt this client is drawn for.
        on_notice: called after each notice, for progress.
        clock: passes the time.

    Raises:
        PeerViolation: the servers disagree about the model.
        PeerUnavailable: server A stayed away, or paused, for longer than the task's outage
            deadline.
    """
    return _Player(servers, budget, pending, compute, clock).play(on_notice)


class _Player:
    """One client's training."""

    def __init__(
        self,
        servers: Servers,
        budget: OwnAccount,
        pending: Pending,
        compute: Compute,
        clock: Clock,
    ) -> None:
        self._clock = clock
        self._servers = servers
        self._budget = budget
        self._pending = pending
        self._compute = compute
        self._result = Participation()
        # After a reconnection the newest notice comes again.
        self._answered = -1
        self._over = -1
        self._submitted = -1

    def play(self, on_notice: Callable[[Participation, pb.Notice], None] | None) -> Participation:
        result = self._result
        patience = Patience(self._servers.task.deadlines.outage, WAITS, self._clock)
        while not result.ended:
            began = self._clock.now()
            ended = PeerUnavailable("server A ended the notices")
            try:
                for notice in self._servers.watch():
                    if notice.WhichOneof("event") != "paused":
                        patience.renew()
                    self._handle(notice)
                    if on_notice is not None:
                        on_notice(result, notice)
                    if result.ended:
                        break
            except PeerUnavailable as error:
                if self._clock.now() - began > STEADY_S:
                    patience.renew()
                log.warning("%s; reconnecting", error)
                ended = error
            if not result.ended:
                patience.wait(ended)
        result.epsilon = self._budget.epsilon()
        return result

    def _handle(self, notice: pb.Notice) -> None:
        match notice.WhichOneof("event"):
            case "open":
                event = notice.open
                self._forget_attempts_below(event.attempt)
                if event.selected and event.attempt > self._answered:
                    self._play(event)
            case "over":
                self._forget_attempts_below(notice.over.attempt + 1)
                if notice.over.attempt > self._over:
                    self._over = notice.over.attempt
                    self._tally(notice.over)
            case "finished":
                self._pending.drop()
                result, over = self._result, notice.finished
                result.theta = self._servers.fetch_model(over.version, over.model_digest)
                result.model = Digest(over.model_digest)
                result.version = over.version
                result.ended = "finished"
            case "paused":
                # It may come back, with all that counts: the submission waits as long as others.
                raise PeerUnavailable("server A paused the training; its operators know why")
            case None:
                pass

    def _forget_attempts_below(self, attempt: int) -> None:
        """Attempts follow one another, so an older one's pair has no further use."""
        if self._pending.attempt is not None and self._pending.attempt < attempt:
            self._pending.drop()

    def _tally(self, over: pb.RoundOver) -> None:
        if over.counted:
            self._result.counted += 1
        elif over.rejection:
            reason = rejection_of(over.rejection).value
            self._result.rejected[reason] += 1
            log.warning(
                "attempt %d of version %d: submission rejected: %s",
                over.attempt,
                over.version,
                reason,
            )

    def _play(self, event: pb.RoundOpen) -> None:
        """Answer one attempt. PeerUnavailable leaves it unanswered: the notice comes again."""
        # The task's own deadline first: whatever is announced, NaN too, can't stretch it.
        collect_s = min(self._servers.task.deadlines.collect, event.collect_seconds)
        deadline = self._clock.now() + collect_s
        pair = self._pending.get(event.attempt)
        if pair is None and self._budget.charged(event.attempt):
            log.warning(
                "attempt %d: what was sent before the restart is lost; sitting it out",
                event.attempt,
            )
            self._answered = event.attempt
            return
        if self._budget.exhausted and not self._budget.charged(event.attempt):
            log.warning("the owner's privacy limit is reached; leaving the training")
            self._result.ended = "budget"
            return
        if pair is None:
            theta = self._servers.fetch_model(event.version, event.model_digest)
            view = RoundView(event.attempt, theta, Digest(event.model_digest))
            pair = self._servers.prepare(event.attempt, view.model, self._compute(view))
            self._pending.keep(pair)
        elif pair[0].context.model.value != event.model_digest:
            raise PeerViolation(
                f"attempt {event.attempt} was announced with model {pair[0].context.model} and now "
                f"with {event.model_digest.hex()}; nothing more is sent"
            )
        self._budget.charge(event.attempt)
        self._send(event.attempt, pair, deadline)

    def _send(self, attempt: int, pair: Pair, deadline: float) -> None:
        if self._submitted != attempt:
            self._submitted = attempt
            self._result.submitted += 1
        try:
            receipts = self._servers.submit(pair, max(1.0, deadline - self._clock.now()))
        except PeerUnavailable as error:
            # The attempt goes on without this client, or its notice comes again.
            log.warning("attempt %d: %s", attempt, error)
            return
        self._answered = attempt
        for receipt in receipts:
            if receipt.rejection is not None:
                log.warning(
                    "attempt %d: %s rejected the upload: %s",
                    attempt,
                    receipt.role.value,
                    receipt.detail,
                )
