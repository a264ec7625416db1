"""A stop isn't an end: real owners outlast whatever becomes of the servers, and all parts end.

What owners and servers do in each of these is played out in simulated time (``tests/faults``); here
processes end by a full disk, SIGKILL and SIGTERM, and start again. Whoever is told to end while it
has parts running on this machine ends them too.
"""

import json
import os
import resource
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
import pytest
from tests.integration.deployment.conftest import Deploy
from tests.rig.stops import RESULTS, play, runs
from tests.rig.tasks import logistic, task_with
from tests.rig.waiting import DEADLINE_S, until
from tests.rig.warm import forked

from precad.cli.local_deployment import LocalDeployment, task_to_toml
from precad.common.identifiers import Role
from precad.common.identity.credentials import Identity
from precad.common.identity.mutual_tls import open_channel
from precad.common.wire.calls import ServerStatus
from precad.protos import precad_pb2 as pb
from precad.protos.precad_pb2_grpc import DealingStub

SERVERS = ("server-a", "server-b")


def add(deployment: LocalDeployment, part: str, lines: str) -> None:
    path = deployment.folder / f"{part}.toml"
    path.write_text(path.read_text(encoding="utf-8") + lines, encoding="utf-8")


def test_owners_started_once_outlast_every_stop_and_a_dealer_that_may_ends_with_them(
    deploy: Deploy,
) -> None:
    changes = {"training.rounds": 12, "enrolment.clients": 3, **logistic(127)}
    deployment = deploy(changes, clients=2, linger_s=2)
    date = datetime.now(UTC) + timedelta(days=300)
    for name in SERVERS:
        add(deployment, name, f"enrol_quorum = 2\nenrol_until = {date.isoformat()}\n")
    add(deployment, "dealer", "ends_with_training = true\n")
    deployment.start_servers()
    owners = tuple(client.name for client in deployment.clients)

    # Enrolment closes with its quorum, long before its date.
    deployment.start_client(deployment.clients[0])
    operator = deployment.operator(Role.SERVER_A)

    def enrolling() -> ServerStatus | None:
        said = operator.status(wait=True, timeout_s=DEADLINE_S)
        return said if (said.phase, said.enrolled) == ("enrolling", 1) else None

    said = until(enrolling, "an owner", poll_s=0.1)
    assert said is not None
    assert (said.least_owners, said.most_owners) == (1, 2)
    assert said.enrolment_left_s > 299 * 86_400
    lie_to_the_dealer(deployment)
    deployment.start_client(deployment.clients[1])
    assert next(operator.reports()).accepted == 2

    # No file of A's may grow any more: its next commit fails.
    server_a = deployment.processes["server-a"]
    _, hard = resource.prlimit(server_a.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(server_a.pid, resource.RLIMIT_FSIZE, (1, hard))
    assert deployment.wait(("server-a",), DEADLINE_S) == {"server-a": 1}
    start_again(deployment, "server-a")

    deployment.processes["server-b"].kill()
    assert deployment.wait(("server-b",), DEADLINE_S) == {"server-b": -signal.SIGKILL}
    start_again(deployment, "server-b")

    # What a person asked for is no failure: no unit is marked as failed, nobody is called.
    errors = {name: deployment.log(name).count(" ERROR ") for name in SERVERS}
    for name in SERVERS:
        deployment.processes[name].terminate()
    assert deployment.wait(SERVERS, DEADLINE_S) == {"server-a": 0, "server-b": 0}
    for name in SERVERS:
        assert "told to stop; started again, the training goes on" in deployment.log(name)
        assert deployment.log(name).count(" ERROR ") == errors[name]
    start_again(deployment, *SERVERS)

    everybody = (*owners, *SERVERS, "dealer")
    assert set(deployment.wait(everybody, DEADLINE_S).values()) == {0}
    assert "server-b left" in deployment.log("dealer")
    # Both know at a next start that no owner comes for the model any more.
    assert all((deployment.folder / f"state/{name}/model.fetched").exists() for name in SERVERS)
    for name in owners:
        log = deployment.log(name)
        assert "finished" in log
        # Why is for operators alone.
        assert "disk" not in log
        assert str(deployment.folder) not in log


def start_again(deployment: LocalDeployment, *names: str) -> None:
    """Both owners are still there; once these servers are, a further version is made."""
    deployment.operator(Role.SERVER_A).close()
    deployment._connections.clear()
    for client in deployment.clients:
        assert deployment.processes[client.name].poll() is None, deployment.log(client.name)
    done = deployment.log("server-b").count("is made")
    for name in names:
        deployment.start_server(name)
    until(
        lambda: deployment.log("server-b").count("is made") > done,
        lambda: deployment.log_tail("server-a", 20) + deployment.log_tail("server-b", 20),
        poll_s=0.1,
    )


def lie_to_the_dealer(deployment: LocalDeployment) -> None:
    """A server can't end the dealer alone; nor by saying it twice, nor as somebody else."""
    identity = Identity.load(deployment.folder / "keys" / "server-a")
    digest = deployment.task.digest.value
    with open_channel(deployment.addresses["dealer"], identity, Role.DEALER) as channel:
        leave = DealingStub(channel).Leave
        for _ in range(2):
            leave(pb.LeaveRequest(task_digest=digest, role="server-a"), wait_for_ready=True)
        for other, code in (
            (pb.LeaveRequest(task_digest=digest, role="server-b"), "PERMISSION_DENIED"),
            (pb.LeaveRequest(task_digest=bytes(32), role="server-a"), "FAILED_PRECONDITION"),
        ):
            with pytest.raises(grpc.RpcError) as refused:
                leave(other)
            assert refused.value.code().name == code


PROGRAM = """
import sys, time, tomllib
from pathlib import Path

from precad.common.task import Task
from precad.cli.local_deployment import LocalDeployment

with LocalDeployment(Path(sys.argv[1]), Task.parse(tomllib.loads(sys.argv[2])), {}) as deployment:
    deployment.start_server("dealer")
    print(deployment.processes["dealer"].pid, flush=True)
    try:
        time.sleep(600)
    except SystemExit:
        time.sleep(float(sys.argv[3]))
        raise
"""


@pytest.mark.parametrize("goes_on_s", [0, 600])
def test_a_program_that_is_told_to_end_ends_its_parts(tmp_path: Path, goes_on_s: float) -> None:
    """Also where it catches the exception that comes of it, and where a part stands still."""
    task = task_to_toml(task_with({}))
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(tmp_path), task, str(goes_on_s)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    with program:
        assert program.stdout is not None
        part = int(program.stdout.readline())
        try:
            if goes_on_s:
                os.kill(part, signal.SIGSTOP)
            program.terminate()
            assert program.wait(DEADLINE_S) == 128 + signal.SIGTERM
            until(lambda: not runs(part), "the dealer's end")
        finally:
            program.kill()
            if runs(part):
                os.kill(part, signal.SIGKILL)


def test_a_training_is_ended_part_by_part_while_norms_are_checked(tmp_path: Path) -> None:
    recorded = json.loads(RESULTS.read_text("utf-8"))["validating"]["seconds"]
    assert list(play("validating", tmp_path, forked)) == list(recorded)
