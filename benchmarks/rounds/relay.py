"""A slow link on this machine: TCP at a given rate and delay, in a process of its own.

Stands in for `tc netem` where the kernel lacks it or nobody may use it. Each pair of parts has one
line, shared by all its connections, of that rate in each direction; what was sent arrives the delay
later. TLS goes through untouched, and what passes is counted. Run as a program: see ``Part``.
"""

import asyncio
import contextlib
import threading
from dataclasses import dataclass

from benchmarks.rounds.part import Orders

_PIECE_BYTES = 1 << 14
_UNDER_WAY_PIECES = 64
"""1 MiB of a connection is on its way at most: above rate times delay, and then senders wait."""


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
        self.bytes = 0

    def arrival(self, now: float, size: int) -> float:
        """When the last of ``size`` bytes that are handed in at ``now`` is there, in seconds."""
        self.bytes += size
        self._free_at = max(self._free_at, now) + size / self._link.bytes_per_s
        return self._free_at + self._link.delay_s


async def _carry(source: asyncio.StreamReader, sink: asyncio.StreamWriter, way: Way) -> None:
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
            await queue.put((way.arrival(loop.time(), len(data)), data))
    await queue.put((loop.time(), b""))
    with contextlib.suppress(OSError):
        await delivery


class Line:
    """One pair of parts' connections."""

    def __init__(self, target: str, link: Link) -> None:
        self._target = target.rsplit(":", 1)
        self._there, self._back = Way(link), Way(link)
        self._server: asyncio.Server | None = None
        self._ends: set[asyncio.Task[None]] = set()

    @property
    def bytes(self) -> tuple[int, int]:
        """What went to the target, and what came back."""
        return self._there.bytes, self._back.bytes

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

    async def _connect(self, near: asyncio.StreamReader, answer: asyncio.StreamWriter) -> None:
        host, port = self._target
        try:
            far, sink = await asyncio.open_connection(host, int(port))
        except OSError:
            # Not there yet: whoever dialled tries again.
            answer.close()
            return
        await asyncio.gather(
            _carry(near, sink, self._there),
            _carry(far, answer, self._back),
            return_exceptions=True,
        )


def main() -> None:
    """Lay each line that is asked for, and say what went over them."""
    orders = Orders()
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    lines: dict[str, Line] = {}
    for order in orders:
        if "target" in order:
            line = Line(order["target"], Link(order["bytes_per_s"], order["delay_s"]))
            lines[order["name"]] = line
            address = asyncio.run_coroutine_threadsafe(line.listen(), loop).result()
            orders.say(address=address)
        else:
            orders.say(bytes={name: line.bytes for name, line in lines.items()})


if __name__ == "__main__":
    main()
