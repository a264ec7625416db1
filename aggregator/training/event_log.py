"""What happens in a training, from the round's thread to the handlers on the event loop."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field

from precad.aggregator.rounds.states import Opened
from precad.aggregator.training.step_costs import StepCost
from precad.common.errors import Rejection
from precad.common.identifiers import ClientId, Digest

KEPT_EVENTS = 256


@dataclass(frozen=True, slots=True)
class RoundOpened:
    """Submissions are taken now."""

    opened: Opened
    collect_s: float
    cohort: frozenset[ClientId] = field(init=False, repr=False)
    """For every follower's question whether it was drawn."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "cohort", self.opened.counted)


@dataclass(frozen=True, slots=True)
class RoundDone:
    """The next model is there. Holds no vector: events are kept for late followers."""

    opened: Opened
    valid: frozenset[ClientId]
    rejections: Mapping[ClientId, Rejection]
    model: Digest
    most_participations: int
    seconds: float
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
        """Events as they come; ends after the training's end.

        Args:
            from_start: begin with the oldest kept event rather than the newest.
        """
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
