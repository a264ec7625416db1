"""A server in a simulated training, as its process makes it; its links."""

import re
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, cast
from unittest.mock import patch

import numpy as np
from sqlalchemy import create_engine
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite
from tests.faults.turns import Life
from tests.rig.documents import Arguments
from tests.rig.keys import identity, verifier
from tests.rig.local_dealing import LocalDealing

from precad.aggregator.collect.inbox import Inbox
from precad.aggregator.enrol.admission import window_of
from precad.aggregator.enrol.register import Register
from precad.aggregator.peer_link import Frame
from precad.aggregator.store import Store, open_store, transaction
from precad.aggregator.store.schema import AttemptState
from precad.aggregator.training.connected_clients import ConnectedClients
from precad.aggregator.training.model_store import ModelStore
from precad.aggregator.training.session import Event, Session
from precad.aggregator.training.training_loop import Peers
from precad.common.errors import PeerUnavailable, PrecadError
from precad.common.identifiers import Digest, Role, Secret
from precad.common.identity.party_certificate import Principal
from precad.common.identity.signatures import CertificateSigner
from precad.common.ring import RingVector
from precad.common.task import Task
from precad.common.wire.guarded_port import OpenCalls
from precad.norm_check.dealing import DealerConversation, DealRequest
from precad.server_a.process import lead
from precad.server_b.process import follow

if TYPE_CHECKING:
    from tests.faults.world import World

SERVERS = (Role.SERVER_A, Role.SERVER_B)


class Cable:
    def __init__(self, world: "World") -> None:
        self._random = Random(f"{world.seed} cable {len(world.seen.trace)}")
        # On their way to that role.
        self.frames: dict[Role, deque[Frame]] = {role: deque() for role in SERVERS}
        self.broken = self.silent = False

    def cut(self) -> None:
        self.broken = True

    def break_at_death(self) -> None:
        """A process died: what was still on the way may be lost, from some frame on."""
        self.broken = True
        for frames in self.frames.values():
            for _ in range(self._random.randint(0, len(frames))):
                frames.pop()


class Transport:
    def __init__(self, world: "World", cable: Cable, role: Role) -> None:
        self._world, self.cable, self._role = world, cable, role
        self._other = Role.SERVER_B if role is Role.SERVER_A else Role.SERVER_A

    def _step(self, way: str, frame: Frame) -> AbstractContextManager[None]:
        return self._world.step(f"{way} {re.sub('/[0-9a-f]{16}', '', frame.step)}")

    def put(self, frame: Frame) -> None:
        with self._step("send", frame):
            if frame.step == "noisy-share":
                self._check_release(bytes(frame.payload))
            if not (self.cable.broken or self.cable.silent):
                self.cable.frames[self._other].append(frame)

    def get(self, timeout_s: float) -> Frame:
        frames = self.cable.frames[self._role]
        self._world.turns.wait(lambda: bool(frames) or self.cable.broken, timeout_s)
        if frames:
            frame = frames.popleft()
            with self._step("receive", frame):
                return frame
        self.require_alive()
        raise PeerUnavailable("the other server sent nothing in time")

    def require_alive(self) -> None:
        if self.cable.broken:
            raise PeerUnavailable("the link is broken")

    def close(self) -> None:
        self.cable.cut()

    def _check_release(self, share: bytes | memoryview) -> None:
        """What leaves is what was persisted, and both servers have charged for it."""
        seen = self._world.seen
        seen.left[self._role].add(bytes(share))
        if self._role not in self._world.cheaters:
            numbers = [
                n
                for n, released in seen.shares[self._role].items()
                if released == share
            ]
            assert len(numbers) == 1, "bytes left that are no round's persisted share"
            assert numbers[0] in seen.shares[self._other], (
                "a share left before both had charged"
            )


class DealerCalls:
    def __init__(self, world: "World", role: Role) -> None:
        self._world, self._role = world, role
        self._epoch = -1
        self.bytes_received = 0

    @property
    def newest_attempt(self) -> int:
        return self._world.dealer.newest_attempt

    @property
    def epoch(self) -> bytes:
        return self._epoch.to_bytes(8, "big")

    def join(self) -> Secret:
        with self._call("join"):
            self._epoch = self._world.epoch
            return self._world.dealer.key_for(self._role)

    def deal(self, request: DealRequest) -> RingVector:
        with self._call("deal"):
            self._check()
            return self._world.dealer.corrections(self._role, request)

    @contextmanager
    def squares(self, attempt: int) -> Iterator[DealerConversation]:
        with self._call("squares"):
            self._check()
            dealer, patience_s = self._world.dealer, self._world.task.deadlines.peer
        local = LocalDealing(
            dealer=dealer,
            role=self._role,
            timeout_s=patience_s,
            clock=self._world.clock,
        )
        with local.squares(attempt) as conversation:
            yield conversation

    @contextmanager
    def _call(self, name: str) -> Iterator[None]:
        with self._world.step(f"dealer.{name}"):
            self._world.handshake(self._role.value, Role.DEALER.value)
            yield

    def _check(self) -> None:
        if self._epoch != self._world.epoch:
            raise PeerUnavailable("the dealer has restarted since; join again")


