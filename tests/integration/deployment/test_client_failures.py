"""What a data owner hears when it can't take part: what, where, and what to do; the servers and
the other data owners go on."""

import json
import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from tests.rig.clock import LeapingClock
from tests.rig.keys import identity
from tests.rig.warm import said as command

from precad.cli.local_deployment import free_addresses, task_to_toml
from precad.client import DataOwner
from precad.client.connection import Servers
from precad.common.errors import (
    AccessDenied,
    Misconfiguration,
    PeerUnavailable,
    PeerViolation,
    TaskMismatch,
)
from precad.common.identity.credentials import Identity
from precad.common.identity.deployment_keys import create_local_keys
from precad.common.identity.party_certificate import Principal
from precad.common.task import Task

if TYPE_CHECKING:
    from tests.integration.deployment.conftest import Running

COUNTED = "counted"
CHECK = "check that it runs, its address"
Meet = Callable[[Servers], None]
ERRORS = (AccessDenied, PeerUnavailable, PeerViolation, TaskMismatch)


def said(servers: Servers, meet: Meet = Servers.check_task) -> str:
    """The error that ``meet`` ends in."""
    with servers, pytest.raises(ERRORS) as caught:
        meet(servers)
    return str(caught.value)


def at_once(running: "Running", **changes: object) -> str:
    """The error of ward-00 with these changes; nobody waited for it to pass."""
    clock = LeapingClock()
    error = said(running.stranger("ward-00", clock=clock, **changes))
    assert clock.slept == []
    return error


def still_running(running: "Running") -> None:
    """Everybody else's next round is whole."""
    zero = np.zeros(running.task.dimension, dtype=np.int64)
    assert set(running.play({}, zero).outcome.values()) == {COUNTED}


@pytest.fixture
def nobody() -> str:
    """An address where nobody listens."""
    return free_addresses(1)[0]


@pytest.mark.parametrize("server", ["server_a", "server_b"])
def test_a_server_that_is_not_there_is_named_with_its_address_and_the_remedy(
    running: "Running", nobody: str, server: str, caplog: pytest.LogCaptureFixture
) -> None:
    name = f"server {server[-1].upper()}"
    with caplog.at_level(logging.WARNING, "precad"):
        clock = LeapingClock()
        error = said(running.stranger("ward-00", clock=clock, **{server: nobody}))
    assert f"{name} at {nobody} can't be reached" in error
    assert "refused" in error
    assert CHECK in error
    # It may be starting: said at once, and tried for as long as its owner waits.
    assert f"{name} at {nobody} refuses connections: nothing listens on that port" in caplog.text
    assert re.search(r"trying again for 1\d\d s", caplog.text)
    assert sum(clock.slept) > 60


def test_whoever_else_answers_at_a_servers_address_is_named(running: "Running") -> None:
    addresses = running.deployment.addresses
    a, b, dealer = (addresses[name] for name in ("server-a", "server-b", "dealer"))
    for server, address in (("b", a), ("a", b), ("b", dealer), ("a", dealer)):
        error = at_once(running, **{f"server_{server}": address})
        assert f"server {server.upper()} isn't at {address}" in error
        assert "another party's certificate" in error
        assert "mend the address" in error
    error = at_once(running, identity=identity(Principal.client("ward-00")))
    assert a in error
    assert "both sides use TLS with the same root certificate" in error


def test_another_clients_certificate_gets_nothing(running: "Running") -> None:
    other = Identity.load(running.deployment.folder / "keys" / "ward-01")
    stranger = running.stranger("ward-00", identity=other)
    error = said(stranger, lambda servers: servers.enrol(1, running.task.privacy.record_rate))
    assert "ward-01" in error
    assert "ward-00" in error
    still_running(running)


def test_another_task_is_refused_with_both_digests(running: "Running") -> None:
    task = Task.parse(running.task.model_dump() | {"name": "another"})
    meetings: list[Meet] = [
        Servers.check_task,
        lambda servers: servers.enrol(1, task.privacy.record_rate),
        lambda servers: list(servers.watch()).clear(),
    ]
    for meet in meetings:
        error = said(running.stranger("ward-00", task=task), meet)
        assert str(task.digest) in error
        assert str(running.task.digest) in error
        assert "same task file" in error
    still_running(running)


def test_a_late_client_hears_that_enrolment_is_over(running: "Running") -> None:
    still_running(running)  # the roster is frozen
    stranger = running.stranger("ward-00")
    # The own claim again is confirmed; another one isn't taken.
    stranger.enrol(1, running.task.privacy.record_rate)
    error = said(stranger, lambda servers: servers.enrol(2, running.task.privacy.record_rate))
    assert "claims are frozen" in error


def test_a_claim_above_the_tasks_cap_never_leaves_the_client(running: "Running") -> None:
    with running.stranger("ward-00") as servers:
        with pytest.raises(Misconfiguration, match=r"max_expected_records = 100"):
            servers.enrol(10_000, running.task.privacy.record_rate)
        with pytest.raises(Misconfiguration, match=r"at most the task's 0\.2"):
            servers.enrol(1, 0.3)


def join(folder: Path, config: Path, **settings: object) -> str:
    """The last line of `precad join` with some of its settings changed: it ends with status 1."""
    lines = [line for line in config.read_text().splitlines() if line.split(" ")[0] not in settings]
    lines += [f"{key} = {json.dumps(str(value))}" for key, value in settings.items()]
    changed = config.with_name("changed.toml")
    changed.write_text("\n".join(lines) + "\n")
    status, printed = command(folder, "join", "--config", changed)
    assert status == 1, printed
    assert "Traceback" not in printed
    return printed.splitlines()[-1]


def test_join_says_why_it_ends_on_its_last_line(running: "Running", tmp_path: Path) -> None:
    config, addresses = running.deployment.folder / "ward-00.toml", running.deployment.addresses
    task = Task.parse(running.task.model_dump() | {"name": "another"})
    (tmp_path / "other.toml").write_text(task_to_toml(task))
    last = join(tmp_path, config, task=tmp_path / "other.toml")
    assert last.startswith(f"precad: task digest differs: ours {task.digest}, theirs")
    assert str(running.task.digest) in last
    create_local_keys(tmp_path / "other", ["ward-00"])
    last = join(tmp_path, config, identity=tmp_path / "other" / "ward-00")
    assert "another authority" in last
    swapped = {"server_a": addresses["server-b"], "server_b": addresses["server-a"]}
    last = join(tmp_path, config, **swapped)
    assert "another party's certificate (server-b.precad)" in last


def test_a_nan_is_told_to_the_owner_before_anything_is_sent(
    make_task: Callable[..., Task],
) -> None:
    """Before enrolment, where refusing is the owner's own affair; no server needs to be there."""
    task = make_task(
        6,
        {
            "model.architecture": "logistic",
            "model.parameters": [
                {"name": "1.weight", "shape": [2, 2]},
                {"name": "1.bias", "shape": [2]},
            ],
        },
    )
    x = np.array([[np.nan, 1.0], [1.0, 2.0]], dtype=np.float32)
    with pytest.raises(Misconfiguration, match=r"input\[0\] of record 0 .*must be finite"):
        DataOwner(
            "ward-00",
            task=task,
            data=(x, np.array([0, 1])),
            server_a="127.0.0.1:1",
            server_b="127.0.0.1:1",
            identity=identity(Principal.client("ward-00")),
        )
