"""Nothing is left running after the tests: what is, is found, named and killed."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.rig import waiting

ROOT = Path(__file__).parents[2]
TESTS = """
import os, signal, subprocess, sys
import pytest
from tests.rig import leftovers, waiting

waiting.DEADLINE_S = {deadline_s}

def test_that_leaves_one():
    {body}
"""
CHILD = "print('pid', subprocess.Popen(['sleep', '987']).pid)"
STOPPED = """started = subprocess.Popen(['sleep', '987'])
    os.kill(started.pid, signal.SIGSTOP)
    print('pid', started.pid)"""
ORPHAN = f"""subprocess.run([sys.executable, '-c', "import subprocess; {CHILD}"])"""
ENDED = "subprocess.run(['true'], check=True)"
LATE = "subprocess.Popen([sys.executable, '-c', 'import sys; sys.stdin.read()'], stdin=-1)"
SHARED = f"started = {LATE}; leftovers.at_the_end(started.kill)"


def ran(folder: Path, body: str, deadline_s: float) -> subprocess.CompletedProcess[str]:
    """pytest on one test, with the check."""
    path = folder / "test_one.py"
    path.write_text(TESTS.format(body=body, deadline_s=deadline_s), encoding="utf-8")
    # Its own settings: another file of them may lie in a folder above.
    path.with_name("pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    return subprocess.run(
        [*(sys.executable, "-m", "pytest", "-s", "-p", "tests.rig.leftovers", str(path))],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("body", [CHILD, STOPPED, ORPHAN], ids=["child", "stopped", "orphan"])
def test_what_is_left_running_fails_the_run_by_name_and_is_killed(
    tmp_path: Path, body: str
) -> None:
    done = ran(tmp_path, body, 0.0)
    assert done.returncode == 1, done.stdout
    assert "1 passed, 1 error" in done.stdout
    assert "sleep 987" in done.stdout
    assert "test_one.py::test_that_leaves_one (call)" in done.stdout
    (pid,) = re.findall(r"\bpid (\d+)", done.stdout)
    state = Path(f"/proc/{pid}/stat")
    assert not state.exists() or state.read_text().rpartition(")")[2].split()[0] in "ZX"


@pytest.mark.parametrize("body", [ENDED, SHARED], ids=["ended", "ends when it is closed"])
def test_what_has_ended_or_ends_in_time_does_not(tmp_path: Path, body: str) -> None:
    done = ran(tmp_path, body, waiting.DEADLINE_S)
    assert done.returncode == 0, done.stdout
