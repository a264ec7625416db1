"""One start of a server in a simulated training: a session as its process makes it."""

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, cast
from unittest.mock import patch

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
# What a server writes, by store.
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
_COMPILED: dict[Any, Any] = {}


def opened_store(*of: Any) -> Store:
    """With the compiled statements of all others.

    A server that starts again has a new engine, and SQLAlchemy compiles all statements anew for
    each: a fifth of a simulated training. Its cache is by dialect, so all of SQLite's are alike.
    """
    # For good, and not for the call alone: the cache is looked up for as long as an engine lives.
    dialect: Any = SQLiteDialect_pysqlite
    dialect.__eq__ = lambda self, other: type(self) is type(other)
    dialect.__hash__ = lambda self: hash(type(self))
    module: Any = transaction
    cached = partial(module.create_engine, execution_options={"compiled_cache": _COMPILED})
    with patch.object(module, "create_engine", cached):
        return open_store(*of)


def afterwards(target: Any, name: str, saw: Callable[..., None]) -> None:
    method = getattr(target, name)

    def call(*arguments: Any) -> Any:
        result = method(*arguments)
        saw(*arguments)
        return result

    setattr(target, name, call)


class Server:
    def __init__(self, world: "World", role: Role, life: Life) -> None:
        self.world, self.role, self.life = world, role, life
        folder = world.folder / role.value
        folder.mkdir(exist_ok=True)
        world.put_back(role)
        outside = world.folder / f"{role.value}.journal"
        store = opened_store(f"sqlite:///{folder / 'state.db'}", world.task, role, outside)
        life.at_death.append(store.close)
        self._observe(store)
        model_store = ModelStore(world.task, folder / MODEL)
        world.name_steps(model_store, "model_store", ("put",))
        world.seen.models[model_store.current.version].add((role, model_store.current.digest))
        box = Inbox(role, world.task, verifier(), folder / "spool", clock=world.clock)
        world.name_steps(box, "inbox", ("open", "close"))
        self.events: list[Event] = []
        self.calls = OpenCalls(Limits())
        own = identity(Principal.service(role))
        self.session = Session(
            role=role,
            task=world.task,
            identity=own,
            store=store,
            signer=CertificateSigner(own),
            verifier=verifier(),
            coin_key=world.coin_key(role),
            inbox=box,
            register=Register(world.task, store, clock=world.clock),
            connected_clients=ConnectedClients(world.task.deadlines.rejoin, world.clock),
            model_store=model_store,
            event_log=cast("EventLog", self),
            clock=world.clock,
        )
        self._links: deque[Transport] = deque()
        self._current: Transport | None = None

    def conduct(self, session: Session) -> None:
        try:
            world, role = self.world, self.role
            outside = Peers(lambda: world.peers(role), self, world.validation)
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
        if not self.world.turns.wait(lambda: bool(self._links), timeout_s):
            raise PeerUnavailable("server A didn't connect")
        link = self._links.pop()
        self._links.clear()
        return link

    def publish(self, event: Event) -> None:
        with self.world.step(f"publish {type(event).__name__}"):
            self.events.append(event)
        self.world.published(event)

    def draw(self, dimension: int) -> RingVector:
        drawn = self.world.seen.noise[self.role]
        noise = np.random.default_rng([self.world.seed, self.role is Role.SERVER_A, len(drawn)])
        drawn.append(noise.integers(-(2**20), 2**20, dimension, dtype=np.int64))
        # Whoever draws may change the vector, and does.
        return drawn[-1].copy()

    def _observe(self, store: Store) -> None:
        seen, role = self.world.seen, self.role

        def prepared(number: int, *given: Any) -> None:
            assert number not in seen.shares[role], f"{role.value} prepared {number} twice"
            # A server adds to its own vector later.
            seen.shares[role][number] = bytes(given[-1])

        def finished(number: int, model: Digest) -> None:
            state, version, *_ = self.world.rounds(role)[number]
            if state == AttemptState.DONE.value:
                seen.models[version + 1].add((role, model))

        afterwards(store.attempts, "prepare", prepared)
        afterwards(store.attempts, "finish", finished)
        afterwards(store.attempts, "spend", lambda *which: seen.spent[role].update([which]))
        afterwards(store.versions, "count_opened", lambda v, n: seen.opened[role][v].add(n))
        for name, steps in STORE_STEPS.items():
            self.world.name_steps(getattr(store, name), f"store.{name}", steps)
