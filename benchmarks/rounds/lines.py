"""The lines between parts: straight, or through a relay that is as slow as a given link."""

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from examples.demo.local_processes import straight

from benchmarks.rounds.part import Part
from benchmarks.rounds.relay import BIN_S, Link

WIDE_AREA = Link(bytes_per_s=100e6 / 8, delay_s=0.02)
"""100 Mbit/s in each direction and 20 ms one way: the slow link of every table."""


Counts = dict[str, tuple[int, int]]
"""Bytes there and back by line; a line is named ``who address``."""
OverTime = dict[str, tuple[dict[int, int], dict[int, int]]]
"""By line, bytes there and back by stretch of ``BIN_S`` of the monotonic clock."""
SHOWN_S = 0.05
"""Length of a stretch of a round's traffic as documents have it."""


class Lines(Protocol):
    """How one part reaches another."""

    def way(self, who: str, address: str) -> str:
        """What ``who`` dials for the part at ``address``."""

    def counts(self) -> Counts | None:
        """On the wire so far; None where nobody counts."""

    def over_time(self, since: float) -> OverTime:
        """On the wire from ``since`` on, by time; empty where nobody counts."""


class Straight:
    """Loopback."""

    def way(self, who: str, address: str) -> str:
        """The address itself."""
        return straight(who, address)

    def counts(self) -> None:
        """Nobody counts."""

    def over_time(self, since: float) -> OverTime:
        """Nobody counts."""
        del since
        return {}


class Relayed:
    """A line of its own for each pair; use it as a context manager.

    Args:
        link: what each line is like.
        folder: receives the relay's log.
        shared: whether all that a part dials shares one line instead: both servers are
            then behind the clients' one.
    """

    def __init__(self, link: Link, folder: Path, *, shared: bool = False) -> None:
        self._link, self._shared = link, shared
        self._relay = Part("relay", "benchmarks.rounds.relay", folder)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _value: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self._relay.stop()

    def way(self, who: str, address: str) -> str:
        """Lay a line from ``who`` to ``address``."""
        answer = self._relay.ask(
            name=f"{who} {address}",
            line=who if self._shared else f"{who} {address}",
            target=address,
            bytes_per_s=self._link.bytes_per_s,
            delay_s=self._link.delay_s,
        )
        return str(answer["address"])

    def counts(self) -> Counts:
        """On the wire so far, with TLS and framing."""
        return {
            name: (there, back)
            for name, (there, back) in self._relay.ask()["bytes"].items()
        }

    def over_time(self, since: float) -> OverTime:
        """On the wire from ``since`` on; what came before is forgotten."""

        def numbered(bins: dict[str, int]) -> dict[int, int]:
            return {int(number): count for number, count in bins.items()}

        found = self._relay.ask(since=since)["over_time"]
        return {
            name: (numbered(there), numbered(back))
            for name, (there, back) in found.items()
        }


class Wire:
    """What rounds send over the lines to some parts, and nothing that is sent between rounds.

    Args:
        lines: to these parts and others.
        names: of the parts, by address.
    """

    def __init__(self, lines: Lines, names: Mapping[str, str]) -> None:
        self._lines, self._names = lines, dict(names)
        self._bytes: Counter[str] = Counter()
        self._rounds = 0
        self.last: dict[str, list[int]] = {}
        """Bytes of the last round by link, in stretches of ``SHOWN_S`` from its
        beginning."""

    @contextmanager
    def round(self) -> Iterator[None]:
        """Around a round."""
        before = self._lines.counts()
        begin = time.monotonic()
        yield
        after = self._lines.counts()
        self._rounds += 1
        self.last = self.over_time_from(begin)
        for line, counts in (after or {}).items():
            there, back = self._links(line)
            if before is not None and there:
                self._bytes[there] += counts[0] - before[line][0]
                self._bytes[back] += counts[1] - before[line][1]

    def facts(self) -> dict[str, dict[str, int]]:
        """Bytes of a round by link, as ``wire_bytes``; nothing if nobody counts."""
        counted = {
            link: count // self._rounds for link, count in self._bytes.items() if count
        }
        return {"wire_bytes": counted} if counted else {}

    def _links(self, line: str) -> tuple[str, str]:
        """A line's links, there and back; empty names for a line to others."""
        who, address = line.split()
        part = self._names.get(address)
        return (f"{who} to {part}", f"{part} to {who}") if part else ("", "")

    def over_time_from(self, begin: float) -> dict[str, list[int]]:
        """What was sent by link from ``begin`` on, in bytes by stretch of ``SHOWN_S``."""
        shown: dict[str, list[int]] = {}
        for line, ways in self._lines.over_time(begin).items():
            for link, bins in zip(self._links(line), ways, strict=True):
                if link and bins:
                    shown[link] = _rebinned(bins, begin)
        return shown


def _rebinned(bins: Mapping[int, int], begin: float) -> list[int]:
    """Bytes by stretch of ``SHOWN_S`` from ``begin``, of bytes by stretch of ``BIN_S``."""
    counts: Counter[int] = Counter()
    for number, count in bins.items():
        counts[max(0, int((number * BIN_S - begin) / SHOWN_S))] += count
    return [counts[number] for number in range(max(counts) + 1)]
