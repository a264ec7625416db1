"""A stop isn't an end: real owners outlast a server whose disk failed, and finish the training."""

import resource
from typing import TYPE_CHECKING, Any

from tests.integration.deployment.conftest import logistic

from precad.common.identifiers import Role

if TYPE_CHECKING:
    from tests.integration.deployment.conftest import Deploy

ROUNDS = 12
WAIT_S = 120.0


def test_owners_wait_for_a_server_whose_disk_failed(deploy: "Deploy") -> None:
    changes: dict[str, Any] = {
        "training.rounds": ROUNDS,
        "deadlines.outage": 90.0,
        "deadlines.peer": 20.0,
    }
    changes |= {**logistic(127), "deadlines.collect": 10.0}
    deployment = deploy(changes, clients=2, linger_s=2)
    deployment.start_servers()
    deployment.start_clients()
    reports = deployment.operator(Role.SERVER_A).reports()
    assert next(reports).accepted == 2
    # No file of A's may grow any more: its next commit fails.
    server_a = deployment.processes["server-a"]
    _, hard = resource.prlimit(server_a.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(server_a.pid, resource.RLIMIT_FSIZE, (1, hard))
    assert deployment.wait(("server-a",), WAIT_S) == {"server-a": 1}
    deployment.operator(Role.SERVER_A).close()
    deployment._connections.clear()
    for client in deployment.clients:
        assert deployment.processes[client.name].poll() is None, deployment.log(client.name)

    deployment.start_server("server-a")
    names = tuple(client.name for client in deployment.clients)
    assert set(deployment.wait((*names, "server-a", "server-b"), WAIT_S).values()) == {0}
    for name in names:
        log = deployment.log(name)
        assert "finished" in log
        # Why is for operators alone.
        assert "disk" not in log
        assert str(deployment.folder) not in log