MODEL = "model.safetensors"
# What a server writes, by store.
STORE_STEPS = {
    "enrolment": "claim freeze",
    "versions": (
        "keep_commitment keep_opening count_opened raise_opened keep_model_seal"
    ),
    "attempts": (
        "begin abandon_open spend prepare countersign sent finish void learn hear"
        " charge_unknown"
    ),
}
_COMPILED: dict[object, object] = {}


def opened_store(url: str, task: Task, role: Role, outside: Path) -> Store:
    """With the compiled statements of all others, a fifth of a simulated training.

    SQLAlchemy compiles them anew for each engine; its cache is by dialect, so SQLite's
    are alike.
    """
    # For good, and not for the call alone: the cache is looked up for as long as an
    # engine lives.
    dialect: Any = SQLiteDialect_pysqlite
    dialect.__eq__ = lambda self, other: type(self) is type(other)
    dialect.__hash__ = lambda self: hash(type(self))
    cached = partial(create_engine, execution_options={"compiled_cache": _COMPILED})
    with patch.object(transaction, "create_engine", cached):
        return open_store(url, task, role, outside)


def afterwards(target: object, name: str, saw: Callable[..., None]) -> None:
    method = getattr(target, name)

    def call(*arguments: object) -> object:
        result = method(*arguments)
        saw(*arguments)
        return result

    setattr(target, name, call)


class Server:
    def __init__(self, world: "World", role: Role, life: Life) -> None:
        self.world, self.role, self.life = world, role, life
        folder, outside = (
            world.folder / role.value,
            world.folder / f"{role.value}.journal",
        )
        folder.mkdir(exist_ok=True)
        world.put_back(role)
        store = opened_store(
            f"sqlite:///{folder / 'state.db'}", world.task, role, outside
        )
        life.at_death.append(store.close)
        self._observe(store)
        model_store = ModelStore(world.task, folder / MODEL)
        world.name_steps(model_store, "model_store", "put")
        world.seen.models[model_store.current.version].add(
            (role, model_store.current.digest)
        )
        box = Inbox(role, world.task, verifier(), folder / "spool", clock=world.clock)
        world.name_steps(box, "inbox", "open", "close")
        self.events: list[Event] = []
        self.calls = OpenCalls()
        own = identity(Principal.service(role))
        parts: Arguments = {
            "identity": own,
            "signer": CertificateSigner(own),
            "verifier": verifier(),
            "coin_key": world.coin_key(role),
            "inbox": box,
            "event_log": self,
            "register": Register(world.task, store, clock=world.clock),
            "connected_clients": ConnectedClients(
                world.task.deadlines.rejoin, world.clock
            ),
            "model_store": model_store,
            "clock": world.clock,
            "enrolling": window_of(world.task),
        }
        self.session = Session(role=role, task=world.task, store=store, **parts)
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
        noise = np.random.default_rng(
            [self.world.seed, self.role is Role.SERVER_A, len(drawn)]
        )
        drawn.append(noise.integers(-(2**20), 2**20, dimension, dtype=np.int64))
        # Whoever draws may change the vector, and does.
        return drawn[-1].copy()

    def _observe(self, store: Store) -> None:
        seen, role = self.world.seen, self.role

        def prepared(number: int, *given: object) -> None:
            assert number not in seen.shares[role], (
                f"{role.value} prepared {number} twice"
            )
            # A server adds to its own vector later.
            *_, share, _ = given
            seen.shares[role][number] = bytes(cast("bytes", share))

        def finished(number: int, model: Digest) -> None:
            state, version, *_ = self.world.rounds(role)[number]
            if state == AttemptState.DONE.value:
                seen.models[version + 1].add((role, model))

        afterwards(store.attempts, "prepare", prepared)
        afterwards(store.attempts, "finish", finished)
        afterwards(
            store.attempts, "spend", lambda *which: seen.spent[role].update([which])
        )
        afterwards(
            store.versions, "count_opened", lambda v, n: seen.opened[role][v].add(n)
        )
        for name, steps in STORE_STEPS.items():
            self.world.name_steps(getattr(store, name), f"store.{name}", *steps.split())
