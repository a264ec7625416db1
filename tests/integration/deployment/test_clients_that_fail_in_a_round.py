"""A data owner that fails in the middle of a round: the round is the others'."""

import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from tests.rig.light_client import LightClient

from precad.client.connection import Servers
from precad.common.identifiers import ClientId, Role
from precad.common.identity.credentials import Identity

if TYPE_CHECKING:
    from tests.integration.deployment.conftest import Deploy

SCRIPT = Path(__file__).parent / "half_upload.py"
COLLECT_S = 60.0
SOON_S = 20.0
"""Far below the collection's deadline: nobody waited for those who are gone."""


def test_a_vanished_and_a_killed_client_leave_the_round_to_the_others(deploy: "Deploy") -> None:
    deployment = deploy({"deadlines.collect": COLLECT_S, "deadlines.peer": 20.0}, clients=3)
    a, b = deployment.addresses["server-a"], deployment.addresses["server-b"]
    keys = deployment.folder / "keys"
    spool = deployment.folder / "state" / "server-b" / "spool"
    deployment.start_servers()

    arguments = [sys.executable, str(SCRIPT), str(deployment.folder), "ward-01", a, b]
    with (
        subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as victim,
        LightClient(
            Servers(deployment.task, ClientId("ward-02"), a, b, Identity.load(keys / "ward-02"))
        ) as client,
    ):
        try:
            vanished = Servers(
                deployment.task, ClientId("ward-00"), a, b, Identity.load(keys / "ward-00")
            )
            with LightClient(vanished) as gone:
                gone.join()
                client.join()
                event = client.opened(fresh_s=COLLECT_S, timeout_s=60)

            assert line_of(victim, 30) == "half\n"
            # B holds a part of it, or else it may never have seen it.
            until(lambda: list(spool.glob("ward-01-*")) != [])
            killed = time.monotonic()
            victim.send_signal(signal.SIGKILL)
            zero = np.zeros(deployment.task.dimension, dtype=np.int64)
            assert [receipt.rejection for receipt in client.submit(event, zero)] == [None, None]
            assert client.over(event.attempt, SOON_S).counted
            following = client.opened(after=event.attempt, fresh_s=COLLECT_S, timeout_s=SOON_S)
            client.submit(following, zero)
            assert client.over(following.attempt, SOON_S).counted
            assert time.monotonic() - killed < SOON_S
        finally:
            victim.kill()
    reports = deployment.operator(Role.SERVER_A).reports()
    first, second = next(reports), next(reports)
    assert (first.cohort, first.accepted) == (3, 1)
    assert dict(first.rejected) == {"absent": 1, "truncated": 1}
    assert (second.accepted, dict(second.rejected)) == (1, {"absent": 2})
    # No half of an upload stays behind.
    assert list(spool.iterdir()) == []
    deployment.check_alive()


def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition, within a deadline."""
    deadline = time.monotonic() + SOON_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def line_of(process: "subprocess.Popen[str]", timeout_s: float) -> str:
    """The process's next line, within the deadline."""
    assert process.stdout is not None
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    stdout = process.stdout
    threading.Thread(target=lambda: lines.put(stdout.readline()), daemon=True).start()
    return lines.get(timeout=timeout_s)
