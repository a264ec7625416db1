"""A crowd of clients in one event loop that all follow the notices and act when they are drawn."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import grpc
import numpy as np

from benchmarks.crowd.client import LoadClient
from benchmarks.crowd.misdeeds import COUNTED, Misdeed, Scene, single
from precad.common.errors import PeerUnavailable
from precad.common.identifiers import ClientId
from precad.common.ring import RingVector
from precad.protos import precad_pb2 as pb

Script = Callable[[int, bool], Misdeed | None]
"""What the i-th client to hear of a round does, among those drawn (True) or not
(False); None is nothing at all, for clients that weren't drawn."""
JOINING_AT_ONCE = 16


@dataclass(slots=True)
class Played:
    """One round as the crowd saw it."""

    event: pb.RoundOpen
    opened_at: float
    drawn: int = 0
    acts: dict[ClientId, Misdeed] = field(default_factory=dict)
    answers: dict[ClientId, tuple[str, ...]] = field(default_factory=dict)
    outcomes: dict[ClientId, str] = field(default_factory=dict)
    """Of everybody: ``counted``, a reason, or nothing for those who weren't drawn."""
    uploaded_s: float = 0.0
    """From the first notice to the last answer that an honest client got."""
    over_s: float = 0.0
    """From the first notice to the last notice of the round's end."""
    faults: list[str] = field(default_factory=list)

    def counts(self) -> dict[str, int]:
        """How the drawn clients' rounds ended, by reason."""
        return dict(
            sorted(Counter(how for how in self.outcomes.values() if how).items())
        )

    def misses(self) -> list[str]:
        """Where an answer or an outcome isn't what it must be; empty when all is well."""
        found = list(self.faults)
        for client, misdeed in self.acts.items():
            answers, outcome = self.answers.get(client), self.outcomes.get(client)
            if answers != misdeed.answers:
                found.append(f"{client} ({misdeed.name}): answers {answers}")
            if outcome != misdeed.outcome:
                found.append(f"{client} ({misdeed.name}): ended as {outcome!r}")
        return found


class Crowd:
    """Clients that hear every notice, each through its own connection.

    Use it as an asynchronous context manager: it joins, and leaves without a word.

    Args:
        clients: enrolled when the crowd joins.
        scripts: one for each round of the training.
        on_open: called when the first client hears of a round, before anybody acts.
    """

    def __init__(
        self,
        clients: Iterable[LoadClient],
        scripts: Sequence[Script],
        on_open: Callable[[], None] = lambda: None,
    ) -> None:
        self.clients = tuple(clients)
        self.rounds: dict[int, Played] = {}
        self._scripts = iter(scripts)
        self._script: dict[int, Script] = {}
        self._on_open = on_open
        self._number = {each.client: i for i, each in enumerate(self.clients)}
        self._heard: Counter[tuple[int, bool]] = Counter()
        self._watches: list[asyncio.Task[None]] = []
        self._acting: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        turn = asyncio.Semaphore(JOINING_AT_ONCE)

        async def join(client: LoadClient) -> None:
            async with turn:
                await client.enrol()
            self._watches.append(asyncio.create_task(self._follow(client)))

        await asyncio.gather(*(join(client) for client in self.clients))
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        tasks = [*self._watches, *self._acting]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for client in self.clients:
            await client.close()

    def own_coordinate(self, client: LoadClient) -> int:
        """Where this client's honest vector isn't 0: the model shows who counted."""
        return self._number[client.client] % client.task.dimension

    def honest(self, client: LoadClient) -> RingVector:
        """β in the own coordinate: as long as a vector may be, ``[d] int64``."""
        return single(
            client.task, client.task.mechanism.bound, self.own_coordinate(client)
        )

    async def play(self, timeout_s: float) -> list[Played]:
        """Play until every client heard that the training is over. Returns all rounds.

        Raises:
            PeerUnavailable: it wasn't over in time, stopped, or a client's notices
                ended.
        """
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.gather(*self._watches)
                await asyncio.gather(*self._acting)
        except TimeoutError:
            raise PeerUnavailable(
                f"the training wasn't over within {timeout_s:g} s; rounds begun:"
                f" {len(self.rounds)}"
            ) from None
        return list(self.rounds.values())

    async def _follow(self, client: LoadClient) -> None:
        try:
            async for notice in client.watch():
                match notice.WhichOneof("event"):
                    case "open":
                        self._hear_open(client, notice.open)
                    case "over":
                        self._hear_over(client, notice.over)
                    case "finished":
                        return
                    case _:
                        raise PeerUnavailable("the training paused")
        except grpc.RpcError as error:
            raise PeerUnavailable(
                f"the notices to {client.client} ended: {error}"
            ) from None

    def _hear_open(self, client: LoadClient, event: pb.RoundOpen) -> None:
        if event.attempt not in self.rounds:
            self._on_open()
            self.rounds[event.attempt] = Played(event, time.monotonic())
            self._script[event.attempt] = next(self._scripts)
        played = self.rounds[event.attempt]
        place = self._heard[event.attempt, event.selected]
        self._heard[event.attempt, event.selected] += 1
        misdeed = self._script[event.attempt](place, event.selected)
        played.drawn += event.selected
        if misdeed is None:
            return
        played.acts[client.client] = misdeed
        task = asyncio.create_task(self._act(client, misdeed, played))
        self._acting.add(task)
        task.add_done_callback(self._acting.discard)

    async def _act(self, client: LoadClient, misdeed: Misdeed, played: Played) -> None:
        place = self._number[client.client]
        scene = Scene(played.event, self.honest(client), self.clients[place - 1])
        try:
            played.answers[client.client] = await misdeed.act(client, scene)
        except Exception as error:  # noqa: BLE001 -- told, with the client's name, in the result
            played.faults.append(f"{client.client} ({misdeed.name}): {error!r}")
        if misdeed.outcome == COUNTED:
            played.uploaded_s = time.monotonic() - played.opened_at

    def _hear_over(self, client: LoadClient, over: pb.RoundOver) -> None:
        if (played := self.rounds.get(over.attempt)) is not None:
            played.outcomes[client.client] = COUNTED if over.counted else over.rejection
            played.over_s = time.monotonic() - played.opened_at


def expected_sum(crowd: Crowd, outcomes: Mapping[ClientId, str]) -> RingVector:
    """The plain sum of what counted, ``[d] int64``, if every counted vector was the honest one."""
    task = crowd.clients[0].task
    total = np.zeros(task.dimension, dtype=np.int64)
    for client in crowd.clients:
        if outcomes.get(client.client) == COUNTED:
            total += crowd.honest(client)
    return total
