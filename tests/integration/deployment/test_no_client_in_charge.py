"""What one client, or a copy of the leader, does costs nobody else a round."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from examples.demo.local_processes import LocalDeployment
from tests.integration.deployment.conftest import Deploy, set_in
from tests.rig.connections import idle_flood
from tests.rig.light_client import joined, play_round
from tests.rig.waiting import until

from precad.cli.local_deployment import free_addresses
from precad.common.identifiers import ClientId, Role
from precad.common.identity import deployment_keys, party_certificate

BAD, *GOOD = (ClientId(f"ward-{number:02d}") for number in range(3))
CHANGES = {"enrolment.clients": 2, "enrolment.min_clients": 2}
IDLE = 1100


def test_a_thousand_idle_connections_of_one_client_cost_the_others_no_round(
    deploy: Deploy,
) -> None:
    deployment = deploy(CHANGES, clients=3)
    deployment.start_servers()
    descriptors = Path(f"/proc/{deployment.processes['server-a'].pid}/fd")
    keys = deployment.folder / "keys" / BAD.name
    with joined(deployment, *GOOD) as clients:
        last = play_round(*clients)
        with idle_flood(deployment.addresses["server-a"], keys, IDLE) as held:
            until(lambda: len(held) >= IDLE, "so many connections")
            for _ in range(3):
                last = play_round(*clients, after=last)
            until(
                lambda: len(list(descriptors.iterdir())) < IDLE / 4, "they are closed"
            )
    log = deployment.log("server-a")
    words = ("connections without a call", "Too many open files")
    assert [each in log for each in words] == [True, False]
    deployment.check_alive()


@contextmanager
def stale_leader(deployment: LocalDeployment) -> Iterator[None]:
    """A second server A with the true one's certificate and a state of its own."""
    (deployment.folder / "logs" / "stale.log").unlink(missing_ok=True)
    shutil.copy(deployment.folder / "server-a.toml", deployment.folder / "stale.toml")
    set_in(deployment, "stale", listen=free_addresses(1)[0], state="stale")
    deployment._start("stale", "-m", "precad", "serve", "a")
    try:
        yield
    finally:
        deployment.processes["stale"].kill()
        deployment.processes.pop("stale").wait()


def test_a_stale_copy_of_the_leader_ends_nothing(deploy: Deploy) -> None:
    """Neither beside the true one, nor in its absence: what it learns, the true one learns too."""
    deployment = deploy(CHANGES)
    deployment.start_servers()
    log = partial(deployment.log, "stale")
    with joined(deployment) as clients:
        last = play_round(*clients)
        with stale_leader(deployment):
            until(lambda: "server A is linked already" in log(), log)
            last = play_round(*clients, after=last)
    deployment.processes["server-a"].kill()
    deployment.processes["server-a"].wait()
    # Alone it is what a server A with a lost state is: it learns what A had signed.
    with stale_leader(deployment):
        until(lambda: "had lost the frozen roster" in log(), log)
    deployment.start_server("server-a")
    with joined(deployment) as clients:
        play_round(*clients, after=last)
    # A link that ends is nobody's bug.
    bad = ("training stopped", "a call failed", "Traceback")
    assert not [words for words in bad if words in deployment.log("server-b")]


def test_a_revoked_leader_loses_its_open_link(deploy: Deploy) -> None:
    deployment = deploy({"enrolment.clients": 1}, clients=1)
    deployment.start_servers()
    with joined(deployment) as clients:
        play_round(*clients)
        keys = deployment_keys.Deployment.open(deployment.folder / "keys")
        keys.revoke(
            keys.current_serials(party_certificate.Principal.service(Role.SERVER_A))
        )
        said = "the certificate of server-a.precad was revoked"
        until(
            lambda: said in deployment.log("server-a"),
            lambda: deployment.log("server-a"),
        )
