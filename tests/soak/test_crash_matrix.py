"""kill -9 of every process at every step, on real processes, and what must hold afterwards.

Each line is one fault, or several that belong together: who dies, and before or after which of
its steps. Whoever dies is started again at once; two further rounds must then get done.
"""

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.faults.process_invariants import check, kill_all, own_account
from tests.faults.processes import ENDLESS, SERVER_ROLES, FaultyDeployment, Forks, Order

from precad.common.identifiers import Role

ROUNDS = 3


def lines(text: str) -> tuple[str, ...]:
    """Steps that stand in a text, apart by semicolons."""
    return tuple(each.strip() for each in text.replace("\n", " ").split(";"))


ROUND_STEPS = {
    "collects": lines("""
        after PeerLink.send/coin-commitment; after Versions.keep_commitment;
        before PeerLink.send/coin-opening; after PeerLink.send/coin-opening;
        before Versions.keep_opening; after Versions.keep_opening; before PeerLink.send/cohort;
        after PeerLink.send/cohort; before PeerLink.receive/cohort; after PeerLink.receive/cohort;
        before Attempts.begin; after Attempts.begin; after Inbox.open;
        after EventLog.publish/RoundOpened; before Inbox.start; after Inbox._accept;
        before Inbox.close; after Inbox.close; before PeerLink.send/held;
        after PeerLink.send/held; after PeerLink.receive/held
    """),
    "validates": lines("""
        before Versions.count_opened; after Versions.count_opened; after PeerLink.receive/opened;
        before DealerConversation.ask; after DealerConversation.ask;
        before DealerConversation.row_key; after DealerConversation.row_key;
        before Absorber.absorb; after Absorber.absorb; after DealerConversation.share;
        after Absorber.words; before RemoteDealer.deal; after RemoteDealer.deal;
        before Attempts.spend; after Attempts.spend; before PeerLink.send/decide;
        after PeerLink.receive/decide; before PeerLink.send/valid-set;
        after PeerLink.send/valid-set
    """),
    "releases": lines("""
        before Attempts.prepare; after Attempts.prepare; after PeerLink.send/head;
        before Attempts.countersign; after Attempts.countersign;
        after PeerLink.send/countersignature; before Attempts.sent; after Attempts.sent;
        before PeerLink.send/noisy-share; after PeerLink.send/noisy-share;
        after PeerLink.receive_into/noisy-share; after PeerLink.send/model;
        after PeerLink.receive/model; after Versions.keep_model_seal; before ModelStore.put;
        after ModelStore.put; before Attempts.finish; after Attempts.finish;
        before Versions.confirm; after Versions.confirm; after EventLog.publish/RoundDone
    """),
}
"""What a server does in a round: parts, that run beside one another."""
PROOF_STEPS = lines("""
    after ByProof.take; before PeerLink.send/proof-coin; after PeerLink.send/proof-coin;
    after PeerLink.receive/proof-coin; before PeerLink.send/proof; after PeerLink.send/proof;
    after PeerLink.receive/proof; after Versions.count_opened; before PeerLink.send/valid-set
""")
CONNECTION_STEPS = lines("""
    before Attempts.abandon_open; before PeerLink.send/position; after PeerLink.send/position;
    after PeerLink.receive/position; after PeerLink.send/roster; after PeerLink.receive/roster;
    after PeerLink.send/set-secret; before RemoteDealer.join; after RemoteDealer.join;
    after PeerLink.receive/dealer; after PeerLink.send/remembered;
    after PeerLink.receive/remembered
""")
# The link has to break before these steps come: the other server dies first.
RECOVERIES = (
    # Prepared here, nothing there: both sign that it is void.
    "server-b before Attempts.prepare, server-a before PeerLink.receive/void",
    "server-b before Attempts.prepare, server-a before Attempts.void",
    "server-b before Attempts.prepare, server-a after Attempts.void",
    "server-b before Attempts.prepare, server-b before Attempts.void",
    "server-b before Attempts.prepare, server-b after Attempts.void",
    "server-b before Attempts.prepare, server-b after PeerLink.send/void",
    "server-a before Attempts.prepare, server-a before Attempts.void",
    "server-a before Attempts.prepare, server-b before Attempts.void",
    "server-a before Attempts.prepare, server-a after Attempts.void, server-b after Attempts.void",
    # Done there, not here: the model, on one's own signature.
    "server-b before ModelStore.put, server-a before PeerLink.send/transfer",
    "server-b before ModelStore.put, server-b after PeerLink.receive/transfer",
    "server-b before ModelStore.put, server-a after PeerLink.send/model-bytes",
    (
        "server-b before ModelStore.put, server-b after Versions.keep_model_seal, "
        "server-b after ModelStore.put"
    ),
    "server-a before ModelStore.put, server-a before ModelStore.put",
    "server-a before ModelStore.put, server-b after PeerLink.send/transfer",
    # Prepared on both: on with the release where it stopped.
    "server-a after Attempts.countersign, server-a after PeerLink.send/noisy-share",
    "server-b after PeerLink.receive/head, server-b before PeerLink.send/noisy-share",
    "server-b after Attempts.sent, server-a before Attempts.sent",
    "server-a after PeerLink.send/countersignature, server-b before Attempts.countersign",
    # All three at once.
    (
        "server-a after Attempts.prepare, server-b after Attempts.prepare, "
        "dealer after DealerRole.key_for"
    ),
)
DEALER_AND_CLIENTS = lines("""
    server-a before Inbox.close, dealer before DealerRole.key_for;
    server-b before Inbox.close, dealer after DealerRole.key_for; dealer before DealerRole.ask;
    dealer after DealerRole.ask; dealer before DealerRole.corrections;
    dealer after DealerRole.corrections; ward-0 before Servers.fetch_model;
    ward-0 after Servers.fetch_model; ward-0 before DataOwner.update;
    ward-0 after DataOwner.update; ward-0 after Servers.prepare; ward-0 before Pending.keep;
    ward-0 after Pending.keep; ward-0 before OwnAccount.charge; ward-0 after OwnAccount.charge;
    ward-0 before Servers.submit; ward-0 before Servers.submit_half/server-a;
    ward-0 before Servers.submit_half/server-b; ward-0 after Servers.submit_half/server-a;
    ward-0 after Servers.submit_half/server-b; ward-0 after Servers.submit;
    ward-0 before Pending.drop; ward-0 after Pending.drop;
    ward-0 after Servers.submit_half/server-b, ward-1 after Servers.submit_half/server-a;
    ward-0 after OwnAccount.charge, server-a after Inbox._accept
""")
GROUPS = {
    **{
        f"{party} {part}": tuple(f"{party} {step}" for step in steps)
        for party in SERVER_ROLES
        for part, steps in ROUND_STEPS.items()
    },
    "the link's beginning": tuple(
        f"{other} after Inbox.open, {party} {step}"
        for party, other in (SERVER_ROLES, SERVER_ROLES[::-1])
        for step in CONNECTION_STEPS
    ),
    "recovery": RECOVERIES,
    "dealer and clients": DEALER_AND_CLIENTS,
}

