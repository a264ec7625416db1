"""A server makes room for its clients' connections, as far as the system lets it."""

import fcntl
import logging
import os
import resource
from collections.abc import Iterator

import pytest

from precad.aggregator.rpc.connections import (
    BESIDE_CLIENTS,
    FILES_PER_CLIENT,
    LEAST_CONNECTIONS,
    allow_descriptors,
    connections_for,
    descriptors_for,
)
from precad.common.clock import readable_within


@pytest.fixture(autouse=True)
def limits() -> Iterator[tuple[int, int]]:
    """A soft limit of 512 for the test; the hard one stays, since lowering it is for good."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))
    yield 512, hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_the_soft_limit_rises_to_what_is_wanted() -> None:
    assert allow_descriptors(600) == 600
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 600


def test_a_limit_that_suffices_stays() -> None:
    assert allow_descriptors(100) == 512
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 512


def test_beyond_the_hard_limit_it_takes_what_there_is_and_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    changed: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _which: (512, 700))
    monkeypatch.setattr(resource, "setrlimit", lambda _which, limit: changed.append(limit))
    with caplog.at_level(logging.WARNING):
        assert allow_descriptors(1000) == 700
    assert changed == [(700, 700)]
    assert "may open 700 files and may need 1000" in caplog.text


def test_every_client_has_room_for_an_old_and_a_new_connection_and_two_uploads() -> None:
    assert descriptors_for(1000) - descriptors_for(0) == 4000
    assert connections_for(1000, descriptors_for(1000)) - connections_for(0, 10_000) == 2000


@pytest.mark.parametrize("clients", [1, 100, 10_000])
@pytest.mark.parametrize("allowed", [400, 1024, 4096, 1 << 20])
def test_connections_leave_room_for_the_servers_own_files(clients: int, allowed: int) -> None:
    files = BESIDE_CLIENTS + FILES_PER_CLIENT * clients
    most = connections_for(clients, allowed)
    assert most == LEAST_CONNECTIONS or most + files <= allowed


# --- a pipe beyond what select takes -------------------------------------------------------------


def test_a_pipe_beyond_the_1024th_descriptor_is_waited_for() -> None:
    allow_descriptors(1100)
    low, writes = os.pipe()
    reads = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, 1050)
    try:
        assert list(readable_within(0.0, reads)) == []
        os.write(writes, b"x")
        assert list(readable_within(None, reads)) == [reads]
    finally:
        for number in (low, reads, writes):
            os.close(number)
