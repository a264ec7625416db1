"""What tests may not do and leave behind, and in which of two tiers each of them is.

No verdict depends on the wall clock. Time passes in ``tests/rig/waiting.py`` alone: a
condition is waited for, with one deadline for all.
"""

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.mutants.__main__ import named, replaced
from tests.rig.commands import python
from tests.rig.stops import runs
from tests.soak.run import PARTS, split, turn

TESTS = Path(__file__).parents[1]
CLOCKS = {
    "time.monotonic",
    "time.perf_counter",
    "time.time",
    "monotonic",
    "perf_counter",
}
LEAST_S = 60.0  # Shorter deadlines end a test on a busy machine
DEADLINES = {"timeout", "timeout_s", "limit_s", "deadline_s"}
WAITS = {
    "wait",
    "wait_for",
    "join",
    "communicate",
    "run",
    "check_output",
    "check_call",
    "result",
}
"""Methods whose deadline ends a test; elsewhere a short one may be what is tested."""
NOT_TESTS = ("model", "fuzz")
"""The release protocol's model and the fuzzer have no clock in a verdict."""


FILES = [
    path
    for path in sorted(TESTS.rglob("*.py"))
    if path != TESTS / "rig" / "waiting.py"
    and path.relative_to(TESTS).parts[0] not in NOT_TESTS
]


def offences(source: str) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Compare):
            called = [each for each in ast.walk(node) if isinstance(each, ast.Call)]
            if any(ast.unparse(each.func) in CLOCKS for each in called):
                yield (
                    node.lineno,
                    "compares a clock's time; wait for a condition with until()",
                )
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        if name in {"time.sleep", "asyncio.sleep"} and ast.unparse(node.args[0]) != "0":
            yield node.lineno, f"{name}; wait for a condition with until()"
        method = name.rpartition(".")[2]
        for keyword in node.keywords if method in WAITS else ():
            match keyword:
                case ast.keyword(
                    arg=arg, value=ast.Constant(value=int() | float() as limit_s)
                ):
                    if arg in DEADLINES and 0 < limit_s < LEAST_S:
                        yield (
                            node.lineno,
                            f"a deadline of {limit_s} s; none below {LEAST_S:g} s",
                        )
        match method, node.args:
            case "bind", [ast.Tuple(elts=[*_, ast.Constant(value=port)])] if port != 0:
                yield node.lineno, f"a fixed port, {port!r}; bind to 0"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(TESTS)))
def test_no_verdict_depends_on_the_wall_clock(path: Path) -> None:
    found = [
        f"{path}:{line}: {what}" for line, what in offences(path.read_text("utf-8"))
    ]
    assert found == []


LEAVES_ONE = """
import os, signal, subprocess, sys
from tests.rig import leftovers, waiting

waiting.DEADLINE_S = 0.0

def test_that_leaves_one():
    {body}
"""
CHILD = "print('pid', subprocess.Popen(['sleep', '987']).pid)"
STOPPED = """started = subprocess.Popen(['sleep', '987'])
    os.kill(started.pid, signal.SIGSTOP)
    print('pid', started.pid)"""
ORPHAN = f"""subprocess.run([sys.executable, '-c', "import subprocess; {CHILD}"])"""


@pytest.mark.parametrize("body", [STOPPED, ORPHAN], ids=["stopped", "orphan"])
def test_what_is_left_running_fails_the_run_and_is_killed(
    tmp_path: Path, body: str
) -> None:
    path = tmp_path / "test_one.py"
    path.write_text(LEAVES_ONE.format(body=body), encoding="utf-8")
    # Its own settings: another file of them may lie in a folder above.
    path.with_name("pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    done = python(
        "-m", "pytest", "-s", "-p", "tests.rig.leftovers", path, cwd=TESTS.parent
    )
    assert done.returncode == 1, done.stdout
    for words in (
        "1 passed, 1 error",
        "sleep 987",
        "test_one.py::test_that_leaves_one (call)",
    ):
        assert words in done.stdout
    (pid,) = re.findall(r"\bpid (\d+)", done.stdout)
    assert not runs(int(pid))


def test_every_folder_with_tests_is_in_one_of_the_tiers() -> None:
    settings = tomllib.loads((TESTS.parent / "pyproject.toml").read_text("utf-8"))[
        "tool"
    ]["pytest"]
    first = settings["ini_options"]["testpaths"]
    folders = {
        path.relative_to(TESTS.parent).parts[:2] for path in TESTS.rglob("test_*.py")
    }
    # With a command of their own: each would change what the others import, where it is
    # installed.
    own = ["tests/flower", "tests/transformers"]
    makefile = (TESTS.parent / "Makefile").read_text("utf-8")
    assert all(f"pytest {folder} " in makefile for folder in own)
    tiers = [*first, "tests/soak", *own]
    assert sorted(tiers) == sorted("/".join(folder) for folder in folders)


def test_every_soak_test_is_in_one_part_and_twenty_commits_in_a_row_have_all_parts() -> (
    None
):
    tests = [f"test-{number}" for number in range(60)]
    parts = split(
        tests, {f"test-{number}": float(number) for number in range(50)}, PARTS
    )
    assert sorted(test for part in parts for test in part) == sorted(tests)
    turns = [turn("ab", str(count), shallow=False) for count in range(852, 872)]
    assert sorted(turns) == list(range(1, PARTS + 1))


def test_each_hand_made_mutant_has_its_place_in_the_code_and_its_tests() -> None:
    for module, tests, _, old, new in named():
        changed = replaced((TESTS.parent / module).read_text("utf-8"), old, new)
        ast.parse(changed, module)
        assert (TESTS / tests.removeprefix("tests/")).is_file(), tests
