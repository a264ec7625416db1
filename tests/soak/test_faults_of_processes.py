"""Real processes killed at every step, cut off from one another, and put back; what
must hold then.

An order is one fault, or several that belong together: who dies, and before or after
which of its steps. Whoever dies is started again at once; two further rounds must then
get done. Of a cut nobody is told: packets stop arriving, the round must end within its
deadlines, and the next one work after the cut heals. Put back, ledgers of 5 and 8
entries were both called sound by `ledger verify` on the first version; both put back
had 3 for 6 true ones, and the dealer dealt the same masks again.
"""

import shutil
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Unpack

import pytest
from tests.faults.processes import (
    SERVER_ROLES,
    FaultyDeployment,
    Operators,
    Order,
    check,
    kill_all,
)
from tests.rig.connections import Proxy
from tests.soak.conftest import Deploy, How

from precad.aggregator.store import audit_ledger, compare_ledgers, read_training
from precad.common import errors, identifiers

ROUNDS = 3


def lines(text: str) -> tuple[str, ...]:
    """Steps that stand in a text, apart by semicolons; ``around`` is before, and then
    after."""
    steps = [each.strip() for each in text.replace("\n", " ").split(";")]
    found = [[s.replace("around", when) for when in ("before", "after")] for s in steps]
    return tuple(each for both in found for each in dict.fromkeys(both))


