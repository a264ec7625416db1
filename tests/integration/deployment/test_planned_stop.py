"""Both servers stop for longer than the task's outage; owners with --wait are still there."""

import signal
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from tests.integration.deployment.conftest import logistic

from precad.common.identifiers import Role

if TYPE_CHECKING:
    from tests.integration.deployment.conftest import Deploy

WAIT_S = 150.0


def test_owners_started_once_outlast_a_planned_stop(deploy: "Deploy") -> None:
    changes: dict[str, Any] = {
        "training.rounds": 8,
        "deadlines.outage": 2.0,
        "deadlines.peer": 10.0,
        **logistic(127),
        "deadlines.collect": 10.0,
    }
    deployment = deploy(changes, clients=2, linger_s=2)
    deployment.start_servers()
    names = tuple(client.name for client in deployment.clients)
    for name in names:
        deployment._start(name, "-m", "precad", "join", "--wait", "1")
    reports = deployment.operator(Role.SERVER_A).reports()
    assert next(reports).accepted == 2
    deployment.operator(Role.SERVER_A).close()
    deployment._connections.clear()
    servers = ("server-a", "server-b")
    for name in servers:
        deployment.processes[name].send_signal(signal.SIGTERM)
    # What a person asked for is no failure: no unit is marked as failed, nobody is called.
    assert deployment.wait(servers, WAIT_S) == {"server-a": 0, "server-b": 0}
    for name in servers:
        assert "told to stop; started again, the training goes on" in deployment.log(name)
        assert " ERROR " not in deployment.log(name)
    deadline = time.monotonic() + WAIT_S
    while not all("asking again for" in deployment.log(name) for name in names):
        assert time.monotonic() < deadline, deployment.log(names[0])
        time.sleep(0.2)
    for name in ("server-b", "server-a"):
        deployment.start_server(name)
    assert set(deployment.wait((*names, *servers), WAIT_S).values()) == {0}
    for name in names:
        assert "finished" in deployment.log(name)


def test_enrolment_closes_with_a_quorum_long_before_its_date(deploy: "Deploy") -> None:
    changes: dict[str, Any] = {
        "training.rounds": 2,
        "enrolment.clients": 3,
        **logistic(127),
        "deadlines.collect": 10.0,
    }
    deployment = deploy(changes, clients=2, linger_s=2)
    date = datetime.now(UTC) + timedelta(days=300)
    for name in ("server-a", "server-b"):
        path = deployment.folder / f"{name}.toml"
        until = f"enrol_quorum = 2\nenrol_until = {date.isoformat()}\n"
        path.write_text(path.read_text(encoding="utf-8") + until, encoding="utf-8")
    deployment.start_servers()
    deployment.start_client(deployment.clients[0])
    operator, deadline = deployment.operator(Role.SERVER_A), time.monotonic() + WAIT_S
    while not ((said := operator.status(wait=True)).phase == "enrolling" and said.enrolled == 1):
        assert time.monotonic() < deadline, said
        time.sleep(0.2)
    assert (said.least_owners, said.most_owners) == (1, 2)
    assert said.enrolment_left_s > 299 * 86_400
    deployment.start_client(deployment.clients[1])
    names = (*(client.name for client in deployment.clients), "server-a", "server-b")
    assert set(deployment.wait(names, WAIT_S).values()) == {0}
