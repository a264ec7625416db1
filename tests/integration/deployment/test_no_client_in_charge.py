"""What one client does at the servers' doors costs that client, and nobody else a round."""

import itertools
import re
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import numpy as np
import pytest
from tests.rig.idle_flood import IdleFlood
from tests.rig.light_client import LightClient

from precad.client.connection import Servers
from precad.common.identifiers import ClientId, Role
from precad.common.identity.channel import open_channel
from precad.common.identity.credentials import Identity
from precad.common.identity.deployment import Deployment
from precad.common.identity.principal import Principal
from precad.experiments.local import LocalDeployment
from precad.experiments.local.files import free_addresses
from precad.protos import precad_pb2 as pb
from precad.protos.precad_pb2_grpc import AggregationStub

if TYPE_CHECKING:
    from tests.integration.deployment.conftest import Deploy

START_S = 120.0
ROLES = (Role.SERVER_A, Role.SERVER_B)


def identity_of(deployment: LocalDeployment, client: ClientId) -> Identity:
    return Identity.load(deployment.folder / "keys" / client.name)


def connect(deployment: LocalDeployment, client: ClientId) -> LightClient:
    a, b = deployment.addresses["server-a"], deployment.addresses["server-b"]
    identity = identity_of(deployment, client)
    # A process's start takes long on a busy machine, and isn't what is tested.
    return LightClient(Servers(deployment.task, client, a, b, identity, patience_s=START_S))


def play(client: LightClient, after: int = -1) -> int:
    """Until a submission of the client counts: the attempt that it did in."""
    event = client.opened(after=after, fresh_s=5, timeout_s=START_S)
    client.submit(event, np.zeros(client.servers.task.dimension, dtype=np.int64))
    assert client.over(event.attempt, START_S).counted
    return event.attempt


def test_a_rate_beside_the_grid_is_refused_and_the_others_train(deploy: "Deploy") -> None:
    deployment = deploy({"privacy.epsilon_limit": 3.0, "enrolment.clients": 1}, clients=2)
    bad, good = deployment.clients
    deployment.start_servers()
    digest, identity = deployment.task.digest.value, identity_of(deployment, bad)
    for role, rate in itertools.product(ROLES, (1e-15, 0.11)):
        request = pb.EnrolRequest(task_digest=digest, client=bad.name, records=1, record_rate=rate)
        with (
            open_channel(deployment.addresses[role.value], identity, role) as channel,
            pytest.raises(grpc.RpcError) as refused,
        ):
            AggregationStub(channel).Enrol(request, wait_for_ready=True, timeout=START_S)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert f"record_rate = {rate!r}: " in str(refused.value.details())
    with connect(deployment, good) as client:
        client.join()
        play(client, after=play(client))
    deployment.check_alive()


@contextmanager
def few_descriptors(most: int) -> Iterator[None]:
    """What starts inside may open so many files, as far as it doesn't raise its own limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_thousand_idle_connections_of_one_client_cost_the_others_no_round(
    deploy: "Deploy",
) -> None:
    deployment = deploy(
        {"enrolment.clients": 1, "deadlines.peer": 20.0, "deadlines.outage": 60.0}, clients=2
    )
    bad, good = deployment.clients
    with few_descriptors(1024):
        deployment.start_servers()
    with connect(deployment, good) as client:
        client.join()
        last = play(client)
        keys = deployment.folder / "keys" / bad.name
        with ExitStack() as floods:
            made = [
                floods.enter_context(IdleFlood(deployment.addresses[role.value], keys, 1100))
                for role in ROLES
            ]
            until(lambda: min(flood.made for flood in made) >= 1100)
            for _ in range(3):
                last = play(client, after=last)
            for role in ROLES:
                descriptors = Path(f"/proc/{deployment.processes[role.value].pid}/fd")
                until(lambda: len(list(descriptors.iterdir())) < 256)  # noqa: B023
    assert "connections without a call" in deployment.log("server-b")
    for role in ROLES:
        assert "Too many open files" not in deployment.log(role.value)
    deployment.check_alive()


def test_a_client_holds_four_connections_with_calls_on_them_and_no_fifth(
    deploy: "Deploy",
) -> None:
    deployment = deploy({"enrolment.clients": 1, "deadlines.outage": 60.0}, clients=2)
    bad, good = deployment.clients
    deployment.start_servers()
    with connect(deployment, good) as client, ExitStack() as stack:
        client.join()
        last = play(client)
        address, identity = deployment.addresses["server-a"], identity_of(deployment, bad)
        for _ in range(20):
            channel = stack.enter_context(open_channel(address, identity, Role.SERVER_A))
            AggregationStub(channel).Describe(pb.DescribeRequest(), timeout=START_S)
        held = f"{bad.name}.client.precad were too many"
        until(lambda: held in deployment.log("server-a"))
        play(client, after=last)
    assert f"connections of {good.name}" not in deployment.log("server-a")


def test_a_body_that_cannot_be_read_costs_its_submission_alone(deploy: "Deploy") -> None:
    """A bad sector, no descriptor left, or a file that somebody meddled with."""
    deployment = deploy({"deadlines.peer": 20.0}, clients=3)
    spool = deployment.folder / "state" / "server-b" / "spool"
    deployment.start_servers()
    with ExitStack() as stack:
        clients = [stack.enter_context(connect(deployment, c)) for c in deployment.clients]
        for client in clients:
            client.join()
        event = clients[0].opened(fresh_s=5, timeout_s=START_S)
        zero = np.zeros(deployment.task.dimension, dtype=np.int64)
        # Server A hears of them afterwards: what both hold is forwarded at once.
        halves = [client.prepare(event, zero) for client in clients[:2]]
        for client, (_, at_b) in zip(clients, halves, strict=False):
            client.servers.submit_half(at_b, START_S)
        gone, short = (next(spool.glob(f"{c.servers.client}-*.body")) for c in clients[:2])
        gone.unlink()
        short.write_bytes(b"")
        for client, (at_a, _) in zip(clients, halves, strict=False):
            client.servers.submit_half(at_a, START_S)
        clients[2].submit(event, zero)
        ends = [client.over(event.attempt, START_S) for client in clients]
        assert [(over.counted, over.rejection) for over in ends] == [
            (False, "truncated"),
            (False, "truncated"),
            (True, ""),
        ]
        following = clients[0].opened(after=event.attempt, fresh_s=5, timeout_s=START_S)
        for client in clients:
            client.submit(following, zero)
        assert all(client.over(following.attempt, START_S).counted for client in clients)
    for client in clients[:2]:
        assert f"the body of client {client.servers.client} won't count" in deployment.log(
            "server-b"
        )


@contextmanager
def stale_leader(deployment: LocalDeployment) -> Iterator[Path]:
    """A second server A with the true one's certificate and a state of its own; its log."""
    settings = (deployment.folder / "server-a.toml").read_text()
    lines = [line for line in settings.splitlines() if not line.startswith(("listen", "state"))]
    lines += [f'listen = "{free_addresses(1)[0]}"', 'state = "stale"']
    config, log = deployment.folder / "stale.toml", deployment.folder / "logs" / "stale.log"
    config.write_text("\n".join(lines) + "\n")
    with (
        log.open("wb") as output,
        subprocess.Popen(
            [sys.executable, "-m", "precad", "serve", "a", "--config", str(config)],
            stdout=output,
            stderr=subprocess.STDOUT,
        ) as process,
    ):
        try:
            yield log
        finally:
            process.kill()