ROUND_STEPS = {
    "collects": lines("""
        after PeerLink.send/coin-commitment; after Versions.keep_commitment;
        around PeerLink.send/coin-opening; around Versions.keep_opening;
        around PeerLink.send/cohort; around PeerLink.receive/cohort;
        around Attempts.begin;
        after Inbox.open; after EventLog.publish/RoundOpened; before Inbox.start;
        after Inbox._accept; around Inbox.close; around PeerLink.send/held;
        after PeerLink.receive/held
    """),
    "validates": lines("""
        around Versions.count_opened; after PeerLink.receive/opened;
        around DealerConversation.ask; around DealerConversation.row_key;
        around Absorber.absorb;
        after DealerConversation.share; after Absorber.words; around RemoteDealer.deal;
        around Attempts.spend; before PeerLink.send/decide;
        after PeerLink.receive/decide;
        around PeerLink.send/valid-set
    """),
    "releases": lines("""
        around Attempts.prepare; after PeerLink.send/head; around Attempts.countersign;
        after PeerLink.send/countersignature; around Attempts.sent;
        around PeerLink.send/noisy-share; after PeerLink.receive/noisy-share;
        after PeerLink.send/model; after PeerLink.receive/model;
        after Versions.keep_model_seal;
        around ModelStore.put; around Attempts.finish; around Versions.confirm;
        after EventLog.publish/RoundDone
    """),
}  # What a server does in a round: parts, that run beside one another
PROOF_STEPS = lines("""
    after ByProof.take; around PeerLink.send/proof-coin;
    after PeerLink.receive/proof-coin;
    around PeerLink.send/proof; after PeerLink.receive/proof;
    after Versions.count_opened;
    before PeerLink.send/valid-set
""")  # All other steps are the same code, under either check
PROVES = {
    f"{party} proves": [f"{party} {step}" for step in PROOF_STEPS]
    for party in SERVER_ROLES
}
CONNECTION_STEPS = lines("""
    before Attempts.abandon_open; around PeerLink.send/position;
    after PeerLink.receive/position;
    after PeerLink.send/roster; after PeerLink.receive/roster;
    after PeerLink.send/set-secret;
    around RemoteDealer.join; after PeerLink.receive/dealer;
    after PeerLink.send/remembered;
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
    server-a before Attempts.prepare, server-a after Attempts.void,
        server-b after Attempts.void
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
    server-b before Inbox.close, dealer after DealerRole.key_for;
    dealer around DealerRole.ask;
    dealer around DealerRole.corrections; ward-0 around Servers.fetch_model;
    ward-0 around DataOwner.update; ward-0 after Servers.prepare;
    ward-0 around Pending.keep;
    ward-0 around OwnAccount.charge; ward-0 before Servers.submit;
    ward-0 before Servers.submit_half/server-a;
    ward-0 before Servers.submit_half/server-b;
    ward-0 after Servers.submit_half/server-a;
    ward-0 after Servers.submit_half/server-b;
    ward-0 after Servers.submit; ward-0 around Pending.drop;
    ward-0 after Servers.submit_half/server-b,
        ward-1 after Servers.submit_half/server-a;
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


def running(deploy: Deploy, **how: Unpack[How]) -> FaultyDeployment:
    """A training without an end that has done its first rounds."""
    deployment = deploy(**how)
    deployment.start_all()
    deployment.strike(())
    return deployment


def require_sound(deployment: FaultyDeployment) -> None:
    kill_all(deployment)
    check(deployment)


def error_of(deployment: FaultyDeployment, role: str) -> str:
    try:
        return deployment.operator(identifiers.Role(role)).status(timeout_s=2.0).error
    except errors.PeerUnavailable:
        # It is being started.
        return ""


@pytest.mark.parametrize("group", [*GROUPS, *PROVES])
def test_killed_at_any_step_the_training_goes_on(deploy: Deploy, group: str) -> None:
    deployment = running(deploy, validation="proof" if group in PROVES else "crypten")
    orders = [orders_of(line) for line in GROUPS.get(group) or PROVES[group]]
    for each in orders:
        deployment.strike(each)
    assert len(deployment.restarts) == sum(map(len, orders))
    require_sound(deployment)
    if group == "recovery":
        for log in map(deployment.log, SERVER_ROLES):
            remedies = ("void", "confirm-void", "release", "serve", "catch-up")
            assert all(f"after a break: {remedy}\n" in log for remedy in remedies)


IN_EVERY_ROUND = lines("server-a after ModelStore.put; server-b around ModelStore.put")
ENROLLING = lines("""
    server-a before Enrolments.claim, server-b after Enrolments.claim;
    server-b before Enrolments.freeze, server-a after Enrolments.freeze;
    server-a before Register.enrol, ward-1 after Servers.enrol;
    dealer after DealerRole.key_for;
    server-b after Enrolments.freeze, server-a before Enrolments.freeze
""")
ENDING = lines("""
    server-a before EventLog.publish/TrainingDone;
    server-b before EventLog.publish/TrainingDone;
    server-b after EventLog.publish/TrainingDone,
        server-a before EventLog.publish/TrainingDone
""")


@pytest.mark.parametrize(
    "orders",
    [*ENROLLING, *(", ".join([step] * ROUNDS) for step in IN_EVERY_ROUND), *ENDING],
)
def test_killed_at_the_beginning_or_end_the_training_gets_done(
    deploy: Deploy, orders: str
) -> None:
    deployment = deploy(ROUNDS)
    deployment.order(orders_of(orders))
    deployment.start_all()
    deployment.until_done()
    assert (deployment.done(), len(deployment.restarts)) == (
        ROUNDS,
        len(orders_of(orders)),
    )
    require_sound(deployment)
    finals = {
        deployment.rounds(role)[max(deployment.rounds(role))][4]
        for role in SERVER_ROLES
    }
    assert len(finals) == 1


def cut_path(
    deploy: Deploy,
    parties: Sequence[str],
    other: str,
    *orders: Order,
    **how: Unpack[How],
) -> None:
    """In a training in which these parties reach another one through a path that can be
    cut: cut at each point; both servers must give the round up in time; heal; two
    rounds follow.
    """
    deployment = deploy(**how)
    with ExitStack() as stack:
        proxies = [
            stack.enter_context(Proxy(deployment.addresses[other])) for _ in parties
        ]
        for party, proxy in zip(parties, proxies, strict=True):
            deployment.reroute(party, other, proxy.address)
        deployment.start_all()
        deployment.strike(())
        for order in orders:
            deployment.hold(order)
            before = deployment.done()
            for proxy in proxies:
                proxy.cut()
            deployment.let_go(order.party)
            for role in SERVER_ROLES:
                # `error` says that the round was given up, until both are heard from
                # again.
                gave_up = partial(error_of, deployment, role)
                deployment.wait_for(lambda: "trying again" in gave_up())  # noqa: B023
            assert deployment.done() <= before + 1
            for proxy in proxies:
                proxy.heal()
            deployment.strike(())
            assert deployment.restarts == []
        require_sound(deployment)


POINTS = {
    "crypten": (
        *(
            "Inbox.open",
            "PeerLink.send/held",
            "Absorber.absorb",
            "PeerLink.send/decide",
        ),
        *("PeerLink.send/countersignature", "PeerLink.send/noisy-share"),
    ),
    "proof": (
        "PeerLink.send/proof-coin",
        "PeerLink.send/proof",
        "PeerLink.send/valid-set",
    ),
}


@pytest.mark.parametrize("validation", POINTS)
def test_the_link_between_the_servers_is_cut(deploy: Deploy, validation: str) -> None:
    orders = [Order("server-a", "pause-after", point) for point in POINTS[validation]]
    cut_path(deploy, ["server-a"], "server-b", *orders, validation=validation)


@pytest.mark.parametrize(
    "cut_off", [("server-a",), ("server-b",), ("server-a", "server-b")]
)
def test_the_way_to_the_dealer_is_cut(deploy: Deploy, cut_off: Sequence[str]) -> None:
    order = Order(cut_off[0], "pause-before", "RemoteDealer.deal")
    cut_path(deploy, cut_off, "dealer", order)


def state(deployment: FaultyDeployment, role: str) -> Path:
    return deployment.folder / "state" / role / "state.db"


def url(deployment: FaultyDeployment, role: str) -> str:
    return f"sqlite:///{state(deployment, role)}"


def back_up(deployment: FaultyDeployment, role: str) -> None:
    with (
        closing(sqlite3.connect(state(deployment, role))) as database,
        closing(sqlite3.connect(deployment.folder / f"{role}.copy")) as target,
    ):
        database.backup(target)


def put_back(deployment: FaultyDeployment, role: str) -> None:
    """The server dies; its database comes back as it was, beside a newer model."""
    process, database = deployment.processes[role], state(deployment, role)
    process.kill()
    process.wait()
    for path in database.parent.glob("state.db*"):
        path.unlink()
    shutil.copy(deployment.folder / f"{role}.copy", database)


def charged(deployment: FaultyDeployment, role: str) -> dict[str, int]:
    view = read_training(url(deployment, role))
    return {each.client.name: each.participations for each in view.clients}


def until(deployment: FaultyDeployment, over: Callable[[], bool]) -> None:
    """Until it is over; whoever dies is started again, and operators do what they are
    told."""
    operators = Operators(deployment)

    def ready() -> bool:
        deployment.restart_the_dead()
        operators.look()
        return over()

    deployment.wait_for(ready)


@pytest.mark.parametrize(
    "roles", [("server-a",), ("server-b",), SERVER_ROLES], ids=["a", "b", "both"]
)
def test_a_database_put_back_learns_what_it_forgot(
    deploy: Deploy, roles: tuple[str, ...]
) -> None:
    deployment = running(deploy)
    for role in roles:
        back_up(deployment, role)
    deployment.strike(())
    deployment.strike(())
    before = {role: charged(deployment, role) for role in SERVER_ROLES}
    used = max(deployment.rounds("server-a"))
    for role in roles:
        put_back(deployment, role)
        assert charged(deployment, role) != before[role], "nothing was forgotten"
    # What was under way when both were put back may have left: they ask before they go
    # on.
    until(
        deployment,
        lambda: min(max(deployment.rounds(r)) for r in SERVER_ROLES) > used + 2,
    )
    for role in SERVER_ROLES:
        now = charged(deployment, role)
        assert all(now[client] >= count for client, count in before[role].items())
    kill_all(deployment)
    assert [audit_ledger(url(deployment, role)).findings for role in SERVER_ROLES] == [
        (),
        (),
    ]
    for log in map(deployment.log, roles):
        assert "in the ledger again" in log or "in its ledger" in log
    # But for the attempt that was under way when everybody was killed.
    assert len(compare_ledgers(*(url(deployment, role) for role in SERVER_ROLES))) <= 1
    masks = [
        tuple(note["spent"]) for note in deployment.notes("server-a") if "spent" in note
    ]
    assert len(masks) == len(set(masks)), "masks of one attempt were used twice"


def test_an_attempt_that_both_forgot_waits_for_the_operators(deploy: Deploy) -> None:
    """The dealer alone remembers it, surely once it has answered: its release may have
    left."""
    deployment = running(deploy)
    for role in SERVER_ROLES:
        back_up(deployment, role)
    deployment.strike(())
    late = deployment.clients[-1].name
    # While an owner is awaited: what comes last is asked for once both journals name
    # the attempt.
    deployment.hold(Order(late, "pause-before", "Servers.submit"))
    deployment.hold(Order("server-a", "pause-after", "DealerConversation.row_key"))
    done = deployment.done()
    # B first: A is paused, where B would note in its journal that A is gone.
    for role in reversed(SERVER_ROLES):
        put_back(deployment, role)
    for name in ("server-a", late):
        deployment.let_go(name)
    deployment.restart_the_dead()
    for role in SERVER_ROLES:
        asks = partial(error_of, deployment, role)
        deployment.wait_for(
            lambda: "a release of it may have left" in asks()  # noqa: B023
        )
    assert deployment.done() < done, "a version was released again that nobody allowed"
    version = deployment.operator(identifiers.Role.SERVER_A).status().version
    for role in SERVER_ROLES:
        deployment.operator(identifiers.Role(role)).allow("attempts", version)
    deployment.strike(())
    kill_all(deployment)
    for role in SERVER_ROLES:
        assert "was forgotten by both servers" in deployment.log(role)
        assert audit_ledger(url(deployment, role)).findings == ()
