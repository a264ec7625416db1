"""kill -9 of real processes at each kind of step, and what must hold afterwards.

Every step, and every order of deaths, is played in simulated time
(`tests/faults/test_crash_points.py`). Each line here is one fault, or several that belong together:
who dies, and before or after which of its steps. Whoever dies is started again at once; two further
rounds must then get done.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.faults.process_invariants import check, kill_all
from tests.faults.processes import ENDLESS, SERVER_ROLES, FaultyDeployment, Forks, Order

ROUNDS = 3
OF_A_SERVER = (
    # A commit, a word to the other server, a file, a call to the dealer, an event to clients.
    "after Versions.keep_commitment",
    "before PeerLink.send/cohort",
    "after EventLog.publish/RoundOpened",
    "after Inbox._accept",
    "before RemoteSquares.ask",
    "after Absorber.absorb",
    "after RemoteDealer.deal",
    "after Attempts.spend",
    "after PeerLink.receive/decide",
    "after PeerLink.send/noisy-share",
    "after ModelStore.put",
    "before Attempts.finish",
)
GATE_STEPS = (
    "after RemoteSquares.gate_keys",
    "after Absorber.points",
    "after PeerLink.send/decide",
)
RECOVERIES = (
    # Prepared here, nothing there: both sign that it is void.
    "server-b before Attempts.prepare, server-a after Attempts.void",
    "server-a before Attempts.prepare, server-b before Attempts.void",
    # Done there, not here: the model, on one's own signature.
    "server-b before ModelStore.put, server-a before PeerLink.send/transfer",
    "server-a before ModelStore.put, server-a before ModelStore.put",
    # Prepared on both: on with the release where it stopped.
    "server-b after Attempts.sent, server-a before Attempts.sent",
    # At a new link's beginning.
    "server-b after Inbox.open, server-a after PeerLink.send/position",
    "server-a after Inbox.open, server-b after RemoteDealer.join",
    # All three at once.
    (
        "server-a after Attempts.prepare, server-b after Attempts.prepare, "
        "dealer after DealerRole.key_for"
    ),
)
REMEDIES = ("void", "confirm-void", "release", "serve", "catch-up")
DEALER_AND_CLIENTS = (
    "server-a before Inbox.close, dealer before DealerRole.key_for",
    "dealer after DealerRole.ask",
    "dealer after DealerRole.corrections",
    "ward-0 after DataOwner.update",
    "ward-0 after Pending.keep",
    "ward-0 after Servers.submit_half/server-a",
    "ward-0 before Pending.drop",
    "ward-0 after OwnAccount.charge, server-a after Inbox._accept",
)
GROUPS = {
    **{party: tuple(f"{party} {step}" for step in OF_A_SERVER) for party in SERVER_ROLES},
    "by gates": (
        *(f"{party} {step}" for party in SERVER_ROLES for step in GATE_STEPS),
        "dealer after DealerRole.ask",
    ),
    "recovery": RECOVERIES,
    "dealer and clients": DEALER_AND_CLIENTS,
}
Deploy = Callable[..., FaultyDeployment]


@pytest.fixture
def deploy(tmp_path: Path, forks: Forks) -> Iterator[Deploy]:
    """``deploy(rounds)``: nothing runs yet; killed at the end."""
    made: list[FaultyDeployment] = []

    def make(rounds: int, validation: str = "crypten") -> FaultyDeployment:
        made.append(FaultyDeployment(tmp_path, forks, rounds, validation=validation))
        return made[-1]

    yield make
    for deployment in made:
        kill_all(deployment)


@pytest.mark.parametrize("group", GROUPS)
def test_killed_at_any_kind_of_step_the_training_goes_on(deploy: Deploy, group: str) -> None:
    deployment = deploy(ENDLESS, "fss" if group == "by gates" else "crypten")
    deployment.start_all()
    deployment.strike(())
    for line in GROUPS[group]:
        deployment.strike(Order.parse(order) for order in line.split(", "))
    struck = sum(len(line.split(", ")) for line in GROUPS[group])
    assert len(deployment.restarts) == struck
    kill_all(deployment)
    check(deployment)
    if group == "recovery":
        for role in SERVER_ROLES:
            log = deployment.log(role)
            assert [each for each in REMEDIES if f"after a break: {each}\n" not in log] == []


@pytest.mark.parametrize(
    "orders",
    [
        # While clients enrol.
        "server-a before Enrolments.claim, server-b after Enrolments.claim",
        "server-b after Enrolments.freeze, server-a before Enrolments.freeze",
        # In every round, the last one among them.
        ", ".join(["server-a after ModelStore.put"] * ROUNDS),
        # At the very end.
        (
            "server-b after EventLog.publish/TrainingDone, "
            "server-a before EventLog.publish/TrainingDone"
        ),
    ],
)
def test_killed_at_the_beginning_or_the_end_the_training_gets_done(
    deploy: Deploy, orders: str
) -> None:
    deployment = deploy(ROUNDS)
    deployment.order(Order.parse(order) for order in orders.split(", "))
    deployment.start_all()
    deployment.until_done()
    assert deployment.done() == ROUNDS
    assert len(deployment.restarts) == len(orders.split(", "))
    kill_all(deployment)
    check(deployment)
    finals = {deployment.rounds(role)[max(deployment.rounds(role))][4] for role in SERVER_ROLES}
    assert len(finals) == 1