def test_a_stale_copy_of_the_leader_ends_nothing(deploy: "Deploy") -> None:
    """Neither beside the true one, nor in its absence: what it learns, the true one learns too."""
    deployment = deploy(
        {"enrolment.clients": 1, "deadlines.outage": 60.0, "deadlines.peer": 20.0}, clients=1
    )
    (only,) = deployment.clients
    deployment.start_servers()
    with connect(deployment, only) as client:
        client.join()
        last = play(client)
        with stale_leader(deployment) as log:
            until(lambda: "server A is linked already" in log.read_text())
            last = play(client, after=last)
        deployment.processes["server-a"].kill()
        deployment.processes["server-a"].wait()
        # Alone it is what a server A with a lost state is: it learns what A had signed.
        with stale_leader(deployment) as log:
            until(lambda: "had lost the frozen roster" in log.read_text())
    deployment.start_server("server-a")
    with connect(deployment, only) as client:
        client.join()
        play(client, after=last)
    assert "training stopped" not in deployment.log("server-b")
    # A link that ends is nobody's bug.
    assert "a call failed" not in deployment.log("server-b")
    assert "Traceback" not in deployment.log("server-b")


def test_a_revoked_leader_loses_its_open_link(deploy: "Deploy") -> None:
    deployment = deploy(
        {"enrolment.clients": 1, "deadlines.outage": 5.0, "deadlines.peer": 5.0}, clients=1
    )
    deployment.start_servers()
    with connect(deployment, deployment.clients[0]) as client:
        client.join()
        play(client)
        keys = Deployment.open(deployment.folder / "keys")
        keys.revoke(keys.current_serials(Principal.service(Role.SERVER_A)))
        assert deployment.wait(("server-a", "server-b"), START_S) == {"server-a": 1, "server-b": 1}
    assert "the certificate of server-a.precad was revoked" in deployment.log("server-a")


def test_a_leader_with_a_wrong_address_says_so_within_seconds(deploy: "Deploy") -> None:
    deployment = deploy({"deadlines.outage": 60.0, "deadlines.peer": 30.0}, clients=1)
    config = deployment.folder / "server-a.toml"
    b, dealer = (deployment.addresses[name] for name in ("server-b", "dealer"))
    config.write_text(config.read_text().replace(f'"{b}"', f'"{dealer}"'))
    deployment.start_servers()
    until(lambda: "serves task" in deployment.log("server-a"))
    began = time.monotonic()
    sentence = f"server B isn't at {dealer}: whoever answers there has another party's certificate"
    until(lambda: sentence in deployment.log("server-a"))
    assert time.monotonic() - began < 15
    assert re.search(r"trying again for \d+ s", deployment.log("server-a"))


def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition, within a deadline."""
    deadline = time.monotonic() + START_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
