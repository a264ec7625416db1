"""The lines between parts: straight, or through a relay that is as slow as a given link."""

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from examples.demo.local_processes import straight

from benchmarks.rounds.part import Part
from benchmarks.rounds.relay import Link

WIDE_AREA = Link(bytes_per_s=100e6 / 8, delay_s=0.02)
"""100 Mbit/s in each direction and 20 ms one way: the slow link of every table."""


Counts = dict[str, tuple[int, int]]
"""Bytes there and back by line; a line is named ``who address``."""


class Lines(Protocol):
    """How one part reaches another."""

    def way(self, who: str, address: str) -> str:
        """What ``who`` dials for the part at ``address``."""

    def counts(self) -> Counts | None:
        """On the wire so far; None where nobody counts."""


class Straight:
    """Loopback."""

    def way(self, who: str, address: str) -> str:
        """The address itself."""
        return straight(who, address)

    def counts(self) -> None:
        """Nobody counts."""


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

    @contextmanager
    def round(self) -> Iterator[None]:
        """Around a round."""
        before = self._lines.counts()
        yield
        after = self._lines.counts()
        self._rounds += 1
        for line, counts in (after or {}).items():
            who, address = line.split()
            if before is not None and address in self._names:
                part = self._names[address]
                self._bytes[f"{who} to {part}"] += counts[0] - before[line][0]
                self._bytes[f"{part} to {who}"] += counts[1] - before[line][1]

    def facts(self) -> dict[str, dict[str, int]]:
        """Bytes of a round by link, as ``wire_bytes``; nothing if nobody counts."""
        counted = {
            link: count // self._rounds for link, count in self._bytes.items() if count
        }
        return {"wire_bytes": counted} if counted else {}
