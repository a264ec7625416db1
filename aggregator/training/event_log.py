"""What happens in a training, from the round's thread to the handlers on the event loop."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass

from precad.aggregator.rounds.states import Opened
from precad.common.clock import Clock
from precad.common.errors import Rejection
from precad.common.identifiers import ClientId, Digest

KEPT_EVENTS = 256


@dataclass(frozen=True, slots=True)
class StepCost:
    """One step of a round."""

    step: str
    """``collect``, ``validate``, ``release`` or ``keep``."""
    seconds: float
    cpu_seconds: float
    """Of this process's threads; its workers' isn't in it."""
    ended: float
    """When it was over, by this machine's monotonic clock."""
    cpu_ended: float
    """This process's processor time until then."""


class Steps:
    """Times a round's steps, one after the other."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began = clock.now(), time.process_time()
        self.costs: list[StepCost] = []
        """The steps that are over, in order."""

    def over(self, step: str) -> None:
        """``step`` ends now; the next one begins."""
        now = self._clock.now(), time.process_time()
        took = now[0] - self._began[0], now[1] - self._began[1]
        self.costs.append(StepCost(step, *took, *now))
        self._began = now


@dataclass(frozen=True, slots=True)
class RoundOpened:
    """Submissions are taken now."""

    opened: Opened
    collect_s: float


@dataclass(frozen=True, slots=True)
class RoundDone:
    """The next model is there. Holds no vector: events are kept for late followers."""

    opened: Opened
    valid: frozenset[ClientId]
    rejections: Mapping[ClientId, Rejection]
    model: Digest
    most_participations: int
    steps: tuple[StepCost, ...] = ()


@dataclass(frozen=True, slots=True)
class TrainingDone:
    """No round follows. ``version`` is the final model's."""

    version: int
    model: Digest


@dataclass(frozen=True, slots=True)
class TrainingPaused:
    """This server stops before the training's end; it may be started again."""


Event = RoundOpened | RoundDone | TrainingDone | TrainingPaused


class EventLog:
    """An append-only sequence of events; published from any thread, followed on the loop.

    A follower that falls more than ``KEPT_EVENTS`` behind skips what it missed.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._events: deque[Event] = deque(maxlen=KEPT_EVENTS)
        self._published = 0
        self._news = asyncio.Event()

    def publish(self, event: Event) -> None:
        """Append an event, from any thread."""
        self._loop.call_soon_threadsafe(self._append, event)

    async def follow(self, *, from_start: bool) -> AsyncIterator[Event]:
        """Yield events from the oldest kept one on, or the newest; end after the training's end."""
        kept = len(self._events)
        at = self._published - (kept if from_start else min(kept, 1))
        while True:
            while at < self._published:
                oldest = self._published - len(self._events)
                at = max(at, oldest) + 1
                event = self._events[at - 1 - oldest]
                yield event
                if isinstance(event, TrainingDone | TrainingPaused):
                    return
            await self._news.wait()

    def _append(self, event: Event) -> None:
        self._events.append(event)
        self._published += 1
        # Wakes everybody who waits now; followers look at the count, not at the flag.
        self._news.set()
        self._news = asyncio.Event()
