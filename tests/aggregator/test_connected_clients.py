"""Who is connected: a stream ends with its caller, a finished model stays for its owners."""

import asyncio
import contextlib
import math
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.rig.clock import LeapingClock
from tests.rig.tasks import task_with

from precad.aggregator.rpc import process
from precad.aggregator.rpc.process import LATE, leaves_at, stay
from precad.aggregator.training import connected_clients
from precad.aggregator.training.connected_clients import ConnectedClients, LongStream, OpenWatches
from precad.aggregator.training.model_store import ModelStore
from precad.common.errors import AccessDenied
from precad.common.identifiers import ClientId

ONE, OTHER = ClientId("one"), ClientId("other")
Wrap = Callable[[AsyncIterator[int]], AsyncIterator[int]]


class Source:
    """Some items, then silence; knows whether it was closed."""

    def __init__(self, items: int) -> None:
        self._items = items
        self.closed = False
        self.silent = asyncio.Event()

    async def __call__(self) -> AsyncGenerator[int]:
        try:
            for number in range(self._items):
                yield number
            self.silent.set()
            await asyncio.Event().wait()
        finally:
            self.closed = True


async def watched(items: AsyncIterator[int]) -> AsyncIterator[int]:
    book = OpenWatches(lambda _client: None)
    with book.open("ipv4:127.0.0.1:1", ONE, b"1", lambda: None) as watch:
        async for item in watch.follow(items):
            yield item


def looked_at(items: AsyncIterator[int]) -> AsyncIterator[int]:
    return LongStream(lambda: None).follow(items)


@pytest.mark.parametrize("wrap", [watched, looked_at])
def test_a_caller_that_leaves_ends_its_stream_and_leaves_it_at_rest(wrap: Wrap) -> None:
    """gRPC cancels the handler; closing a stream that still ran was an error in the log."""
    source = Source(3)

    async def handler() -> None:
        async with contextlib.aclosing(source()) as items:
            async for _ in wrap(items):
                pass

    async def play() -> None:
        task = asyncio.create_task(handler())
        await source.silent.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(play())
    assert source.closed


def test_a_stream_ends_once_its_caller_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connected_clients, "LOOK_S", 0.01)
    looks = iter(range(3))

    def still_allowed() -> None:
        if next(looks) == 2:
            raise AccessDenied("revoked")

    async def follow() -> None:
        assert [item async for item in LongStream(still_allowed).follow(Source(2)())] == []

    with pytest.raises(AccessDenied, match="revoked"):
        asyncio.run(follow())
    assert next(looks, None) is None


# --- how long a server with a finished model waits ------------------------------------------------


def test_a_model_stays_until_the_last_owner_has_had_its_time() -> None:
    clock, both = LeapingClock(0.0), [ONE, OTHER]
    clients = ConnectedClients(1.0, clock)
    assert clients.last_heard(both) is None
    assert leaves_at(1000.0, None, 0.0) == 1000.0
    clock.sleep(5.0)
    clients.heard_from(ONE)
    # After a training that all took part in it stays for the stated time.
    for stated in (30.0, 0.0, math.inf):
        assert leaves_at(1000.0, clients.last_heard([ONE]), stated) == 1000.0 + stated
    # One that was never heard from is waited for longer, but not without an end.
    assert leaves_at(2.0, clients.last_heard(both), 30.0) == 2.0 + LATE * 30.0
    clock.sleep(195.0)
    clients.heard_from(OTHER)
    assert leaves_at(2.0, clients.last_heard(both), 30.0) == 230.0
    # Nobody keeps a server up by asking again and again.
    clock.sleep(25.0)
    clients.heard_from(ONE)
    assert leaves_at(2.0, clients.last_heard(both), 30.0) == 230.0


class Ticking(LeapingClock):
    """A clock by which every look takes a second."""

    def now(self) -> float:
        self.sleep(1.0)
        return super().now()


def test_a_finished_server_that_starts_again_waits_for_nobody_who_has_its_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such an owner calls nobody any more (``DataOwner.run``)."""
    task, late = task_with({}), LATE * 30
    monkeypatch.setattr(process, "LOOK_S", 0.0)

    def stays(*with_model: ClientId, heard: bool = False) -> float:
        clock = Ticking()
        clients = ConnectedClients(1.0, clock)
        for client in (ONE, OTHER) if heard else ():
            clients.heard_from(client)
        for client in with_model:
            clients.has_final_model(client)
        session: Any = SimpleNamespace(
            clock=clock,
            connected_clients=clients,
            model_store=ModelStore(task, tmp_path / "model.safetensors"),
            register=SimpleNamespace(roster=lambda: {ONE: None, OTHER: None}),
        )
        began = clock.now()
        asyncio.run(stay(session, 30.0, asyncio.Event()))
        return clock.now() - began

    # One of two got it: a next start waits for the other, and so does the one after it.
    assert stays(ONE, heard=True) < late
    assert stays() > late
    assert stays(ONE, OTHER, heard=True) < late
    assert stays() < late
    # A state that was put back, or another training's model, is waited for again.
    theta = np.ones(task.dimension)
    ModelStore(task, tmp_path / "model.safetensors").put(task.training.rounds, theta)
    assert stays() > late
