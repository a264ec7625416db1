"""A long stream ends with its caller's certificate, and leaves nothing running behind."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable

import pytest

from precad.aggregator.training import connected_clients
from precad.aggregator.training.connected_clients import LongStream, OpenWatches
from precad.common.errors import AccessDenied
from precad.common.identifiers import ClientId

ONE, TWO = ClientId("ward-1"), ClientId("ward-2")
Wrap = Callable[[AsyncIterator[int]], AsyncIterator[int]]


WHERE = "ipv4:127.0.0.1:1"


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
    with book.open(WHERE, ONE, b"1", lambda: None) as watch:
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
