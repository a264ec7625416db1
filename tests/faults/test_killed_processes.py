"""kill -9 and a cut cable, once on real processes: what simulated time can't show."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.faults.processes import FaultyDeployment, Order, check, kill_all
from tests.rig.connections import Proxy

from precad.common.identifiers import Role

LINES = (
    # Charged and prepared, and nothing sent.
    "server-a after Attempts.prepare",
    # The noisy share has left; the other server has the model, this one hasn't.
    "server-b before ModelStore.put",
    # Charged by its own account, and nothing shared.
    "ward-0 after OwnAccount.charge",
    # All at once, the dealer among them.
    (
        "server-a after Attempts.countersign, server-b after Attempts.prepare, "
        "dealer before DealerRole.ask"
    ),
)


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[tuple[FaultyDeployment, Proxy]]:
    made = FaultyDeployment(tmp_path)
    proxy = Proxy(made.addresses["server-b"])
    made.reroute("server-a", "server-b", proxy.address)
    made.start_all()
    yield made, proxy
    kill_all(made)
    proxy.close()


def test_killed_and_cut_off_the_training_goes_on(
    deployment: tuple[FaultyDeployment, Proxy],
) -> None:
    parts, proxy = deployment
    for line in LINES:
        parts.strike(Order.parse(order) for order in line.split(", "))
    deaths = sum(len(line.split(", ")) for line in LINES)
    assert len(parts.restarts) == deaths
    # Packets stop arriving in the middle of a round, and nobody is told.
    parts.hold(Order("server-a", "pause-after", "PeerLink.send/held"))
    before = parts.done()
    proxy.cut()
    parts.let_go("server-a")
    for role in (Role.SERVER_A, Role.SERVER_B):
        # `error` says that the round was given up, until both are heard from again.
        parts.wait_for(lambda: "trying again" in parts.operator(role).status().error)  # noqa: B023
    assert parts.done() <= before + 1
    proxy.heal()
    parts.strike(())
    assert len(parts.restarts) == deaths
    kill_all(parts)
    check(parts)
