"""The network between A and B, or to the dealer, is cut in the middle of a round.

Nobody is told: packets stop arriving. The round must end within its deadlines, and the next one
work after the cut heals.
"""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.faults.process_invariants import check, kill_all
from tests.faults.processes import ENDLESS, FaultyDeployment, Forks, Order
from tests.rig.proxy import Proxy

from precad.common.identifiers import Role

POINTS = (
    "Inbox.open",
    "PeerLink.send/held",
    "Absorber.absorb",
    "PeerLink.send/decide",
    "PeerLink.send/countersignature",
    "PeerLink.send/noisy-share",
)
PROOF_POINTS = ("PeerLink.send/proof-coin", "PeerLink.send/proof", "PeerLink.send/valid-set")
"""All other steps are the same code, under either check."""


@pytest.fixture
def closing() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def cut_and_heal(
    deployment: FaultyDeployment, order: Order, cut: Callable[[], None], heal: Callable[[], None]
) -> None:
    """Cut at a point; both servers must give the round up in time; heal; two rounds follow."""
    deployment.hold(order)
    before = deployment.done()
    cut()
    deployment.let_go(order.party)
    for role in (Role.SERVER_A, Role.SERVER_B):
        # `error` says that the round was given up, until both are heard from again.
        deployment.wait_for(
            lambda: "trying again" in deployment.operator(role).status().error  # noqa: B023
        )
    assert deployment.done() <= before + 1
    heal()
    deployment.strike(())
    assert deployment.restarts == []


@pytest.mark.parametrize(("validation", "points"), [("crypten", POINTS), ("proof", PROOF_POINTS)])
def test_the_link_between_the_servers_is_cut(
    tmp_path: Path, forks: Forks, closing: ExitStack, validation: str, points: Sequence[str]
) -> None:
    deployment = FaultyDeployment(tmp_path, forks, ENDLESS, validation=validation)
    closing.callback(kill_all, deployment)
    proxy = Proxy(deployment.addresses["server-b"])
    closing.callback(proxy.close)
    deployment.reroute("server-a", "server-b", proxy.address)
    deployment.start_all()
    deployment.strike(())
    for point in points:
        order = Order("server-a", "pause-after", point)
        cut_and_heal(deployment, order, proxy.cut, proxy.heal)
    kill_all(deployment)
    check(deployment)


@pytest.mark.parametrize("cut_off", [("server-a",), ("server-b",), ("server-a", "server-b")])
def test_the_way_to_the_dealer_is_cut(
    tmp_path: Path, forks: Forks, closing: ExitStack, cut_off: Sequence[str]
) -> None:
    deployment = FaultyDeployment(tmp_path, forks, ENDLESS)
    closing.callback(kill_all, deployment)
    proxies = []
    for party in cut_off:
        proxies.append(Proxy(deployment.addresses["dealer"]))
        closing.callback(proxies[-1].close)
        deployment.reroute(party, "dealer", proxies[-1].address)
    deployment.start_all()
    deployment.strike(())

    def cut() -> None:
        for proxy in proxies:
            proxy.cut()

    def heal() -> None:
        for proxy in proxies:
            proxy.heal()

    order = Order(cut_off[0], "pause-before", "RemoteDealer.deal")
    cut_and_heal(deployment, order, cut, heal)
    kill_all(deployment)
    check(deployment)


class Namespace:
    """A network namespace joined to this one by a cable that can be pulled."""

    def __init__(self, stack: ExitStack) -> None:
        number = os.getpid() % 250
        self.name = f"precad{os.getpid()}"
        self._cable = f"pc{os.getpid()}"
        self.here, self.there = f"10.213.{number}.1", f"10.213.{number}.2"
        ip("netns", "add", self.name)
        stack.callback(ip, "netns", "del", self.name)
        ip("link", "add", self._cable, "type", "veth", "peer", "name", "far", "netns", self.name)
        stack.callback(ip, "link", "del", self._cable)
        ip("addr", "add", f"{self.here}/24", "dev", self._cable)
        ip("link", "set", self._cable, "up")
        inside = ("netns", "exec", self.name, "ip")
        ip(*inside, "addr", "add", f"{self.there}/24", "dev", "far")
        ip(*inside, "link", "set", "far", "up")
        ip(*inside, "link", "set", "lo", "up")

    def pull(self) -> None:
        ip("link", "set", self._cable, "down")

    def plug(self) -> None:
        ip("link", "set", self._cable, "up")


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, timeout=60)


def test_server_b_in_a_network_of_its_own_is_cut_off(
    tmp_path: Path, forks: Forks, closing: ExitStack
) -> None:
    if shutil.which("ip") is None:
        pytest.skip("no network namespaces here: iproute2 isn't installed")
    try:
        namespace = Namespace(closing)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no network namespaces here: {error.stderr.decode().strip()}")
    inside = Forks(("ip", "netns", "exec", namespace.name))
    closing.callback(inside.close)
    deployment = FaultyDeployment(tmp_path, forks, ENDLESS, {"server-b": inside})
    closing.callback(kill_all, deployment)
    for listener, host in (("server-b", namespace.there), ("dealer", namespace.here)):
        address = f"{host}:{deployment.addresses[listener].rsplit(':', 1)[1]}"
        for party in deployment.parties:
            text = (tmp_path / f"{party}.toml").read_text(encoding="utf-8")
            if deployment.addresses[listener] in text:
                deployment.reroute(party, listener, address)
        deployment.addresses[listener] = address
    deployment.start_all()
    deployment.strike(())
    deployment.hold(Order("server-a", "pause-after", "PeerLink.send/held"))
    before = deployment.done()
    namespace.pull()
    deployment.let_go("server-a")
    deployment.wait_for(lambda: "trying again" in deployment.operator(Role.SERVER_A).status().error)
    assert deployment.done() <= before + 1
    namespace.plug()
    deployment.strike(())
    assert deployment.restarts == []
    kill_all(deployment)
    check(deployment)
