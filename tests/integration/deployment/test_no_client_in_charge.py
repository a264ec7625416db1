"""What one client does at the servers' doors costs that client, and nobody else a round."""

import itertools
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

START_S = 60.0
ROLES = (Role.SERVER_A, Role.SERVER_B)


def identity_of(deployment: LocalDeployment, client: ClientId) -> Identity:
    return Identity.load(deployment.folder / "keys" / client.name)


def connect(deployment: LocalDeployment, client: ClientId) -> LightClient:
    a, b = deployment.addresses["server-a"], deployment.addresses["server-b"]
    identity = identity_of(deployment, client)
    return LightClient(Servers(deployment.task, client, a, b, identity))


def play(client: LightClient, after: int = -1) -> int:
    """Until a submission of the client counts: the attempt that it did in."""
    event = client.opened(after=after, fresh_s=5, timeout_s=START_S)
    client.submit(event, np.zeros(client.servers.task.dimension, dtype=np.int64))
    assert client.over(event.attempt, START_S).counted
    return event.attempt


def test_a_rate_beside_the_grid_is_refused_and_the_others_train(deploy: "Deploy") -> None:
    deployment = deploy({"privacy.epsilon_limit": 3.0, "deadlines.enrol": 1.0}, clients=2)
    bad, good = deployment.clients
    deployment.start_servers()
    digest, identity = deployment.task.digest.value, identity_of(deployment, bad)
    for role, rate in itertools.product(ROLES, (1e-15, 0.11)):
        request = pb.EnrolRequest(task_digest=digest, client=bad.name, records=1, record_rate=rate)
        with open_channel(deployment.addresses[role.value], identity, role) as channel:
            with pytest.raises(grpc.RpcError) as refused:
                AggregationStub(channel).Enrol(request, wait_for_ready=True, timeout=START_S)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert f"record_rate = {rate!r}: " in str(refused.value.details())
    with connect(deployment, good) as client:
        client.join()
        play(client, after=play(client))
    deployment.check_alive()
