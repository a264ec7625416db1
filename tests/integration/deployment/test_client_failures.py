"""What a data owner hears when it can't take part: what, where, and what to do; the servers and
the other data owners go on."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from tests.rig.warm import said as command

from precad.cli.local_deployment import task_to_toml
from precad.client.connection import Servers
from precad.common.errors import AccessDenied, PeerUnavailable, PeerViolation, TaskMismatch
from precad.common.identity.credentials import Identity
from precad.common.task import Task

if TYPE_CHECKING:
    from tests.integration.deployment.conftest import Running

COUNTED = "counted"
Meet = Callable[[Servers], None]
ERRORS = (AccessDenied, PeerUnavailable, PeerViolation, TaskMismatch)


def said(servers: Servers, meet: Meet = Servers.check_task) -> str:
    """The error that ``meet`` ends in."""
    with servers, pytest.raises(ERRORS) as caught:
        meet(servers)
    return str(caught.value)


def still_running(running: "Running") -> None:
    """Everybody else's next round is whole."""
    zero = np.zeros(running.task.dimension, dtype=np.int64)
    assert set(running.play({}, zero).outcome.values()) == {COUNTED}


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


def test_join_says_why_it_ends_on_its_last_line(running: "Running", tmp_path: Path) -> None:
    config = (running.deployment.folder / "ward-00.toml").read_text(encoding="utf-8")
    task = Task.parse(running.task.model_dump() | {"name": "another"})
    (tmp_path / "other.toml").write_text(task_to_toml(task))
    changed = running.deployment.folder / "changed.toml"
    other = f'task = "{tmp_path / "other.toml"}"'
    changed.write_text(re.sub(r"^task = .*$", other, config, flags=re.MULTILINE))
    status, printed = command(tmp_path, "join", "--config", changed)
    assert (status, "Traceback" in printed) == (1, False)
    last = printed.splitlines()[-1]
    assert last.startswith(f"precad: task digest differs: ours {task.digest}, theirs")
    assert str(running.task.digest) in last
