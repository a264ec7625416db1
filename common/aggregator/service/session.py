"""Everything that one server process holds for one task."""

from dataclasses import dataclass, field
from enum import Enum

from precad.common.aggregator.collect import Inbox
from precad.common.aggregator.service.feed import Feed
from precad.common.aggregator.service.register import Presence, Register
from precad.common.aggregator.service.settings import ServerSettings
from precad.common.aggregator.service.shelf import Shelf
from precad.common.aggregator.store import Store
from precad.common.identifiers import Role
from precad.common.identity import Identity, Plaintext
from precad.common.task import Task


class Phase(Enum):
    """Where a server's training stands."""

    STARTING = "starting"
    ENROLLING = "enrolling"
    TRAINING = "training"
    DONE = "done"
    STOPPED = "stopped"


@dataclass(slots=True)
class Traffic:
    """Payload bytes by link, as this server counts them."""

    by_link: dict[str, int] = field(default_factory=dict)

    def add(self, link: str, count: int) -> None:
        """Count ``count`` bytes on ``link``."""
        self.by_link[link] = self.by_link.get(link, 0) + count


@dataclass(slots=True)
class Session:
    """One server, one task; handlers and the round's thread share it."""

    role: Role
    task: Task
    settings: ServerSettings
    identity: Identity | Plaintext
    store: Store
    inbox: Inbox
    register: Register
    presence: Presence
    shelf: Shelf
    feed: Feed
    traffic: Traffic = field(default_factory=Traffic)
    phase: Phase = Phase.STARTING
    error: str = ""
    next_number: int = 0
    """Of the next round; both servers have used lower ones only."""
    contacts: int = 0
    """How often the other server and the dealer were both heard from."""

    def heard_from_peers(self) -> None:
        """The other server and the dealer are there."""
        self.contacts += 1
        self.error = ""
