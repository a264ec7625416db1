"""What one client does at the servers' doors costs that client, and nobody else a round."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from tests.integration.deployment.conftest import Deploy
from tests.rig.idle_flood import IdleFlood
from tests.rig.light_client import LightClient, joined, light_client, play_round
from tests.rig.waiting import until
from tests.rig.warm import forked

from precad.cli.local_deployment import LocalDeployment, environment_of_parts, free_addresses
from precad.common.identifiers import ClientId, Role
from precad.common.identity.credentials import Identity
from precad.common.identity.deployment_keys import Deployment
from precad.common.identity.party_certificate import Principal

ROLES = (Role.SERVER_A, Role.SERVER_B)
BAD, GOOD, OTHER = (ClientId(f"ward-{number:02d}") for number in range(3))
IDLE = 1100


def identity_of(deployment: LocalDeployment, client: ClientId) -> Identity:
    return Identity.load(deployment.folder / "keys" / client.name)


@dataclass(slots=True)
class Site:
    """One deployment for all: two owners train, and anybody may come."""

    deployment: LocalDeployment
    clients: list[LightClient]
    last: int = -1

    def play(self) -> None:
        self.last = play_round(*self.clients, after=self.last)

    def close(self) -> None:
        for client in self.clients:
            client.close()

    def join(self) -> None:
        self.clients = [light_client(self.deployment, client) for client in (GOOD, OTHER)]
        for client in self.clients:
            client.join()


@pytest.fixture(scope="module")
def site(deploy_once: Deploy) -> Iterator[Site]:
    deployment = deploy_once({"enrolment.clients": 2, "enrolment.min_clients": 2}, clients=3)
    deployment.start_servers()
    made = Site(deployment, [])
    made.join()
    made.play()
    yield made
    made.close()


def test_a_thousand_idle_connections_of_one_client_cost_the_others_no_round(site: Site) -> None:
    name, deployment = "server-a", site.deployment
    descriptors = Path(f"/proc/{deployment.processes[name].pid}/fd")
    keys = deployment.folder / "keys" / BAD.name
    with IdleFlood(deployment.addresses[name], keys, IDLE) as flood:
        until(lambda: flood.made >= IDLE, "so many connections")
        for _ in range(3):
            site.play()
        until(lambda: len(list(descriptors.iterdir())) < IDLE / 4, "they are closed")
    assert "connections without a call" in deployment.log(name)
    assert "Too many open files" not in deployment.log(name)
    deployment.check_alive()


def test_a_body_that_cannot_be_read_costs_its_submission_alone(deploy: Deploy) -> None:
    """A bad sector, no descriptor left, or a file that somebody meddled with."""
    deployment = deploy(clients=3)
    spool = deployment.folder / "state" / "server-b" / "spool"
    deployment.start_servers()
    with joined(deployment) as clients:
        event = clients[0].opened()
        zero = np.zeros(deployment.task.dimension, dtype=np.int64)
        # Server A hears of them afterwards: what both hold is forwarded at once.
        halves = [client.prepare(event, zero) for client in clients[:2]]
        for client, (_, at_b) in zip(clients, halves, strict=False):
            client.servers.submit_half(at_b, 300.0)
        gone, short = (next(spool.glob(f"{c.servers.client}-*.body")) for c in clients[:2])
        gone.unlink()
        short.write_bytes(b"")
        for client, (at_a, _) in zip(clients, halves, strict=False):
            client.servers.submit_half(at_a, 300.0)
        clients[2].submit(event, zero)
        ends = [client.over(event.attempt) for client in clients]
        assert [(over.counted, over.rejection) for over in ends] == [
            (False, "truncated"),
            (False, "truncated"),
            (True, ""),
        ]
        play_round(*clients, after=event.attempt)
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
    with log.open("wb") as output:
        process = forked(
            [sys.executable, "-m", "precad", "serve", "a", "--config", str(config)],
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment_of_parts(),
        )
    try:
        yield log
    finally:
        process.kill()
        process.wait()


def test_a_stale_copy_of_the_leader_ends_nothing(site: Site) -> None:
    """Neither beside the true one, nor in its absence: what it learns, the true one learns too."""
    deployment = site.deployment
    with stale_leader(deployment) as log:
        until(lambda: "server A is linked already" in log.read_text(), log.read_text)
        site.play()
    site.close()
    deployment.processes["server-a"].kill()
    deployment.processes["server-a"].wait()
    # Alone it is what a server A with a lost state is: it learns what A had signed.
    with stale_leader(deployment) as log:
        until(lambda: "had lost the frozen roster" in log.read_text(), log.read_text)
    deployment.start_server("server-a")
    site.join()
    site.play()
    assert "training stopped" not in deployment.log("server-b")
    # A link that ends is nobody's bug.
    assert "a call failed" not in deployment.log("server-b")
    assert "Traceback" not in deployment.log("server-b")


def test_a_revoked_leader_loses_its_open_link(deploy: Deploy) -> None:
    deployment = deploy({"enrolment.clients": 1}, clients=1)
    deployment.start_servers()
    with joined(deployment) as clients:
        play_round(*clients)
        keys = Deployment.open(deployment.folder / "keys")
        keys.revoke(keys.current_serials(Principal.service(Role.SERVER_A)))
        said = "the certificate of server-a.precad was revoked"
        until(lambda: said in deployment.log("server-a"), lambda: deployment.log("server-a"))
