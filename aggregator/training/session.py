"""Hold one server's training: its parts, how far it is, and what happens in it.

The training's thread writes here; the handlers of calls read it.
"""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from enum import Enum

from precad.aggregator import Opened, ServerSignatures
from precad.aggregator.collect import Inbox
from precad.aggregator.enrol import Register, Window
from precad.aggregator.rounds.aggregator import CoinKey
from precad.aggregator.rounds.start_attempt import NeedsOperators
from precad.aggregator.store import Store
from precad.aggregator.training import ConnectedClients, ModelStore, StoredModel
from precad.common import (
    CLOCK,
    ClientId,
    Clock,
    Digest,
    Misconfiguration,
    ModelVector,
    NotOnOffer,
    Rejection,
    Role,
    Signer,
    Task,
    call_in,
    frozen_dataclass,
    frozen_kw_only_dataclass,
)
from precad.common.identity import CertificateVerifier, Identity
from precad.common.wire import Body, StepCost

KEPT_EVENTS = 256
"""How many of the newest events are kept, for clients that come late."""


@frozen_dataclass
class RoundOpened:
    """An event: an attempt has started, and submissions are taken now."""

    opened: Opened
    collect_s: float
    """For how many seconds submissions are taken."""


@frozen_kw_only_dataclass
class RoundDone:
    """An event: a round is over, and the next model is there.

    It holds no vector, because events are kept for followers that come late.
    """

    opened: Opened
    valid: frozenset[ClientId]
    """Whose updates were summed."""
    rejections: Mapping[ClientId, Rejection]
    """Why each other client of the cohort doesn't count."""
    model: Digest
    """Digest of the next model."""
    most_participations: int
    """The largest number of participations that any client was charged for."""
    steps: tuple[StepCost, ...] = ()
    """What each step of the round took, in order."""


@frozen_dataclass
class TrainingDone:
    """An event: the training is over, and no round follows."""

    version: int
    """Version of the final model."""
    model: Digest
    """Digest of the final model."""


@frozen_dataclass
class TrainingStopped:
    """An event: this server stops before the training's end; it may start again."""


Event = RoundOpened | RoundDone | TrainingDone | TrainingStopped
"""What happens in a training, as clients may follow it."""


class EventLog:
    """Keep the newest events; any thread appends them, and the event loop follows them.

    A follower that falls more than ``KEPT_EVENTS`` behind skips what it missed.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._events: deque[Event] = deque(maxlen=KEPT_EVENTS)
        self._published = 0
        """How many events there were so far, those that aren't kept any more too."""
        self._news = asyncio.Event()
        """Set, and replaced by a new one, when an event is appended."""

    def publish(self, event: Event) -> None:
        """Append an event, from any thread."""
        call_in(self._loop, self._append, event)

    async def follow(self, *, from_start: bool) -> AsyncIterator[Event]:
        """Yield the events and wait for new ones, until the training ends or stops.

        Begin with the oldest kept event, or else with the newest one.
        """
        kept = len(self._events)
        yielded = self._published - (kept if from_start else min(kept, 1))
        while True:
            while yielded < self._published:
                dropped = self._published - len(self._events)
                number = max(yielded, dropped)
                event = self._events[number - dropped]
                yielded = number + 1
                yield event
                if isinstance(event, TrainingDone | TrainingStopped):
                    return
            await self._news.wait()

    def _append(self, event: Event) -> None:
        self._events.append(event)
        self._published += 1
        # This wakes every follower that waits now. Followers look at the count, not at
        # the flag.
        self._news.set()
        self._news = asyncio.Event()


class Phase(Enum):
    """Name how far a server's training has come."""

    STARTING = "starting"
    ENROLLING = "enrolling"
    TRAINING = "training"
    DONE = "done"
    STOPPED = "stopped"


