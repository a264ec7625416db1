"""A worker's folder goes with its block, and what it reports is checked."""

import signal
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from tests.rig.tasks import task_with

from precad.aggregator.workers import worker_pairs
from precad.aggregator.workers.worker_pairs import WorkerLink
from precad.aggregator.workers.worker_process import own_folder, remove_left_over
from precad.common.errors import PeerViolation
from precad.common.identifiers import Role
from precad.common.identity.mutual_tls import GREETING
from precad.protos import precad_pb2 as pb

PROGRAM = """
import sys, time
from precad.aggregator.workers.worker_process import own_folder

with own_folder() as folder:
    (folder / "0").write_bytes(b"noise")
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


def test_what_a_killed_worker_left_is_removed_and_nothing_in_use(temporary: Path) -> None:
    piped: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", PROGRAM], **piped) as killed, own_folder() as used:
        assert killed.stdout is not None
        left = Path(killed.stdout.readline().strip())
        assert left.parent == temporary
        remove_left_over()
        assert left.exists()
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        assert left.exists()
        remove_left_over()
        assert not left.exists()
        assert used.exists()
    assert not used.exists()


@pytest.mark.parametrize(
    "rejection",
    [
        pb.WorkRejection(client="ward-1", reason="never heard of"),
        pb.WorkRejection(client="Ward/1", reason="norm-exceeded"),
    ],
    ids=["unknown reason", "no name"],
)
def test_a_worker_that_reports_nonsense_ends_the_attempt_and_leaves_nobody_waiting(
    rejection: pb.WorkRejection, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It says so much, and then nothing for as long as it likes.
    call = MagicMock()
    call.__iter__.side_effect = lambda: iter([pb.WorkReport(rejection=rejection)])
    call.initial_metadata.return_value = GREETING
    stub = SimpleNamespace(Validate=lambda _orders: call)
    monkeypatch.setattr(worker_pairs, "open_channel", lambda *_given: call)
    monkeypatch.setattr(worker_pairs, "WorkingStub", lambda _channel: stub)
    nobody: Any = None
    made = WorkerLink(
        "127.0.0.1:1", task_with({}), Role.SERVER_A, nobody, pb.WorkBegin(), same_disk=True
    )
    with closing(made), pytest.raises(PeerViolation, match="reports"):
        made.wait(60.0)
