"""Real processes whose databases are put back, and that wait for their operators.

On the first version ledgers of 5 and 8 entries were both called sound by `ledger verify`; both put
back had 3 and 3 for 6 true ones, and the dealer dealt the same masks again.
"""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from tests.faults.process_invariants import kill_all
from tests.faults.processes import SERVER_ROLES, FaultyDeployment, Order
from tests.soak.conftest import Deploy
from tests.soak.doors import until

from precad.aggregator.store import audit_ledger, compare_ledgers, read_training
from precad.common.errors import PeerUnavailable
from precad.common.identifiers import Role

BOTH = tuple(map(Role, SERVER_ROLES))


@pytest.fixture
def deployment(deploy: Deploy) -> FaultyDeployment:
    made = deploy()
    made.start_all()
    made.strike(())
    return made


def state(deployment: FaultyDeployment, role: str) -> Path:
    return deployment.folder / "state" / role


def url(deployment: FaultyDeployment, role: str) -> str:
    return f"sqlite:///{state(deployment, role) / 'state.db'}"


def require_sound(deployment: FaultyDeployment, says: str = "") -> None:
    """What both servers keep; each of them has said so much."""
    kill_all(deployment)
    for role in SERVER_ROLES:
        assert says in deployment.log(role)
        assert audit_ledger(url(deployment, role)).findings == ()


def error_of(deployment: FaultyDeployment, role: Role) -> str:
    try:
        return deployment.operator(role).status(timeout_s=2.0).error
    except PeerUnavailable:
        # It is being started.
        return ""


def back_up(deployment: FaultyDeployment, role: str) -> None:
    copy = deployment.folder / f"{role}.copy"
    copy.mkdir()
    with (
        closing(sqlite3.connect(state(deployment, role) / "state.db")) as database,
        closing(sqlite3.connect(copy / "state.db")) as target,
    ):
        database.backup(target)


def put_back(deployment: FaultyDeployment, role: str) -> None:
    """The server dies; its database comes back as it was, beside a newer model."""
    process = deployment.processes[role]
    process.kill()
    process.wait()
    for name in ("state.db", "state.db-wal", "state.db-shm"):
        (state(deployment, role) / name).unlink(missing_ok=True)
    shutil.copy(deployment.folder / f"{role}.copy" / "state.db", state(deployment, role))


def charged(deployment: FaultyDeployment, role: str) -> dict[str, int]:
    view = read_training(url(deployment, role))
    return {each.client.name: each.participations for each in view.clients}


@pytest.mark.parametrize(
    "roles", [("server-a",), ("server-b",), SERVER_ROLES], ids=["a", "b", "both"]
)
def test_a_database_that_is_put_back_learns_what_it_forgot(
    deployment: FaultyDeployment, roles: tuple[str, ...]
) -> None:
    for role in roles:
        back_up(deployment, role)
    deployment.strike(())
    deployment.strike(())
    before = {role: charged(deployment, role) for role in SERVER_ROLES}
    used = max(deployment.rounds("server-a"))
    for role in roles:
        put_back(deployment, role)
    forgotten = {role: charged(deployment, role) for role in roles}
    assert all(forgotten[role] != before[role] for role in roles), "nothing was forgotten"
    # What was under way when both were put back may have left: they ask before they go on.
    until(deployment, lambda: min(max(deployment.rounds(r)) for r in SERVER_ROLES) > used + 2)
    for role in SERVER_ROLES:
        now = charged(deployment, role)
        assert all(now[client] >= count for client, count in before[role].items())
    require_sound(deployment)
    for role in roles:
        log = deployment.log(role)
        assert "in the ledger again" in log or "in its ledger" in log
    # But for the attempt that was under way when everybody was killed.
    assert len(compare_ledgers(*(url(deployment, role) for role in SERVER_ROLES))) <= 1
    masks = [tuple(note["spent"]) for note in deployment.notes("server-a") if "spent" in note]
    assert len(masks) == len(set(masks)), "masks of one attempt were used twice"


def test_an_attempt_that_both_forgot_waits_for_the_operators(deployment: FaultyDeployment) -> None:
    """The dealer alone remembers it, surely once it has answered: its release may have left."""
    for role in SERVER_ROLES:
        back_up(deployment, role)
    deployment.strike(())
    late = deployment.clients[-1].name
    # While an owner is awaited: what comes last is asked for once both journals name the attempt.
    deployment.hold(Order(late, "pause-before", "Servers.submit"))
    deployment.hold(Order("server-a", "pause-after", "DealerConversation.row_key"))
    done = deployment.done()
    # B first: A is paused, where B would note in its journal that A is gone.
    for role in reversed(SERVER_ROLES):
        put_back(deployment, role)
    for name in ("server-a", late):
        deployment.let_go(name)
    deployment.restart_the_dead()
    for server in BOTH:
        deployment.wait_for(
            lambda: "a release of it may have left" in error_of(deployment, server)  # noqa: B023
        )
    assert deployment.done() < done, "a version was released again that nobody allowed"
    version = deployment.operator(Role.SERVER_A).status().version
    for server in BOTH:
        deployment.operator(server).allow("attempts", version)
    deployment.strike(())
    require_sound(deployment, "was forgotten by both servers")