@dataclass(slots=True, kw_only=True)
class Progress:
    """How far a training is; its thread alone writes it, and handlers read it."""

    phase: Phase = Phase.STARTING
    error: str = ""
    """What the training waits for, or why it stopped; empty while all is well."""
    next_attempt: int = 0
    """Number of the next attempt; both servers have used only lower ones."""
    needs: NeedsOperators | None = None
    """What waits for the operators of both servers."""
    unannounced: RoundDone | None = None
    """A round whose model is kept here, until the other server has it too."""
    frozen_there: bool = False
    """Whether the other server has a frozen roster, as it says."""
    given_back: tuple[int, ModelVector] | None = field(default=None, repr=False)
    """Version and θ of a lost model that an owner brought; used when a link begins."""
    workers: int = 0
    """How many worker processes are up."""
    contacts: int = 0
    """How often the other server and the dealer were both heard from."""
    lost_at: float | None = None
    """When one of them was lost, by the session's clock; None while both are there."""

    def heard_from_peers(self, now: float) -> float | None:
        """Note that the other server and the dealer are both there, at ``now``.

        Return for how many seconds one of them was away; None where neither was.
        """
        seconds_away = None if self.lost_at is None else now - self.lost_at
        self.contacts += 1
        self.error = ""
        self.lost_at = None
        return seconds_away


@frozen_kw_only_dataclass
class Session:
    """What the handlers and the training's thread of one server share for one task."""

    role: Role
    task: Task
    identity: Identity
    store: Store
    inbox: Inbox
    register: Register
    connected_clients: ConnectedClients
    model_store: ModelStore
    event_log: EventLog
    signer: Signer
    verifier: CertificateVerifier
    coin_key: CoinKey
    clock: Clock = CLOCK
    progress: Progress = field(default_factory=Progress)
    last_signed: dict[tuple[ClientId, type[Body]], bytes] = field(
        default_factory=dict, repr=False
    )
    """SHA-256 of the last message of each kind that this process signed for each
    client. Owners show these messages again. What they say is in the database, which
    this process alone holds, so it needn't be checked and looked up again."""
    traffic: Counter[str] = field(default_factory=Counter)
    """Payload bytes, by link; each link is counted by one thread."""
    enrolling: Window
    """How long enrolment is open, from this server's start."""
    twice: Counter[str] = field(default_factory=Counter)
    """How often a second process used a party's name while the first was there."""
    started: float = field(init=False, default=0.0)
    """When this server started, by the clock."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "started", self.clock.now())

    def awaited(self) -> int:
        """Return how many owners enrolment waits for; 0 once it is over."""
        if self.register.frozen or self.progress.frozen_there:
            return 0
        over = self.clock.now() >= self.started + self.enrolling.seconds
        return 0 if over else self.enrolling.enough

    @property
    def signatures(self) -> ServerSignatures:
        """What signs for this server, and checks what either server has signed."""
        return ServerSignatures(
            task=self.task.digest,
            role=self.role,
            signer=self.signer,
            verifier=self.verifier,
        )

    def offered(self, version: int) -> StoredModel:
        """Return the model of ``version``, which both servers are known to hold.

        Raises NotOnOffer: they aren't known to, or it isn't kept any more.
        """
        if version > self.store.versions.confirmed():
            raise NotOnOffer(f"model {version} isn't on offer yet")
        return self.model_store.get(version)

    @property
    def version(self) -> int:
        """Version t of the newest model on this server."""
        return self.model_store.current.version

    def early_ends(self) -> list[int]:
        """Return the rounds before which owners' budgets are expected to end, in order.

        One for each enrolled owner that the task's limit ends before the last round, if
        it is drawn as often as the average owner from now on.
        """
        ledger = self.store.ledger
        participations = ledger.participations()
        re_releases = ledger.re_releases()
        mechanism = self.task.mechanism
        ends = []
        for client, claim in self.register.roster().items():
            try:
                left = self.register.cap.left(
                    claim.record_rate,
                    participations.get(client, 0),
                    re_releases.get(client, {}),
                )
            except Misconfiguration:
                # Its account can't be computed, and it never counts.
                left = 0
            if left is not None:
                ends.append(self.version + int(left / mechanism.owner_rate))
        return sorted(end for end in ends if end < mechanism.releases)

    @property
    def finished(self) -> bool:
        """Whether this server keeps the final model."""
        return self.version >= self.task.mechanism.releases