Deploy = Callable[..., FaultyDeployment]


@pytest.fixture
def deploy(tmp_path: Path, forks: Forks) -> Iterator[Deploy]:
    """``deploy(rounds)``: nothing runs yet; killed at the end."""
    made: list[FaultyDeployment] = []

    def make(rounds: int, collect_s: float = 5.0, validation: str = "crypten") -> FaultyDeployment:
        how: dict[str, Any] = {"collect_s": collect_s, "validation": validation}
        made.append(FaultyDeployment(tmp_path / str(len(made)), forks, rounds, **how))
        return made[-1]

    yield make
    for deployment in made:
        kill_all(deployment)


@pytest.mark.parametrize("group", GROUPS)
def test_killed_at_any_step_the_training_goes_on(deploy: Deploy, group: str) -> None:
    deployment = deploy(ENDLESS)
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
            remedies = ("void", "confirm-void", "release", "serve", "catch-up")
            assert all(f"after a break: {remedy}\n" in log for remedy in remedies)


@pytest.mark.parametrize("party", SERVER_ROLES)
def test_with_proofs_killed_at_any_step_of_validation_the_training_goes_on(
    deploy: Deploy, party: str
) -> None:
    """All other steps are the same code, under either check."""
    deployment = deploy(ENDLESS, validation="proof")
    deployment.start_all()
    deployment.strike(())
    for step in PROOF_STEPS:
        deployment.strike([Order.parse(f"{party} {step}")])
    assert len(deployment.restarts) == len(PROOF_STEPS)
    kill_all(deployment)
    check(deployment)


