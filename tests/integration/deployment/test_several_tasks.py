"""Several tasks on the same two servers and dealer: side by side, and one after the other."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from tests.integration.deployment.conftest import logistic
from tests.rig.pane import terminal
from tests.rig.waiting import DEADLINE_S, until
from tests.rig.warm import forked

from precad.cli.local_deployment import environment_of_parts, free_addresses, task_to_toml, to_toml
from precad.cli.main import app
from precad.client.records.read_records import write_client_data
from precad.common.errors import PeerUnavailable
from precad.common.identifiers import ClientId, Role
from precad.common.identity.credentials import Identity
from precad.common.identity.deployment_keys import create_local_keys
from precad.common.wire.operator_connection import OperatorConnection, ServerStatus

PARTS = {"dealer": "dealer", "server-b": "b", "server-a": "a"}
ROUNDS = {"left": 8, "right": 3, "after": 2}
OWNERS = {
    "left": ("ward-1", "ward-2"),
    "right": ("ward-3", "ward-4"),
    "after": ("ward-1", "ward-2"),
}


class Trio:
    """A dealer and two servers, a service each, and owners."""

    def __init__(self, folder: Path, make_task: Any) -> None:
        self.folder = folder
        free = free_addresses(6)
        # Of dealer, B and A; the third task takes the first one's.
        self.addresses = {"left": free[:3], "right": free[3:], "after": free[:3]}
        owners = sorted({name for names in OWNERS.values() for name in names})
        create_local_keys(folder / "keys", owners)
        rng = np.random.default_rng(1)
        for name in owners:
            x = rng.normal(size=(4, 127)).astype(np.float32)
            write_client_data(folder, ClientId(name), x, np.zeros(4, dtype=np.int64))
        for name, rounds in ROUNDS.items():
            changes = {
                "name": name,
                **logistic(127),
                "training.rounds": rounds,
                "enrolment.clients": 2,
                "enrolment.min_clients": 2,
                "deadlines.enrol": 120.0,
                "deadlines.collect": 20.0,
                "deadlines.peer": 10.0,
                "deadlines.outage": 120.0,
            }
            text = task_to_toml(make_task(8, changes))
            (folder / f"{name}.toml").write_text(text, encoding="utf-8")
            for owner in OWNERS[name]:
                self._write_owner(name, owner)
        self.processes: dict[str, Any] = {}

    def _write_owner(self, task: str, name: str) -> None:
        _, b, a = self.addresses[task]
        values: dict[str, object] = {
            "client": name,
            "task": f"{task}.toml",
            "server_a": a,
            "server_b": b,
            "identity": f"keys/{name}",
            "data": f"{name}.npz",
            "state": f"owners/{task}-{name}",
            "account": f"owners/account-{name}",
        }
        (self.folder / f"{task}-{name}.toml").write_text(to_toml(values), encoding="utf-8")

    def write_settings(self, *tasks: str, **values: object) -> None:
        """One file a part, with a table for each task."""
        tables: dict[str, dict[str, object]] = {part: {} for part in PARTS}
        for task in tasks:
            dealer, b, a = self.addresses[task]
            own = {"task": f"{task}.toml"}
            tables["dealer"][task] = own | {"listen": dealer}
            tables["server-b"][task] = own | {"listen": b, "dealer": dealer}
            tables["server-a"][task] = own | {"listen": a, "dealer": dealer, "server_b": b}
        for part in PARTS:
            shared: dict[str, object] = {"identity": f"keys/{part}"} | values
            if part != "dealer":
                shared["state"] = f"state/{part}"
            text = to_toml(shared | {"tasks": tables[part]})
            (self.folder / f"{part}.toml").write_text(text, encoding="utf-8")

    def start(self, *parts: str) -> None:
        """These services; all three unless given."""
        for part in parts or PARTS:
            self._start(part, "serve", PARTS[part], "--config", self.folder / f"{part}.toml")

    def join(self, task: str) -> None:
        """The task's owners, as processes that were started together."""
        logs = self.folder / f"{task}-owners"
        logs.mkdir()
        files = [self.folder / f"{task}-{name}.toml" for name in OWNERS[task]]
        configs = [argument for file in files for argument in ("--config", file)]
        self._start(f"{task}-owners", "join", "--logs", logs, *configs)

    def _start(self, name: str, *arguments: object) -> None:
        with (self.folder / f"{name}.log").open("wb") as log:
            self.processes[name] = forked(
                [sys.executable, "-m", "precad", *map(str, arguments)],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment_of_parts(),
                # With a task's process, or an owner's, that hangs: all are ended together.
                process_group=0,
            )

    def status(self, task: str, role: Role) -> ServerStatus:
        address = self.addresses[task][2 if role is Role.SERVER_A else 1]
        identity = Identity.load(self.folder / "keys" / "operator")
        connection = OperatorConnection(address, role, identity)
        try:
            return connection.status(wait=True, timeout_s=DEADLINE_S)
        finally:
            connection.close()

    def command(self, *arguments: object) -> tuple[int, str]:
        asked = CliRunner().invoke(app, [*map(str, arguments)])
        return asked.exit_code, asked.stdout + asked.stderr

    def lines(self, part: str, words: str) -> list[str]:
        text = (self.folder / f"{part}.log").read_text(errors="replace")
        return [line for line in text.splitlines() if words in line]

    def pid(self, part: str, task: str) -> int:
        return int(self.lines(part, f"task {task} is process ")[-1].rpartition(" ")[2])

    def until(self, ready: Callable[[], object]) -> None:
        until(ready, self.explain, poll_s=0.3)

    def until_done(self, task: str) -> dict[Role, ServerStatus]:
        """Until both servers say that it is over: what they say."""
        both = (Role.SERVER_A, Role.SERVER_B)

        def done(role: Role) -> bool:
            # On the same port the task before it may still be there, and break the call off to go.
            try:
                said = self.status(task, role)
            except PeerUnavailable:
                return False
            return (said.task_name, said.phase) == (task, "done")

        self.until(lambda: all(map(done, both)))
        return {role: self.status(task, role) for role in both}

    def explain(self) -> str:
        logs = {path.name: path.read_text(errors="replace") for path in self.folder.glob("*.log")}
        return "\n".join(f"--- {name}\n{text[-3000:]}" for name, text in logs.items())

    def stop(self) -> None:
        for process in self.processes.values():
            # Whatever they started too, also where it is stopped.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.fixture
