"""A dealer that ends with its training: when both servers have said that it is over."""

from typing import TYPE_CHECKING, Any

import grpc
from tests.integration.deployment.conftest import logistic

from precad.common.identifiers import Role
from precad.common.identity.channel import open_channel
from precad.common.identity.credentials import Identity
from precad.protos import precad_pb2 as pb
from precad.protos.precad_pb2_grpc import DealingStub

if TYPE_CHECKING:
    from tests.integration.deployment.conftest import Deploy

WAIT_S = 120.0


def test_the_dealer_outlasts_one_server_that_leaves_early_and_ends_after_both(
    deploy: "Deploy",
) -> None:
    changes: dict[str, Any] = {"training.rounds": 3, **logistic(127), "deadlines.collect": 10.0}
    deployment = deploy(changes, clients=2, linger_s=1)
    settings = deployment.folder / "dealer.toml"
    settings.write_text(settings.read_text() + "ends_with_training = true\n")
    deployment.start_servers()

    # One that lies can't end it alone; nor twice, nor as somebody else.
    identity = Identity.load(deployment.folder / "keys" / "server-a")
    digest = deployment.task.digest.value
    with open_channel(deployment.addresses["dealer"], identity, Role.DEALER) as channel:
        leave = DealingStub(channel).Leave
        for _ in range(2):
            own = pb.LeaveRequest(task_digest=digest, role="server-a")
            leave(own, timeout=30, wait_for_ready=True)
        for other, code in (
            (pb.LeaveRequest(task_digest=digest, role="server-b"), "PERMISSION_DENIED"),
            (pb.LeaveRequest(task_digest=bytes(32), role="server-a"), "FAILED_PRECONDITION"),
        ):
            try:
                leave(other, timeout=30)
            except grpc.RpcError as error:
                assert error.code().name == code  # noqa: PT017
            else:
                raise AssertionError(other)

    deployment.start_clients()
    names = tuple(client.name for client in deployment.clients)
    everybody = (*names, "server-a", "server-b", "dealer")
    assert set(deployment.wait(everybody, WAIT_S).values()) == {0}
    assert "server-b left" in deployment.log("dealer")


def test_a_dealer_stays_unless_its_settings_say_otherwise(deploy: "Deploy") -> None:
    changes: dict[str, Any] = {"training.rounds": 1, **logistic(127), "deadlines.collect": 10.0}
    deployment = deploy(changes, clients=2, linger_s=0)
    deployment.start_servers()
    deployment.start_clients()
    deployment.wait(("server-a", "server-b"), WAIT_S)
    assert deployment.log("dealer").count("left: its training is over") == 2
    assert deployment.processes["dealer"].poll() is None