@pytest.mark.parametrize(
    "orders",
    [
        # While clients enrol.
        "server-a before Enrolments.claim, server-b after Enrolments.claim",
        "server-b before Enrolments.freeze, server-a after Enrolments.freeze",
        "server-a before Register.enrol, ward-1 after Servers.enrol",
        "server-b after Enrolments.freeze, server-a before Enrolments.freeze",
        "dealer after DealerRole.key_for",
        # In every round, the last one among them.
        ", ".join(["server-a after ModelStore.put"] * ROUNDS),
        ", ".join(["server-b after ModelStore.put"] * ROUNDS),
        ", ".join(["server-b before ModelStore.put"] * ROUNDS),
        # At the very end.
        "server-a before EventLog.publish/TrainingDone",
        "server-b before EventLog.publish/TrainingDone",
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
    assert (deployment.done(), len(deployment.restarts)) == (ROUNDS, len(orders.split(", ")))
    kill_all(deployment)
    check(deployment)
    finals = {deployment.rounds(role)[max(deployment.rounds(role))][4] for role in SERVER_ROLES}
    assert len(finals) == 1


@pytest.mark.parametrize("lost", [True, False])
def test_a_client_that_comes_back_in_time_never_samples_again(
    deploy: Deploy,
    lost: bool,  # noqa: FBT001 -- pytest gives it by name
) -> None:
    """The round is still open: what was kept is sent; when it is lost, the round is sat out."""
    # Enough for a client to be back in time on a machine that does four other things.
    deployment = deploy(ENDLESS, collect_s=60.0)
    deployment.start_all()
    deployment.strike(())
    # The round stays open until the client is back: A stands still before it closes it.
    steps = ("server-a pause-before Attempts.begin", "server-a pause-before Inbox.close")
    deployment.hold(*map(Order.parse, steps))
    deployment.order([Order.parse("ward-0 after OwnAccount.charge")])
    deployment.let_go("server-a")
    assert deployment.processes["ward-0"].wait() == -signal.SIGKILL
    number = max(deployment.rounds(Role.SERVER_A.value))
    version = max(own_account(deployment, "ward-0"))
    assert version == deployment.rounds(Role.SERVER_A.value)[number][1]
    pending = deployment.folder / "state" / "ward-0" / "pending.bin"
    assert pending.stat().st_mode & 0o777 == 0o600
    if lost:
        pending.unlink()
    deployment.restart_the_dead()
    deployment.wait_for(
        lambda: number in submitted(deployment, "delivered") or "sitting" in log(deployment)
    )
    deployment.let_go("server-a")
    deployment.strike(())
    kill_all(deployment)
    check(deployment)
    assert (number in submitted(deployment)) is not lost
    assert ("sitting it out" in log(deployment)) is lost
    charged = deployment.charges(Role.SERVER_A.value).get(number, set())
    assert ("ward-0" in charged) is not lost


def submitted(deployment: FaultyDeployment, what: str = "submitted") -> set[int]:
    """Rounds that ward-0 began to send something for, or that all was ``delivered`` for."""
    return {note[what] for note in deployment.notes("ward-0") if what in note}


def log(deployment: FaultyDeployment) -> str:
    return deployment.log("ward-0")
