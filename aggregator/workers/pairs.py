"""Validation by pairs of workers, A's with B's: results are those of one process, bit for bit.

Both servers go through the same steps in the same order, and so give every submission to the same
pair and the same batch without a word about it; they only tell each other which pairs are there.
A batch is recorded as used, durably, by both before its first submission goes to a worker, and so
before anything of it is dealt. A pair that is lost before has no part in the attempt; one that is
lost after ends the attempt, as a lost server does, and the next one shares X afresh.
"""

import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import numpy as np

from precad.aggregator.rounds.aggregator import Aggregator
from precad.aggregator.rounds.messages import WorkerCount, Workers, WorkerState
from precad.aggregator.rounds.states import Opened
from precad.aggregator.validate.validation import MAX_BATCH_CLIENTS, Verdicts
from precad.aggregator.workers.lane import Lane
from precad.aggregator.workers.pool import Pool
from precad.common.clock import CLOCK, Clock
from precad.common.errors import PeerUnavailable, Rejection
from precad.common.identifiers import ClientId, Role
from precad.common.identity.credentials import Identity
from precad.common.share.submission import Submission
from precad.protos import precad_pb2 as pb

log = logging.getLogger("precad")

_LOOK_S = 0.2


@dataclass(frozen=True, slots=True)
class Crew:
    """One server's workers, and how they reach the other's."""

    pool: Pool
    identity: Identity
    other_host: str = ""
    """At A: server B's, for those of its workers that are on its own machine."""
    own_host: str = "127.0.0.1"
    """Where this server reaches those workers of its own that name no host."""
    clock: Clock = CLOCK


class Pairs:
    """As ``Validator``; to be used in a ``with`` block.

    Args:
        aggregator: this server.
        opened: the attempt.
        crew: its workers.
        epoch: which start of the dealer this server joined.
        pairs: how many there are to be, the same at both servers.
    """

    def __init__(
        self, aggregator: Aggregator, opened: Opened, crew: Crew, epoch: bytes, pairs: int
    ) -> None:
        self._aggregator = aggregator
        self._opened = opened
        self._crew = crew
        self._epoch = epoch
        self._numbers = range(pairs)
        self._lanes: dict[int, Lane] = {}
        self._loads = dict.fromkeys(self._numbers, 0)
        """Submissions that each pair has taken, the same at both servers."""
        self._recorded: dict[int, int] = {}
        """Each pair's newest batch."""
        self._batches = 0
        """How many are recorded."""
        self._waiting: deque[Submission] = deque()
        """Nobody is there to take them."""

    def __enter__(self) -> Self:
        """Pairs begin to link up while uploads come in."""
        self._linked()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Workers forget the attempt."""
        for lane in self._lanes.values():
            lane.close()

    def take(self, submissions: Sequence[Submission]) -> None:
        """As ``Validator.take``; returns when all are handed over."""
        if not submissions:
            return
        self._waiting += submissions
        self._hand_over()

    def ready(self) -> None:
        """As ``Validator.ready``; returns when a pair is there and has what waited."""
        clock, patience_s = self._crew.clock, self._aggregator.task.deadlines.peer
        deadline = clock.now() + patience_s
        # Both count the same turns, up to the length of a wait: whoever gives up first ends it.
        while not self._hand_over():
            if clock.now() >= deadline:
                raise PeerUnavailable(
                    f"no pair of workers was there within {patience_s:g} s; look at both servers' "
                    "logs for why they don't start, or can't reach each other"
                )
            clock.sleep(_LOOK_S)

    def decide(self) -> Verdicts:
        """As ``Validator.decide``."""
        if self._waiting:
            self.ready()
        busy = [self._lanes[number] for number in self._numbers if self._loads[number]]
        for lane in busy:
            lane.decide()
        total = np.zeros(self._aggregator.task.dimension, dtype=np.int64)
        rejections: dict[ClientId, Rejection] = {}
        for lane in busy:
            while (outcome := lane.wait(_LOOK_S)) is None:
                self._aggregator.link.require_alive()
            verdicts, sent = outcome
            rejections |= verdicts.rejections
            total += verdicts.share_sum
            self._aggregator.link.bytes_sent += sent
        return Verdicts(rejections, total)

    def _hand_over(self) -> bool:
        """Give what waits to the pairs that are there: each submission to the least loaded.

        Returns:
            Whether one is.
        """
        ready = self._linked()
        while self._waiting and ready:
            number = min(ready, key=lambda n: (self._loads[n], n))
            submission, lane = self._waiting.popleft(), self._lanes[number]
            if self._loads[number] % MAX_BATCH_CLIENTS == 0:
                self._aggregator.journal.spend(self._opened.attempt, self._batches)
                self._recorded[number] = self._batches
                self._batches += 1
            self._loads[number] += 1
            counted = submission.context.client in self._opened.counted
            lane.take(submission, counted=counted, batch=self._recorded[number])
        return bool(ready)

    def _linked(self) -> list[int]:
        """The pairs that both servers know to be linked; those that aren't are linked up."""
        self._drop_the_lost()
        if self._aggregator.role is Role.SERVER_B:
            for number in self._numbers:
                self._open(number, "")
        own = Workers(workers=tuple(self._state(number) for number in self._numbers))
        answer = self._aggregator.link.exchange("workers", own.to_bytes())
        theirs = Workers.from_bytes(answer).workers
        if self._aggregator.role is Role.SERVER_A:
            for number, state in zip(self._numbers, theirs, strict=False):
                if state.address:
                    self._open(number, state.address)
        return [
            number
            for number, (mine, other) in enumerate(zip(own.workers, theirs, strict=False))
            if mine.ready and other.ready
        ]

    def _state(self, number: int) -> WorkerState:
        placed, lane = self._crew.pool.worker(number), self._lanes.get(number)
        told = placed is not None and self._aggregator.role is Role.SERVER_B
        return WorkerState(
            address=placed.address if placed is not None and told else "",
            ready=lane is not None and lane.ready,
        )

    def _drop_the_lost(self) -> None:
        """Forget lanes that have taken nothing. Raises the error of one that has."""
        for number, lane in list(self._lanes.items()):
            if (error := lane.error) is None:
                continue
            if self._loads[number]:
                raise error
            log.warning("pair %d of workers is linked up anew: %s", number, error)
            lane.close()
            del self._lanes[number]

    def _open(self, number: int, peer: str) -> None:
        placed = self._crew.pool.worker(number)
        if placed is None or number in self._lanes:
            return
        aggregator, crew = self._aggregator, self._crew
        begin = pb.WorkBegin(
            task_digest=aggregator.task.digest.value,
            attempt=self._opened.attempt,
            pair=number,
            peer=f"{crew.other_host}{peer}" if peer.startswith(":") else peer,
            dealer_key=aggregator.dealer_key.reveal(),
            epoch=self._epoch,
            nonces=aggregator.nonces,
        )
        address = placed.address
        self._lanes[number] = Lane(
            f"{crew.own_host}{address}" if address.startswith(":") else address,
            aggregator.task,
            aggregator.role,
            crew.identity,
            begin,
            same_disk=crew.pool.place.same_disk,
        )


def pairs_of(aggregator: Aggregator, own: int) -> int:
    """How many pairs there can be, of so many workers here and those that the other server has."""
    answer = aggregator.link.exchange("pairs", WorkerCount(count=own).to_bytes())
    return min(own, WorkerCount.from_bytes(answer).count)