def trio(tmp_path: Path, make_task: Any) -> Iterator[Trio]:
    made = Trio(tmp_path, make_task)
    yield made
    made.stop()


def check_undisturbed(trio: Trio, task: str, said: Mapping[Role, ServerStatus]) -> None:
    """Every round at its first attempt, with everybody in it, and one model."""
    rounds = ROUNDS[task]
    assert len({reply.model_digest for reply in said.values()}) == 1
    for reply in said.values():
        assert (reply.task_name, reply.version, reply.enrolled) == (task, rounds, 2)
        assert dict(reply.participations) == dict.fromkeys(OWNERS[task], rounds)
        assert dict(reply.rejected) == {}
    for part in PARTS:
        assert len(trio.lines(part, f"task {task} is process ")) == 1
    frozen = trio.lines("server-a", f"INFO {task}: roster is frozen")
    again = trio.lines("server-a", f"WARNING {task}: ")
    # Before that A may have been there sooner than B.
    assert [line for line in again if line > frozen[0] and "trying again" in line] == []


def look_at_all(trio: Trio, settings: Path) -> None:
    """The live screen has a block for each, whatever hangs, and is drawn over itself."""
    operator = trio.folder / "keys" / "operator"
    watch = ["status", "--config", settings, "--identity", operator, "--watch", "--every", 0.5]
    with terminal([sys.executable, "-m", "precad", *map(str, watch)], 100) as pane:
        text = pane.wait_for(lambda text: "left  no answer" in text)
        assert [line for line in text.splitlines() if "right" in line] == [
            f"right  done: round {ROUNDS['right']} of {ROUNDS['right']}"
        ]
        assert text.count("left") == 1


