"""A client that enrols at one server only, or differently at the other, stops nobody but itself."""

from typing import TYPE_CHECKING

import grpc
import numpy as np
import pytest
from tests.rig.light_client import LightClient

from precad.client.connection import Servers
from precad.common.identifiers import ClientId, Role
from precad.common.identity.channel import open_channel
from precad.common.identity.credentials import Identity
from precad.experiments.local import LocalDeployment
from precad.protos import precad_pb2 as pb
from precad.protos.precad_pb2_grpc import AggregationStub

if TYPE_CHECKING:
    from tests.integration.deployment.conftest import Deploy

RECORDS, RATE = 100, 0.2
START_S = 60.0


def enrol_at(deployment: LocalDeployment, role: Role, client: ClientId, records: int) -> None:
    identity = Identity.load(deployment.folder / "keys" / client.name)
    channel = open_channel(deployment.addresses[role.value], identity, role)
    try:
        AggregationStub(channel).Enrol(
            pb.EnrolRequest(
                task_digest=deployment.task.digest.value,
                client=client.name,
                records=records,
                record_rate=RATE,
            ),
            wait_for_ready=True,
            timeout=START_S,
        )
    except grpc.RpcError as error:
        raise AssertionError(error.details()) from None
    finally:
        channel.close()


def connection(deployment: LocalDeployment, client: ClientId) -> LightClient:
    a, b = deployment.addresses["server-a"], deployment.addresses["server-b"]
    identity = Identity.load(deployment.folder / "keys" / client.name)
    return LightClient(Servers(deployment.task, client, a, b, identity))


@pytest.mark.parametrize("at_b", [None, RECORDS + 1])
def test_it_is_left_out_and_the_training_starts_also_after_a_restart(
    deploy: "Deploy", at_b: int | None
) -> None:
    deployment = deploy({"deadlines.outage": 60.0, "deadlines.peer": 20.0}, clients=3)
    stranger, *others = deployment.clients
    deployment.start_servers()
    enrol_at(deployment, Role.SERVER_A, stranger, RECORDS)
    if at_b is not None:
        enrol_at(deployment, Role.SERVER_B, stranger, at_b)
    clients = [connection(deployment, client) for client in others]
    try:
        for client in clients:
            client.join()
        first = clients[0].opened(fresh_s=60, timeout_s=START_S)
        deployment.processes["server-a"].kill()
        deployment.processes["server-a"].wait(60)
        deployment.start_server("server-a")
        for client in clients:
            client.close()
        clients = [connection(deployment, client) for client in others]
        for client in clients:
            client.join()
        event = clients[0].opened(after=first.attempt, fresh_s=5, timeout_s=START_S)
        for client in clients:
            client.submit(event, np.zeros(deployment.task.dimension, dtype=np.int64))
        for client in clients:
            assert client.over(event.attempt, START_S).counted
    finally:
        for client in clients:
            client.close()
    assert f"are left out: {stranger.name}" in deployment.log("server-a")
    assert "training stopped" not in deployment.log("server-a") + deployment.log("server-b")
