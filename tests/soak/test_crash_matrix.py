"""kill -9 of every process at every step, on real processes, and what must hold afterwards.

Each line is one fault, or several that belong together: who dies, and before or after which of
its steps. Whoever dies is started again at once; two further rounds must then get done.
"""

from typing import Any

import pytest
from tests.faults.process_invariants import check, kill_all
from tests.faults.processes import SERVER_ROLES, FaultyDeployment, Order
from tests.soak.conftest import Deploy

ROUNDS = 3


def lines(text: str) -> tuple[str, ...]:
    """Steps that stand in a text, apart by semicolons; ``around`` is before, and then after."""
    steps = [each.strip() for each in text.replace("\n", " ").split(";")]
    found = [[s.replace("around", when) for when in ("before", "after")] for s in steps]
    return tuple(each for both in found for each in dict.fromkeys(both))


ROUND_STEPS = {
    "collects": lines("""
        after PeerLink.send/coin-commitment; after Versions.keep_commitment;
        around PeerLink.send/coin-opening; around Versions.keep_opening;
        around PeerLink.send/cohort; around PeerLink.receive/cohort; around Attempts.begin;
        after Inbox.open; after EventLog.publish/RoundOpened; before Inbox.start;
        after Inbox._accept; around Inbox.close; around PeerLink.send/held;
        after PeerLink.receive/held
    """),
    "validates": lines("""
        around Versions.count_opened; after PeerLink.receive/opened;
        around DealerConversation.ask; around DealerConversation.row_key; around Absorber.absorb;
        after DealerConversation.share; after Absorber.words; around RemoteDealer.deal;
        around Attempts.spend; before PeerLink.send/decide; after PeerLink.receive/decide;
        around PeerLink.send/valid-set
    """),
    "releases": lines("""
        around Attempts.prepare; after PeerLink.send/head; around Attempts.countersign;
        after PeerLink.send/countersignature; around Attempts.sent;
        around PeerLink.send/noisy-share; after PeerLink.receive_into/noisy-share;
        after PeerLink.send/model; after PeerLink.receive/model; after Versions.keep_model_seal;
        around ModelStore.put; around Attempts.finish; around Versions.confirm;
        after EventLog.publish/RoundDone
    """),
}
"""What a server does in a round: parts, that run beside one another."""
PROOF_STEPS = lines("""
    after ByProof.take; around PeerLink.send/proof-coin; after PeerLink.receive/proof-coin;
    around PeerLink.send/proof; after PeerLink.receive/proof; after Versions.count_opened;
    before PeerLink.send/valid-set
""")
CONNECTION_STEPS = lines("""
    before Attempts.abandon_open; around PeerLink.send/position; after PeerLink.receive/position;
    after PeerLink.send/roster; after PeerLink.receive/roster; after PeerLink.send/set-secret;
    around RemoteDealer.join; after PeerLink.receive/dealer; after PeerLink.send/remembered;
    after PeerLink.receive/remembered
""")
# The link has to break before these steps come: the other server dies first.
RECOVERIES = (
    # Prepared here, nothing there: both sign that it is void.
    *lines("""
    server-b before Attempts.prepare, server-a before PeerLink.receive/void;
    server-b before Attempts.prepare, server-a around Attempts.void;
    server-b before Attempts.prepare, server-b around Attempts.void;
    server-b before Attempts.prepare, server-b after PeerLink.send/void;
    server-a before Attempts.prepare, server-a before Attempts.void;
    server-a before Attempts.prepare, server-b before Attempts.void;
    server-a before Attempts.prepare, server-a after Attempts.void, server-b after Attempts.void
    """),
    # Done there, not here: the model, on one's own signature.
    *lines("""
    server-b before ModelStore.put, server-a before PeerLink.send/transfer;
    server-b before ModelStore.put, server-b after PeerLink.receive/transfer;
    server-b before ModelStore.put, server-a after PeerLink.send/model-bytes;
    server-b before ModelStore.put, server-b after Versions.keep_model_seal,
        server-b after ModelStore.put;
    server-a before ModelStore.put, server-a before ModelStore.put;
    server-a before ModelStore.put, server-b after PeerLink.send/transfer
    """),
    # Prepared on both: on with the release where it stopped; all three at once.
    *lines("""
    server-a after Attempts.countersign, server-a after PeerLink.send/noisy-share;
    server-b after PeerLink.receive/head, server-b before PeerLink.send/noisy-share;
    server-b after Attempts.sent, server-a before Attempts.sent;
    server-a after PeerLink.send/countersignature, server-b before Attempts.countersign;
    server-a after Attempts.prepare, server-b after Attempts.prepare,
        dealer after DealerRole.key_for
    """),
)
DEALER_AND_CLIENTS = lines("""
    server-a before Inbox.close, dealer before DealerRole.key_for;
    server-b before Inbox.close, dealer after DealerRole.key_for; dealer around DealerRole.ask;
    dealer around DealerRole.corrections; ward-0 around Servers.fetch_model;
    ward-0 around DataOwner.update; ward-0 after Servers.prepare; ward-0 around Pending.keep;
    ward-0 around OwnAccount.charge; ward-0 before Servers.submit;
    ward-0 before Servers.submit_half/server-a; ward-0 before Servers.submit_half/server-b;
    ward-0 after Servers.submit_half/server-a; ward-0 after Servers.submit_half/server-b;
    ward-0 after Servers.submit; ward-0 around Pending.drop;
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


def orders_of(line: str) -> list[Order]:
    return [Order.parse(" ".join(order.split())) for order in line.split(", ")]


def running(deploy: Deploy, **how: Any) -> FaultyDeployment:
    """A training without an end that has done its first rounds."""
    deployment = deploy(**how)
    deployment.start_all()
    deployment.strike(())
    return deployment


@pytest.mark.parametrize("group", GROUPS)
def test_killed_at_any_step_the_training_goes_on(deploy: Deploy, group: str) -> None:
    deployment = running(deploy)
    for line in GROUPS[group]:
        deployment.strike(orders_of(line))
    assert len(deployment.restarts) == sum(len(orders_of(line)) for line in GROUPS[group])
    kill_all(deployment)
    check(deployment)
    if group == "recovery":
        for role in SERVER_ROLES:
            log = deployment.log(role)
            remedies = ("void", "confirm-void", "release", "serve", "catch-up")
            assert all(f"after a break: {remedy}\n" in log for remedy in remedies)


@pytest.mark.parametrize("party", SERVER_ROLES)
def test_with_proofs_killed_in_validation_the_training_goes_on(deploy: Deploy, party: str) -> None:
    """All other steps are the same code, under either check."""
    deployment = running(deploy, validation="proof")
    for step in PROOF_STEPS:
        deployment.strike(orders_of(f"{party} {step}"))
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
def test_killed_at_the_beginning_or_end_the_training_gets_done(deploy: Deploy, orders: str) -> None:
    deployment = deploy(ROUNDS)
    deployment.order(orders_of(orders))
    deployment.start_all()
    deployment.until_done()
    assert (deployment.done(), len(deployment.restarts)) == (ROUNDS, len(orders_of(orders)))
    kill_all(deployment)
    check(deployment)
    finals = {deployment.rounds(role)[max(deployment.rounds(role))][4] for role in SERVER_ROLES}
    assert len(finals) == 1
