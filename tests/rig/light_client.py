"""A client without torch that submits what it is given: for tests, rehearsals and load."""

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, cast

import numpy as np
from tests.rig.proofs_context import stated_for_proof
from tests.rig.waiting import DEADLINE_S

from precad.client.connection import Receipt, Servers
from precad.client.pending_update import Pair
from precad.common.clock import CLOCK
from precad.common.errors import PeerUnavailable, PrecadError
from precad.common.identifiers import ClientId
from precad.common.identity.credentials import Identity
from precad.common.ring import RingVector
from precad.common.wire.messages import Notice, RoundOpen, RoundOver

if TYPE_CHECKING:
    from examples.demo.local_processes import LocalDeployment


class LightClient:
    def __init__(self, servers: Servers) -> None:
        self.servers = servers
        self._changed = threading.Condition()
        self._open: tuple[RoundOpen, float] | None = None
        self._over: dict[int, RoundOver] = {}
        self._ended: PrecadError | Notice | None = None
        self._closing = False
        self._thread = threading.Thread(target=self._follow, name="watch", daemon=True)

    def join(self, records: int = 1) -> None:
        self.servers.check_task()
        self.servers.enrol(records, self.servers.task.privacy.record_rate)
        self._thread.start()

    def close(self) -> None:
        self._closing = True
        self.servers.close()
        if self._thread.ident is not None:
            self._thread.join()

    def opened(
        self,
        *,
        after: int = -1,
        fresh_s: float = math.inf,
        timeout_s: float = DEADLINE_S,
    ) -> RoundOpen:
        def new() -> bool:
            if self._open is None or self._open[0].attempt <= after:
                return False
            return CLOCK.now() - self._open[1] < fresh_s

        with self._changed:
            self._wait(new, timeout_s, f"a round after {after}")
            assert self._open is not None
            return self._open[0]

    def over(self, number: int, timeout_s: float = DEADLINE_S) -> RoundOver:
        with self._changed:
            self._wait(
                lambda: number in self._over, timeout_s, f"the end of round {number}"
            )
            return self._over[number]

    def ended(self, timeout_s: float = DEADLINE_S) -> Notice:
        with self._changed:
            self._wait(lambda: self._ended is not None, timeout_s, "the training's end")
            return cast("Notice", self._ended)

    def submit(self, event: RoundOpen, x: RingVector) -> tuple[Receipt, Receipt]:
        return self.servers.submit(self.prepare(event, x))

    def prepare(self, event: RoundOpen, x: RingVector) -> Pair:
        stated = stated_for_proof(self.servers, event.attempt)
        return self.servers.prepare(
            version=event.version,
            attempt=event.attempt,
            model=event.model,
            x=x,
            proof=stated,
        )

    def _wait(self, ready: Callable[[], bool], timeout_s: float, what: str) -> None:
        self._changed.wait_for(lambda: ready() or self._ended is not None, timeout_s)
        if isinstance(self._ended, PrecadError):
            raise self._ended
        if not ready():
            why = "the training ended" if self._ended is not None else "time is up"
            raise PeerUnavailable(f"{self.servers.client} saw nothing of {what}: {why}")

    def _follow(self) -> None:
        ended: PrecadError | Notice = PeerUnavailable("server A ended the notices")
        try:
            for notice in self.servers.watch():
                with self._changed:
                    match notice:
                        case RoundOpen():
                            self._open = notice, CLOCK.now()
                        case RoundOver():
                            self._over[notice.attempt] = notice
                        case _:
                            ended = notice
                    self._changed.notify_all()
        except PrecadError as error:
            if self._closing:
                return
            ended = error
        with self._changed:
            self._ended = ended
            self._changed.notify_all()


@contextmanager
def joined(
    deployment: "LocalDeployment", *clients: ClientId, records: Sequence[int] = ()
) -> Iterator[list[LightClient]]:
    a, b = (deployment.addresses[name] for name in ("server-a", "server-b"))
    made: list[LightClient] = []
    with ExitStack() as stack:
        for client in clients or deployment.clients:
            own = Identity.load(deployment.folder / "keys" / client.name)
            servers = Servers(
                deployment.task,
                client,
                server_a=a,
                server_b=b,
                identity=own,
                patience_s=DEADLINE_S,
            )
            made.append(LightClient(servers))
            stack.callback(made[-1].close)
        for number, each in enumerate(made):
            each.join(records[number] if records else 1)
        yield made


def submit_zeros(clients: Sequence[LightClient], after: int = -1) -> int:
    # Who hasn't heard of it may not be watching yet, and isn't waited for.
    event = max(
        (client.opened(after=after) for client in clients),
        key=lambda each: each.attempt,
    )
    for client in clients:
        client.submit(event, np.zeros(client.servers.task.dimension, dtype=np.int64))
    return event.attempt


def play_round(*clients: LightClient, after: int = -1) -> int:
    """A round of these clients, in which all count: its attempt."""
    attempt = submit_zeros(clients, after)
    assert all(client.over(attempt).counted for client in clients)
    return attempt
