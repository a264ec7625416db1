"""One start of a server in a simulated training: a session as its process makes it."""

import functools
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite
from tests.faults.simulated_links import Transport
from tests.faults.turns import Life
from tests.rig.keys import identity, verifier

from precad.aggregator.collect.inbox import Inbox
from precad.aggregator.enrol.register import Register
from precad.aggregator.rpc.limits import Limits, OpenCalls
from precad.aggregator.store import Store, open_store, transaction
from precad.aggregator.store.schema import AttemptState
from precad.aggregator.training.connected_clients import ConnectedClients
from precad.aggregator.training.model_store import ModelStore
from precad.aggregator.training.session import Event, EventLog, Session
from precad.aggregator.training.training_loop import Peers
from precad.common.errors import PeerUnavailable, PrecadError
from precad.common.identifiers import Digest, Role
from precad.common.identity.party_certificate import Principal
from precad.common.identity.signatures import CertificateSigner
from precad.common.ring import RingVector
from precad.server_a.process import lead
from precad.server_b.process import follow

if TYPE_CHECKING:
    from tests.faults.world import World

MODEL = "model.safetensors"
STORE_STEPS = {
    "enrolment": ("claim", "freeze"),
    "versions": (
        *("keep_commitment", "keep_opening", "count_opened", "raise_opened", "keep_model_seal"),
    ),
    "attempts": (
        *("begin", "abandon_open", "spend", "prepare", "countersign", "sent", "finish", "void"),
        *("learn", "hear", "charge_unknown"),
    ),
}
"""What a server writes, by store."""


class Server:
    """One start of a server: a session as `process` makes it."""

    def __init__(self, world: "World", role: Role, life: Life) -> None:
        self.world = world
        self.role = role
        self.life = life
        folder = world.folder / role.value
        folder.mkdir(exist_ok=True)
        world.put_back(role)
        outside = world.folder / f"{role.value}.journal"
        with compiled_once():
            store = open_store(f"sqlite:///{folder / 'state.db'}", world.task, role, outside)
        life.at_death.append(store.close)
        self._observe(store)
        model_store = ModelStore(world.task, folder / MODEL)
        world.name_steps(model_store, "model_store", ("put",))
        world.seen.models[model_store.current.version].add((role, model_store.current.digest))
        box = Inbox(role, world.task, verifier(), folder / "spool", clock=world.clock)
        world.name_steps(box, "inbox", ("open", "close"))
        self.event_log = Notices(world)
        self.calls = OpenCalls(Limits())
        self.session = Session(
            role=role,
            task=world.task,
            identity=identity(Principal.service(role)),
            store=store,
            signer=CertificateSigner(identity(Principal.service(role))),
            verifier=verifier(),
            coin_key=world.coin_key(role),
            inbox=box,
            register=Register(world.task, store, clock=world.clock),
            connected_clients=ConnectedClients(world.task.deadlines.rejoin, world.clock),
            model_store=model_store,
            event_log=cast("EventLog", self.event_log),
            clock=world.clock,
        )
        self._links: deque[Transport] = deque()
        self._current: Transport | None = None

    def conduct(self, session: Session) -> None:
        """The training, as this server's process conducts it."""
        try:
            world, role = self.world, self.role
            outside = Peers(lambda: world.peers(role), Noise(world), world.validation)
            (lead if role is Role.SERVER_A else follow)(session, outside)
        except PrecadError:
            raise
        except Exception as bug:
            # The process would only log it.
            self.world.turns.failure = bug
            raise

    def accept(self, transport: Transport) -> None:
        """As `PeerService.Link`: the newest link takes the older one's place."""
        if self._current is not None:
            self._current.cable.cut()
        self._current = transport
        self._links.append(transport)

    def wait_for_link(self, timeout_s: float) -> Transport:
        """As `PeerService.reach`."""
        if not self.world.turns.wait(lambda: bool(self._links), timeout_s):
            raise PeerUnavailable("server A didn't connect")
        link = self._links.pop()
        self._links.clear()
        return link

    def _observe(self, store: Store) -> None:
        seen, role = self.world.seen, self.role
        attempts, count = store.attempts, store.versions.count_opened
        spend, prepare, finish = attempts.spend, attempts.prepare, attempts.finish

        def observed_count(version: int, attempt: int) -> int:
            counted = count(version, attempt)
            seen.opened[role][version].add(attempt)
            return counted

        def observed_spend(number: int, batch: int) -> None:
            spend(number, batch)
            seen.spent[role][number, batch] += 1

        def observed_prepare(number: int, *args: Any) -> None:
            prepare(number, *args)
            assert number not in seen.shares[role], f"{role.value} prepared {number} twice"
            # A server adds to its own vector later.
            seen.shares[role][number] = bytes(args[-1])

        def observed_finish(number: int, model: Digest) -> None:
            finish(number, model)
            state, version, *_ = self.world.rounds(role)[number]
            if state == AttemptState.DONE.value:
                seen.models[version + 1].add((role, model))

        changed = cast("Any", attempts)
        changed.spend, changed.prepare = observed_spend, observed_prepare
        changed.finish = observed_finish
        cast("Any", store.versions).count_opened = observed_count
        for name, steps in STORE_STEPS.items():
            self.world.name_steps(getattr(store, name), f"store.{name}", steps)


_COMPILED: dict[Any, Any] = {}


@contextmanager
def compiled_once() -> Iterator[None]:
    """Engines that are made in the block share their compiled statements.

    A server that starts again has a new engine, and SQLAlchemy compiles all statements anew for
    each: a fifth of a simulated training. Its cache is by dialect, so all of SQLite's are alike.
    """
    made = cast("Any", transaction).create_engine
    # For good, and not for the block alone: the cache is looked up for as long as an engine lives.
    dialect = cast("Any", SQLiteDialect_pysqlite)
    dialect.__eq__ = lambda self, other: type(self) is type(other)
    dialect.__hash__ = lambda self: hash(type(self))
    shared = functools.partial(made, execution_options={"compiled_cache": _COMPILED})
    try:
        cast("Any", transaction).create_engine = shared
        yield
    finally:
        cast("Any", transaction).create_engine = made


class Notices:
    """Stands in for the event log: events as A's clients see them."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self.events: list[Event] = []

    def publish(self, event: Event) -> None:
        """Append an event."""
        with self._world.step(f"publish {type(event).__name__}"):
            self.events.append(event)
        self._world.published(event)


class Noise:
    """Small integers, recorded."""

    def __init__(self, world: "World") -> None:
        self._world = world

    def draw(self, dimension: int) -> RingVector:
        """Fresh noise, ``[d] int64``."""
        role = Role(self._world.turns.life.party)
        drawn = self._world.seen.noise[role]
        noise = np.random.default_rng([self._world.seed, role is Role.SERVER_A, len(drawn)])
        drawn.append(noise.integers(-(2**20), 2**20, dimension, dtype=np.int64))
        # Whoever draws may change the vector, and does.
        return drawn[-1].copy()
