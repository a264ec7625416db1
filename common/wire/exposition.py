"""Metrics as a Prometheus reads them: its text format 0.0.4, over plain HTTP.

There is no TLS and no name on that port, so its address must be one that only the Prometheus
reaches. Of what a caller sends nothing is looked at but the first line; it gets 5 s, and four may
be there at once.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Literal

from precad.common.errors import Misconfiguration

log = logging.getLogger("precad")

PREFIX = "precad_"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_HEAD_BYTES = 1 << 13
_PATIENCE_S = 5.0
_AT_ONCE = 4

Samples = Sequence[tuple[Mapping[str, str], float]]
"""Labels and value of each."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric, as it is now."""

    kind: Literal["counter", "gauge"]
    name: str
    """Without ``precad_``; a counter's ends with ``_total``."""
    says: str
    samples: Samples


def one(value: float) -> Samples:
    """A value without labels."""
    return [({}, value)]


def by(label: str, values: Mapping[str, float]) -> Samples:
    """A value for each of a label's, in order."""
    return [({label: key}, value) for key, value in sorted(values.items())]


def text_of(metrics: Iterable[Metric]) -> str:
    """The text format."""
    lines: list[str] = []
    for metric in metrics:
        name = PREFIX + metric.name
        lines.append(f"# HELP {name} {_escaped(metric.says)}")
        lines.append(f"# TYPE {name} {metric.kind}")
        for labels, value in metric.samples:
            inner = ",".join(f'{key}="{_quoted(said)}"' for key, said in labels.items())
            lines.append(f"{name}{{{inner}}} {_number(value)}".replace("{}", "", 1))
    return "".join(f"{line}\n" for line in lines)


def _number(value: float) -> str:
    return {"inf": "+Inf", "nan": "NaN"}.get(said := repr(float(value)), said)


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n")


def _quoted(text: str) -> str:
    return _escaped(text).replace('"', r"\"")


@asynccontextmanager
async def exposed(collect: Callable[[], Iterable[Metric]], address: str) -> AsyncIterator[None]:
    """Show them at ``http://address/metrics`` meanwhile.

    Args:
        collect: the present values; called in a thread, one scrape after the other.
        address: ``host:port``; port 0 takes a free one, which the log says.

    Raises:
        Misconfiguration: nothing can listen there.
    """
    host, _, port = address.rpartition(":")
    page = _Page(collect)
    try:
        server = await asyncio.start_server(
            page.answer, host.strip("[]"), int(port), limit=_HEAD_BYTES
        )
    except OSError as error:
        why = f"can't listen there ({error.strerror}); name a free port"
        raise Misconfiguration("metrics", address, why) from None
    log.info("metrics on port %d", server.sockets[0].getsockname()[1])
    try:
        yield
    finally:
        server.close()


class _Page:
    def __init__(self, collect: Callable[[], Iterable[Metric]]) -> None:
        self._collect = collect
        self._turn = asyncio.Lock()
        self._open = 0

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, with one question."""
        if self._open >= _AT_ONCE:
            writer.close()
            return
        self._open += 1
        try:
            async with asyncio.timeout(_PATIENCE_S):
                head = await reader.readuntil(b"\r\n\r\n")
            status, text = await self._asked(head.split(b"\r\n", 1)[0])
            body = text.encode()
            about = f"HTTP/1.1 {status}\r\nContent-Type: {CONTENT_TYPE}\r\n"
            about += f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
            writer.write(about.encode("ascii") + body)
            async with asyncio.timeout(_PATIENCE_S):
                await writer.drain()
        except (OSError, EOFError, asyncio.LimitOverrunError):
            # Whoever asked is gone, too slow, or says too much: it asks again.
            pass
        finally:
            self._open -= 1
            writer.close()

    async def _asked(self, line: bytes) -> tuple[str, str]:
        if line.split(b" ")[:2] != [b"GET", b"/metrics"]:
            return "404 Not Found", "GET /metrics is all that is here\n"
        try:
            async with self._turn:
                return "200 OK", await asyncio.to_thread(lambda: text_of(self._collect()))
        except Exception:
            log.exception("the metrics can't be computed")
            return "500 Internal Server Error", "see this part's log\n"
