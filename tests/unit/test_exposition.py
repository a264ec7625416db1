"""Metrics as a Prometheus reads them: the text, and the page that shows it."""

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Iterable, Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from precad.common.errors import Misconfiguration
from precad.common.wire import exposition
from precad.common.wire.exposition import Metric, by, exposed, one, text_of

ROUNDS = Metric("gauge", "rounds_done", "Versions released.", one(3))
ASKED = b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n"


def test_an_independent_parser_reads_what_was_meant() -> None:
    awkward = 'a "task"\\n of\nours'
    metrics = [
        Metric("gauge", "info", 'What\nruns \\ "here".', [({"task": awkward, "role": "b"}, 1)]),
        Metric("counter", "bytes_total", "By link.", by("link", {"b to a": 2.5, "a to b": 10**18})),
        Metric("gauge", "epsilon", "ε.", one(math.inf)),
        Metric("gauge", "lost", "Away.", one(True)),  # noqa: FBT003 -- as a server says it
        Metric("gauge", "nothing", "No value yet.", []),
    ]
    read = {found.name: found for found in text_string_to_metric_families(text_of(metrics))}
    info = read["precad_info"]
    assert info.documentation == 'What\nruns \\ "here".'
    assert info.samples[0].labels == {"task": awkward, "role": "b"}
    links = read["precad_bytes"]
    assert links.type == "counter"
    assert [(s.labels["link"], s.value) for s in links.samples] == [
        ("a to b", 1e18),
        ("b to a", 2.5),
    ]
    assert read["precad_epsilon"].samples[0].value == math.inf
    assert read["precad_lost"].samples[0].value == 1.0
    assert read["precad_nothing"].samples == []


def shown(
    caplog: pytest.LogCaptureFixture,
    collect: Callable[[], Iterable[Metric]],
    scene: Callable[[int], Awaitable[None]],
) -> None:
    """Play a scene, with the port, while the metrics are shown."""

    async def play() -> None:
        async with exposed(collect, "127.0.0.1:0"):
            port = next(r.args for r in caplog.records if "metrics on port" in r.msg)
            assert isinstance(port, tuple)
            await scene(int(str(port[0])))

    with caplog.at_level(logging.INFO, "precad"):
        asyncio.run(play())


async def said(port: int, words: bytes) -> tuple[bytes, bytes]:
    """The head and the body of an answer, until the other side closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(words)
    try:
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    except ConnectionResetError:
        # Closed with words unread.
        head = body = b""
    writer.close()
    return head, body


def test_the_page_has_the_text_and_any_other_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def scene(port: int) -> None:
        head, body = await said(port, ASKED)
        assert head.startswith(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4")
        assert f"Content-Length: {len(body)}".encode() in head
        assert body.decode() == text_of([ROUNDS])
        for words in (b"GET / HTTP/1.1\r\n\r\n", b"POST /metrics HTTP/1.1\r\n\r\n", b"\r\n\r\n"):
            head, body = await said(port, words)
            assert head.startswith(b"HTTP/1.1 404")
            assert b"rounds" not in body

    shown(caplog, lambda: [ROUNDS], scene)


def test_whoever_says_too_much_or_nothing_is_let_go_and_the_next_one_is_served(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(port: int) -> None:
        assert await said(port, b"GET /metrics " + b"x" * (1 << 15)) == (b"", b"")
        with monkeypatch.context() as short:
            short.setattr(exposition, "_PATIENCE_S", 0.1)
            assert await said(port, b"GET /metrics") == (b"", b"")
        assert (await said(port, ASKED))[0].startswith(b"HTTP/1.1 200")

    shown(caplog, lambda: [ROUNDS], scene)


def test_of_many_who_stay_silent_four_are_kept(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exposition, "_PATIENCE_S", 600.0)

    async def scene(port: int) -> None:
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(4)]
        assert await said(port, ASKED) == (b"", b"")
        for reader, writer in silent:
            writer.write_eof()
            assert await reader.read() == b""
            writer.close()
        assert (await said(port, ASKED))[0].startswith(b"HTTP/1.1 200")

    shown(caplog, lambda: [ROUNDS], scene)


def test_what_fails_is_said_in_the_log_and_not_to_the_caller(
    caplog: pytest.LogCaptureFixture,
) -> None:
    fails = [True, False]

    def collect() -> Iterator[Metric]:
        yield ROUNDS
        if fails.pop(0):
            raise RuntimeError("the disk is gone")

    async def scene(port: int) -> None:
        head, body = await said(port, ASKED)
        assert head.startswith(b"HTTP/1.1 500")
        assert b"disk" not in head + body
        assert (await said(port, ASKED))[0].startswith(b"HTTP/1.1 200")

    shown(caplog, collect, scene)
    assert "the disk is gone" in caplog.text


def test_an_address_that_is_taken_is_refused_with_a_remedy() -> None:
    async def play() -> None:
        server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server, exposed(list, f"127.0.0.1:{port}"):
            pass

    with pytest.raises(Misconfiguration, match="name a free port"):
        asyncio.run(play())
