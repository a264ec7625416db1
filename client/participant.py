"""Taking part in a whole training: watch, fetch, compute, submit, until it is over.

One round number gets one submission, whatever breaks. The pair of shares is kept, then counted on
the owner's account, then sent; after a break, or after this process was killed, the same bytes
are sent again if the round is still open. A pair that was lost is not replaced: the round is sat
out, because a second sample of records under one number would cost privacy that nobody counts.
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
    """What a client knows of the round that it computes for."""

    number: int
    theta: NDArray[np.float64] = field(repr=False)
    """``[d] float64``, θ_t."""
    model: Digest


Compute = Callable[[RoundView], RingVector]
"""Gives the encoded update ``[d] int64`` for a round."""


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
    rounds: int = 0
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
        pending: keeps the open round's pair for retries.
        compute: called for each round this client is drawn for.
        on_notice: called after each notice, for progress.
        clock: passes the time.

    Raises:
        PeerViolation: the servers disagree about the model, or training stopped.
        PeerUnavailable: server A stayed away for longer than the task's outage deadline.
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
                self._forget_rounds_below(event.round)
                if event.selected and event.round > self._answered:
                    self._play(event)
            case "over":
                self._forget_rounds_below(notice.over.round + 1)
                if notice.over.round > self._over:
                    self._over = notice.over.round
                    self._tally(notice.over)
            case "finished":
                self._pending.drop()
                result, over = self._result, notice.finished
                result.theta = self._servers.fetch_model(over.version, over.model_digest)
                result.model = Digest(over.model_digest)
                result.rounds = over.version
                result.ended = "finished"
            case "stopped":
                raise PeerViolation(f"training stopped: {notice.stopped.error}")
            case None:
                pass

    def _forget_rounds_below(self, number: int) -> None:
        """Rounds are played one after the other, so an older one's pair has no further use."""
        if self._pending.round is not None and self._pending.round < number:
            self._pending.drop()

    def _tally(self, over: pb.RoundOver) -> None:
        if over.counted:
            self._result.counted += 1
        elif over.rejection:
            reason = rejection_of(over.rejection).value
            self._result.rejected[reason] += 1
            log.warning("round %d: submission rejected: %s", over.round, reason)

    def _play(self, event: pb.RoundOpen) -> None:
        """Answer one round. PeerUnavailable leaves it unanswered: the notice comes again."""
        # The task's own deadline first: whatever is announced, NaN too, can't stretch it.
        collect_s = min(self._servers.task.deadlines.collect, event.collect_seconds)
        deadline = self._clock.now() + collect_s
        pair = self._pending.get(event.round)
        if pair is None and self._budget.charged(event.round):
            log.warning(
                "round %d: what was sent before the restart is lost; sitting the round out",
                event.round,
            )
            self._answered = event.round
            return
        if self._budget.exhausted and not self._budget.charged(event.round):
            log.warning("the owner's privacy limit is reached; leaving the training")
            self._result.ended = "budget"
            return
        if pair is None:
            theta = self._servers.fetch_model(event.version, event.model_digest)
            view = RoundView(event.round, theta, Digest(event.model_digest))
            pair = self._servers.prepare(event.round, view.model, self._compute(view))
            self._pending.keep(pair)
        elif pair[0].context.model.value != event.model_digest:
            raise PeerViolation(
                f"round {event.round} was announced with model {pair[0].context.model} and now "
                f"with {event.model_digest.hex()}; nothing more is sent"
            )
        self._budget.charge(event.round)
        self._send(event.round, pair, deadline)

    def _send(self, number: int, pair: Pair, deadline: float) -> None:
        if self._submitted != number:
            self._submitted = number
            self._result.submitted += 1
        try:
            receipts = self._servers.submit(pair, max(1.0, deadline - self._clock.now()))
        except PeerUnavailable as error:
            # The round goes on without this client, or its notice comes again.
            log.warning("round %d: %s", number, error)
            return
        self._answered = number
        for receipt in receipts:
            if receipt.rejection is not None:
                log.warning(
                    "round %d: %s rejected the upload: %s",
                    number,
                    receipt.role.value,
                    receipt.detail,
                )
