"""The network between A and B, or to the dealer, is cut in the middle of a round.

Nobody is told: packets stop arriving. The round must end within its deadlines, and the next one
work after the cut heals.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack

import pytest
from tests.faults.process_invariants import check, kill_all
from tests.faults.processes import SERVER_ROLES, FaultyDeployment, Order
from tests.rig.proxy import Proxy
from tests.soak.conftest import Deploy

from precad.common.identifiers import Role

POINTS = (
    *("Inbox.open", "PeerLink.send/held", "Absorber.absorb", "PeerLink.send/decide"),
    *("PeerLink.send/countersignature", "PeerLink.send/noisy-share"),
)
PROOF_POINTS = ("PeerLink.send/proof-coin", "PeerLink.send/proof", "PeerLink.send/valid-set")
"""All other steps are the same code, under either check."""


@pytest.fixture
def closing() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def behind_proxies(
    deployment: FaultyDeployment, closing: ExitStack, parties: Sequence[str], other: str
) -> list[Proxy]:
    """A training in which these parties reach another one through a path that can be cut."""
    proxies = []
    for party in parties:
        proxies.append(Proxy(deployment.addresses[other]))
        closing.callback(proxies[-1].close)
        deployment.reroute(party, other, proxies[-1].address)
    deployment.start_all()
    deployment.strike(())
    return proxies


def cut_and_heal(deployment: FaultyDeployment, order: Order, proxies: Sequence[Proxy]) -> None:
    """Cut at a point; both servers must give the round up in time; heal; two rounds follow."""
    deployment.hold(order)
    before = deployment.done()
    for proxy in proxies:
        proxy.cut()
    deployment.let_go(order.party)
    for role in map(Role, SERVER_ROLES):
        # `error` says that the round was given up, until both are heard from again.
        deployment.wait_for(
            lambda: "trying again" in deployment.operator(role).status().error  # noqa: B023
        )
    assert deployment.done() <= before + 1
    for proxy in proxies:
        proxy.heal()
    deployment.strike(())
    assert deployment.restarts == []


@pytest.mark.parametrize(("validation", "points"), [("crypten", POINTS), ("proof", PROOF_POINTS)])
def test_the_link_between_the_servers_is_cut(
    deploy: Deploy, closing: ExitStack, validation: str, points: Sequence[str]
) -> None:
    deployment = deploy(validation=validation)
    proxies = behind_proxies(deployment, closing, ["server-a"], "server-b")
    for point in points:
        cut_and_heal(deployment, Order("server-a", "pause-after", point), proxies)
    kill_all(deployment)
    check(deployment)


@pytest.mark.parametrize("cut_off", [("server-a",), ("server-b",), ("server-a", "server-b")])
def test_the_way_to_the_dealer_is_cut(
    deploy: Deploy, closing: ExitStack, cut_off: Sequence[str]
) -> None:
    deployment = deploy()
    proxies = behind_proxies(deployment, closing, cut_off, "dealer")
    cut_and_heal(deployment, Order(cut_off[0], "pause-before", "RemoteDealer.deal"), proxies)
    kill_all(deployment)
    check(deployment)