def test_neither_of_two_tasks_waits_for_the_other_and_a_third_follows(trio: Trio) -> None:
    trio.write_settings("left", "right")
    trio.start()
    trio.join("left")
    # One task's server B stands still in the middle of its training; the other hasn't begun.
    trio.until(lambda: trio.status("left", Role.SERVER_A).version >= 1)
    stopped = trio.pid("server-b", "left")
    os.kill(stopped, signal.SIGSTOP)
    version = trio.status("left", Role.SERVER_A).version
    assert version + 1 < ROUNDS["left"]

    trio.join("right")
    check_undisturbed(trio, "right", trio.until_done("right"))
    assert trio.status("left", Role.SERVER_A).version <= version + 1

    files = {part: trio.folder / f"{part}.toml" for part in PARTS}
    # Each may take longer to answer than is waited for, on a machine with much else to do.
    asked: tuple[object, ...] = ("health", "--config", files["server-b"], "--wait", 10)
    trio.until(lambda: "server-b, right: serving" in trio.command(*asked)[1])
    status, text = trio.command(*asked)
    assert "server-b, left: not serving" in text
    assert status == int("right: serving" not in text)
    asked = ("status", "--identity", trio.folder / "keys" / "operator", "--config")

    def phases() -> dict[str, str]:
        """Of both tasks, as server A's settings list them."""
        status, text = trio.command(*asked, files["server-a"], "--json")
        assert status == 0, text
        return {name: facts["phase"] for name, facts in json.loads(text).items()}

    trio.until(lambda: phases() == {"left": "training", "right": "done"})
    status, text = trio.command(*asked, files["server-b"])
    assert status == 0
    assert "no answer" in text
    look_at_all(trio, files["server-b"])

    # Killed, it is started again by its service, and goes on where it stood.
    os.kill(stopped, signal.SIGKILL)
    said = trio.until_done("left")
    assert len({reply.model_digest for reply in said.values()}) == 1
    assert {reply.version for reply in said.values()} == {ROUNDS["left"]}
    assert len(trio.lines("server-b", "task left is process ")) == 2

    # The next task takes the first one's place, ports and owners; the other's model stays on offer.
    trio.write_settings("right", "after")
    for part in PARTS:
        trio.processes[part].send_signal(signal.SIGHUP)
    trio.join("after")
    check_undisturbed(trio, "after", trio.until_done("after"))
    check_undisturbed(trio, "right", trio.until_done("right"))
    assert not Path(f"/proc/{stopped}").exists()

    # Each server keeps a state for each task, and an owner one account for all.
    for part in ("server-a", "server-b"):
        for what in ("state.db", "model.safetensors"):
            kept = (trio.folder / "state" / part).glob(f"*/{what}")
            assert {path.parent.name for path in kept} == {"left", "right", "after"}
    status, text = trio.command(
        "ledger", "mine", trio.folder / "owners" / "account-ward-1", "--json"
    )
    account = json.loads(text)
    disturbed, after = (task["versions"] for task in account["tasks"])
    # Of the task that was broken off an owner may have missed a round.
    assert (1 <= disturbed <= ROUNDS["left"], after) == (True, ROUNDS["after"])
    assert account["epsilon"] > max(task["epsilon"] for task in account["tasks"])
    for process in (trio.processes[f"{task}-owners"] for task in ROUNDS):
        assert process.wait() == 0, trio.explain()
    for part in PARTS:
        # What splits tasks' processes off has no thread that they would lack.
        assert len(list(Path(f"/proc/{trio.processes[part].pid}/task").iterdir())) == 1
        trio.processes[part].send_signal(signal.SIGTERM)
        assert trio.processes[part].wait() == 0


def test_a_training_that_stopped_says_why_and_is_started_again(trio: Trio) -> None:
    path = trio.folder / "right.toml"
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("outage = 120.0", "outage = 1.0"), encoding="utf-8")
    trio.write_settings("right", linger=2.0)
    trio.start("server-a")

    def stopped() -> ServerStatus | None:
        try:
            said = trio.status("right", Role.SERVER_A)
        except PeerUnavailable:
            # It is being started again.
            return None
        return said if said.phase == "stopped" else None

    said = until(stopped, trio.explain, poll_s=0.3)
    assert said is not None
    assert "server B" in said.error
    again = "task right ended with status 1 and is started again"
    trio.until(lambda: trio.lines("server-a", again))
    trio.until(lambda: len(trio.lines("server-a", "task right is process ")) >= 2)
