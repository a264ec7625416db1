"""A slow link on this machine: TCP at a given rate and delay, in a process of its own.

Stands in for `tc netem` where the kernel lacks it or nobody may use it. A line has that
rate in each direction, for all connections of a pair of parts together, or of several
pairs; what was sent arrives the delay later. TLS goes through untouched, and what
passes is counted for each pair, also by when it was on the line. Run as a program: see
``Part``.
"""

import asyncio
import contextlib
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from benchmarks.rounds.part import Orders

_PIECE_BYTES = 1 << 14
_UNDER_WAY_PIECES = 64
"""1 MiB of a connection is on its way at most: above rate times delay, and then senders
wait."""
BIN_S = 0.01
"""What passes is counted for each such stretch of the machine's monotonic clock."""


@dataclass(frozen=True, slots=True)
class Link:
    """What a line is like."""

    bytes_per_s: float
    delay_s: float
    """One way."""


class Way:
    """One direction of a line: when what is handed in now has arrived at the other end."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._free_at = 0.0

    def arrival(self, now: float, size: int) -> float:
        """When the last of ``size`` bytes that are handed in at ``now`` is there, in seconds."""
        self._free_at = max(self._free_at, now) + size / self._link.bytes_per_s
        return self._free_at + self._link.delay_s

    def left(self, arrives: float) -> float:
        """When what ``arrives`` then has been put on the line, in seconds."""
        return arrives - self._link.delay_s


async def _carry(
    source: asyncio.StreamReader,
    sink: asyncio.StreamWriter,
    way: Way,
    count: Callable[[int, float], None],
) -> None:
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_UNDER_WAY_PIECES)

    async def deliver() -> None:
        while True:
            arrives, data = await queue.get()
            await asyncio.sleep(max(0.0, arrives - loop.time()))
            if not data:
                sink.close()
                return
            sink.write(data)
            await sink.drain()

    delivery = asyncio.create_task(deliver())
    with contextlib.suppress(OSError):
        while data := await source.read(_PIECE_BYTES):
            arrives = way.arrival(loop.time(), len(data))
            count(len(data), way.left(arrives))
            await queue.put((arrives, data))
    await queue.put((loop.time(), b""))
    with contextlib.suppress(OSError):
        await delivery


class Pair:
    """One pair of parts' connections, over the two ways of a line."""

    def __init__(self, target: str, there: Way, back: Way) -> None:
        self._target = target.rsplit(":", 1)
        self._there, self._back = there, back
        self._bytes = [0, 0]
        self._bins: tuple[Counter[int], Counter[int]] = Counter(), Counter()
        """Bytes of each way by the number of the stretch in which they left."""
        self._server: asyncio.Server | None = None
        self._ends: set[asyncio.Task[None]] = set()

    @property
    def bytes(self) -> tuple[int, int]:
        """What went to the target, and what came back."""
        return self._bytes[0], self._bytes[1]

    def over_time(self, since: float) -> list[dict[int, int]]:
        """Bytes of both ways by stretch, from ``since`` on; what came before is forgotten."""
        first = int(since / BIN_S)
        for bins in self._bins:
            # A copy of the keys at once: the loop's thread goes on counting.
            for old in [number for number in list(bins) if number < first]:
                del bins[old]
        return [dict(bins) for bins in self._bins]

    async def listen(self) -> str:
        """Take connections. Returns where."""
        self._server = await asyncio.start_server(self._begin, "127.0.0.1", 0)
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def close(self) -> None:
        """Take no more connections, and wait until those that there are have ended."""
        assert self._server is not None
        self._server.close()
        await asyncio.gather(*self._ends)

    def _begin(self, near: asyncio.StreamReader, answer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._connect(near, answer))
        self._ends.add(task)
        task.add_done_callback(self._ends.discard)

    async def _connect(
        self, near: asyncio.StreamReader, answer: asyncio.StreamWriter
    ) -> None:
        host, port = self._target
        try:
            far, sink = await asyncio.open_connection(host, int(port))
        except OSError:
            # Not there yet: whoever dialled tries again.
            answer.close()
            return
        await asyncio.gather(
            _carry(near, sink, self._there, partial(self._count, 0)),
            _carry(far, answer, self._back, partial(self._count, 1)),
            return_exceptions=True,
        )

    def _count(self, way: int, size: int, left: float) -> None:
        self._bytes[way] += size
        self._bins[way][int(left / BIN_S)] += size


def main() -> None:
    """Lay a line for each pair that is asked for, and say what went between them."""
    orders = Orders()
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    ways: dict[str, tuple[Way, Way]] = {}
    pairs: dict[str, Pair] = {}
    for order in orders:
        if "target" in order:
            link = Link(order["bytes_per_s"], order["delay_s"])
            there, back = ways.setdefault(order["line"], (Way(link), Way(link)))
            pair = pairs[order["name"]] = Pair(order["target"], there, back)
            address = asyncio.run_coroutine_threadsafe(pair.listen(), loop).result()
            orders.say(address=address)
        elif "since" in order:
            since = order["since"]
            orders.say(
                over_time={name: pair.over_time(since) for name, pair in pairs.items()}
            )
        else:
            orders.say(bytes={name: pair.bytes for name, pair in pairs.items()})


if __name__ == "__main__":
    main()
