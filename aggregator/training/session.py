"""One server's training: what it consists of, how it goes, and what happens in it, for handlers."""

import asyncio
import hashlib
from collections import Counter, deque
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal

from precad.aggregator.attempt_states import Opened
from precad.aggregator.collect.inbox import Inbox
from precad.aggregator.enrol.admission import Window, window_of
from precad.aggregator.enrol.register import Register
from precad.aggregator.rounds.aggregator import CoinKey
from precad.aggregator.rounds.start_attempt import NeedsOperators
from precad.aggregator.server_messages import ServerSignatures
from precad.aggregator.store import Store
from precad.aggregator.training.connected_clients import ConnectedClients
from precad.aggregator.training.model_store import ModelStore, StoredModel
from precad.common.clock import CLOCK, Clock, call_in
from precad.common.errors import NotOnOffer, Rejection
from precad.common.identifiers import ClientId, Digest, Role
from precad.common.identity.credentials import Identity
from precad.common.identity.signatures import CertificateVerifier
from precad.common.model import ModelVector
from precad.common.submission import Signer
from precad.common.task import Task
from precad.common.wire.calls import StepCost

KEPT_EVENTS = 256


@dataclass(frozen=True, slots=True)
class RoundOpened:
    """Submissions are taken now."""

    opened: Opened
    collect_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
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
class TrainingStopped:
    """This server stops before the training's end; it may be started again."""


Event = RoundOpened | RoundDone | TrainingDone | TrainingStopped


class EventLog:
    """Events, appended from any thread, followed on the loop.

    A follower that falls more than ``KEPT_EVENTS`` behind skips what it missed.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._events: deque[Event] = deque(maxlen=KEPT_EVENTS)
        self._published = 0
        self._news = asyncio.Event()

    def publish(self, event: Event) -> None:
        """Append an event, from any thread."""
        call_in(self._loop, self._append, event)

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
                if isinstance(event, TrainingDone | TrainingStopped):
                    return
            await self._news.wait()

    def _append(self, event: Event) -> None:
        self._events.append(event)
        self._published += 1
        # Wakes everybody who waits now; followers look at the count, not at the flag.
        self._news.set()
        self._news = asyncio.Event()


SignedKind = Literal["opening", "statement"]


class LastSigned:
    """Digests of the last messages that this process has signed, of each kind.

    Owners show them again, and what they say is in the database that this process alone
    holds: it needn't be checked and looked up again.
    """

    def __init__(self) -> None:
        self._last: dict[tuple[ClientId, SignedKind], bytes] = {}

    def note(self, client: ClientId, kind: SignedKind, message: bytes) -> None:
        """Keep that ``message`` is signed and leaves."""
        self._last[client, kind] = hashlib.sha256(message).digest()

    def knows(self, client: ClientId, kind: SignedKind, message: bytes) -> bool:
        """Return whether it is the last of its kind for ``client``, to the byte."""
        return self._last.get((client, kind)) == hashlib.sha256(message).digest()


class Phase(Enum):
    """Where a server's training stands."""

    STARTING = "starting"
    ENROLLING = "enrolling"
    TRAINING = "training"
    DONE = "done"
    STOPPED = "stopped"


@dataclass(slots=True, kw_only=True)
class Progress:
    """Written by the training's thread alone; handlers read it."""

    phase: Phase = Phase.STARTING
    error: str = ""
    next_attempt: int = 0
    """Of the next round; both servers have used lower ones only."""
    needs: NeedsOperators | None = None
    """What waits for the operators of both servers."""
    unannounced: RoundDone | None = None
    """A round whose model is kept here, until the other server has it too."""
    frozen_there: bool = False
    """Whether the other server has a frozen roster, as it says."""
    given_back: tuple[int, ModelVector] | None = field(default=None, repr=False)
    """Version and θ of a lost model that an owner brought; taken when a link begins."""
    workers: int = 0
    """How many worker processes are up."""
    contacts: int = 0
    """How often the other server and the dealer were both heard from."""
    lost_at: float | None = None
    """When one of them was lost, by the session's clock; None while both are there."""

    def heard_from_peers(self, now: float) -> float | None:
        """The other server and the dealer are there.

        For how many seconds one of them wasn't.
        """
        away = None if self.lost_at is None else now - self.lost_at
        self.contacts += 1
        self.error = ""
        self.lost_at = None
        return away


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """One server, one task: what its handlers and its training's thread share."""

    role: Role
    task: Task
    identity: Identity
    store: Store
    inbox: Inbox
    register: Register
    connected_clients: ConnectedClients
    model_store: ModelStore
    event_log: EventLog
    signer: Signer = field(repr=False)
    verifier: CertificateVerifier = field(repr=False)
    coin_key: CoinKey = field(repr=False)
    clock: Clock = CLOCK
    progress: Progress = field(default_factory=Progress)
    last_signed: LastSigned = field(default_factory=LastSigned, repr=False)
    traffic: Counter[str] = field(default_factory=Counter)
    """Payload bytes by link; each link is counted by one thread."""
    window: Window | None = None
    """How long enrolment is open; the task says it unless given."""
    twice: Counter[str] = field(default_factory=Counter)
    """How often a second process came under a party's name while the first was there.
    """
    started: float = field(init=False, default=0.0)
    """When, by the clock."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "started", self.clock.now())

    @property
    def enrolling(self) -> Window:
        """How long enrolment is open, from this server's start."""
        return self.window or window_of(self.task)

    def awaited(self) -> int:
        """Return how many owners enrolment still waits for; 0 once it is over."""
        if self.register.frozen or self.progress.frozen_there:
            return 0
        over = self.clock.now() >= self.started + self.enrolling.seconds
        return 0 if over else self.enrolling.enough

    @property
    def signatures(self) -> ServerSignatures:
        """What this server signs, and how it checks what either has signed."""
        return ServerSignatures(
            task=self.task.digest,
            role=self.role,
            signer=self.signer,
            verifier=self.verifier,
        )

    def offered(self, version: int) -> StoredModel:
        """Return a model that both servers are known to hold. Raises NotOnOffer."""
        if version > self.store.versions.confirmed():
            raise NotOnOffer(f"model {version} isn't on offer yet")
        return self.model_store.get(version)

    @property
    def version(self) -> int:
        """Of the newest model here: t."""
        return self.model_store.current.version

    @property
    def finished(self) -> bool:
        """Whether this server keeps the final model."""
        return self.version >= self.task.training.rounds
