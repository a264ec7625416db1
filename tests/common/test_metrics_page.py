"""Metrics as a Prometheus reads them: what an independent parser sees, and who else may ask."""

import contextlib
import logging
import math
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from unittest.mock import Mock

import pytest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from tests.rig.clock import LeapingClock
from tests.rig.keys import identity
from tests.rig.waiting import until

from precad.common.clock import CLOCK, Clock
from precad.common.identifiers import Role
from precad.common.identity.party_certificate import Principal
from precad.common.releases import this_build
from precad.common.wire import metrics_page
from precad.common.wire.metrics_page import (
    AT_ONCE,
    FRESH_S,
    PACE_S,
    about,
    metric,
)

WAIT_S = 60.0
REQUEST = b"GET /metrics HTTP/1.1\r\nHost: a\r\n"
"""All but its end."""


@contextmanager
def shown(
    caplog: pytest.LogCaptureFixture,
    collect: Callable[[], Iterable[Metric]],
    clock: Clock = CLOCK,
) -> Iterator[str]:
    with (
        caplog.at_level(logging.INFO, "precad"),
        metrics_page.metrics_page(collect, "127.0.0.1:0", clock),
    ):
        (port,) = next(r.args for r in caplog.records if "metrics on port" in r.msg)  # type: ignore[misc]
        yield f"http://127.0.0.1:{port}/metrics"


def done(rounds: int) -> Metric:
    return metric("rounds_done", rounds, says="Versions released.")


def read(address: str) -> str:
    with urllib.request.urlopen(address, timeout=WAIT_S) as page:
        text: str = page.read().decode()
        return text


def test_an_independent_parser_reads_what_was_meant(
    caplog: pytest.LogCaptureFixture,
) -> None:
    awkward = 'a "task"\\n of\nours'
    metrics = [
        *about(awkward, identity(Principal.service(Role.SERVER_B)), {}),
        metric(
            "bytes_total",
            {"b to a": 2.5, "a to b": 10**18},
            says="By link.",
            label="link",
        ),
        metric("epsilon", math.inf, says='What\nruns \\ "here".'),
        metric("nothing", {}, says="No value yet.", label="step"),
    ]
    with shown(caplog, lambda: metrics) as address:
        found = {
            each.name: each for each in text_string_to_metric_families(read(address))
        }
    labels = found["precad_info"].samples[0].labels
    assert {key: labels[key] for key in ("task", "role")} == {
        "task": awkward,
        "role": "server-b",
    }
    build = found["precad_build_info"].samples[0]
    assert (build.labels, build.value) == (asdict(this_build()), 1)
    links = found["precad_bytes"]
    assert links.type == "counter"
    assert [(s.name, s.labels["link"], s.value) for s in links.samples] == [
        ("precad_bytes_total", "a to b", 1e18),
        ("precad_bytes_total", "b to a", 2.5),
    ]
    assert found["precad_epsilon"].documentation == 'What\nruns \\ "here".'
    assert found["precad_epsilon"].samples[0].value == math.inf
    assert found["precad_nothing"].samples == []


@pytest.mark.parametrize(
    ("said", "callers"),
    [(b"", 200), *((REQUEST[:end], 2 * AT_ONCE) for end in (9, 23, len(REQUEST)))],
)
def test_who_is_silent_or_never_ends_a_request_keeps_nobody_from_reading(
    caplog: pytest.LogCaptureFixture, said: bytes, callers: int
) -> None:
    """However far it comes: all but the newest end, and no thread for each stays."""
    before = threading.active_count()
    with shown(caplog, lambda: [done(3)]) as address, contextlib.ExitStack() as stack:
        where = "127.0.0.1", int(address.rpartition(":")[2].partition("/")[0])
        some = [
            stack.enter_context(socket.create_connection(where)) for _ in range(callers)
        ]
        for each in some:
            each.settimeout(WAIT_S)
            with contextlib.suppress(OSError):  # it may have ended already
                each.sendall(said)
        assert "precad_rounds_done 3.0" in read(address)
        for each in some[:-AT_ONCE]:
            with contextlib.suppress(ConnectionResetError):
                assert each.recv(1) == b""
        until(
            lambda: threading.active_count() <= before + AT_ONCE + 2,
            "their threads end",
        )


def test_who_asks_without_end_is_answered_at_a_pace(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Whoever reaches the port could take most of a core of a server with 800 a second."""
    clock, collect = LeapingClock(), Mock(side_effect=[[done(1)], [done(2)]])
    with shown(caplog, collect, clock) as address:
        began = clock.now()
        assert all("rounds_done 1.0" in read(address) for _ in range(5))
        assert clock.now() - began >= 4 * PACE_S
        clock.sleep(FRESH_S + 0.1)
        assert "rounds_done 2.0" in read(address)


def test_what_fails_is_said_in_the_log_alone(caplog: pytest.LogCaptureFixture) -> None:
    fails = [True, False]

    def collect() -> Iterator[Metric]:
        yield done(3)
        if fails.pop(0):
            raise RuntimeError("the disk is gone")

    with shown(caplog, collect) as address:
        with pytest.raises(urllib.error.HTTPError) as failed:
            read(address)
        assert failed.value.code == 500
        assert b"disk" not in failed.value.read()
        assert "rounds_done" in read(address)
    assert "the disk is gone" in caplog.text
