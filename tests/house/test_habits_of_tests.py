"""No verdict by the wall clock: what tests may not do, looked for in their source.

Time passes in ``tests/rig/waiting.py`` alone: a condition is waited for, with one deadline for all.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
WAITING = TESTS / "rig" / "waiting.py"
LEAST_S = 60.0
"""Shorter deadlines end a test on a busy machine."""
DEADLINES = {"timeout", "timeout_s", "limit_s", "deadline_s"}
WAITS = {"wait", "wait_for", "join", "communicate", "run", "check_output", "check_call", "result"}
"""Methods whose deadline ends a test; elsewhere a short one may be what is tested."""
NOT_TESTS = ("model", "fuzz")
"""The release protocol's model and the fuzzer have no clock in a verdict."""


def files() -> list[Path]:
    found = sorted(path for path in TESTS.rglob("*.py") if path != WAITING)
    return [path for path in found if path.relative_to(TESTS).parts[0] not in NOT_TESTS]


def offences(source: str) -> Iterator[tuple[int, str]]:
    """What a file does with time and ports that it may not, by line."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            yield from ((node.lineno, what) for what in of_call(node))
        elif isinstance(node, ast.Compare):
            called = [each for each in ast.walk(node) if isinstance(each, ast.Call)]
            if any(ast.unparse(each.func) in CLOCKS for each in called):
                yield node.lineno, "compares a clock's time; wait for a condition with until()"


CLOCKS = {"time.monotonic", "time.perf_counter", "time.time", "monotonic", "perf_counter"}


def of_call(node: ast.Call) -> Iterator[str]:
    name = ast.unparse(node.func)
    if name in {"time.sleep", "asyncio.sleep"} and ast.unparse(node.args[0]) != "0":
        yield f"{name}; wait for a condition with until()"
    method = name.rpartition(".")[2]
    if method in WAITS:
        for keyword in node.keywords:
            value = keyword.value
            if (
                keyword.arg in DEADLINES
                and isinstance(value, ast.Constant)
                and isinstance(value.value, int | float)
                and 0 < value.value < LEAST_S
            ):
                yield f"a deadline of {value.value} s; none below {LEAST_S:g} s"
    if method == "bind" and node.args and isinstance(node.args[0], ast.Tuple):
        *_, port = node.args[0].elts
        if isinstance(port, ast.Constant) and port.value != 0:
            yield f"a fixed port, {port.value!r}; bind to 0"


@pytest.mark.parametrize("path", files(), ids=lambda path: str(path.relative_to(TESTS)))
def test_no_verdict_depends_on_the_wall_clock(path: Path) -> None:
    found = [f"{path}:{line}: {what}" for line, what in offences(path.read_text("utf-8"))]
    assert found == []


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("time.sleep(.1)", "time.sleep"),
        ("thread.join(timeout=5)", "a deadline of 5 s"),
        ("assert time.monotonic() - began < 3", "compares a clock's time"),
        ("listener.bind(('127.0.0.1', 7301))", "a fixed port, 7301"),
    ],
)
def test_what_the_check_finds(source: str, said: str) -> None:
    assert [what for _, what in offences(source) if said in what]


@pytest.mark.parametrize(
    "source",
    ["clock.sleep(5)", "thread.join(timeout=60)", "listener.bind(('', 0))", "event.wait()"],
)
def test_what_the_check_allows(source: str) -> None:
    assert list(offences(source)) == []
