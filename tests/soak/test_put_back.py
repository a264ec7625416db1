"""Real processes whose databases are put back, and that wait for their operators.

On the first version ledgers of 5 and 8 entries were both called sound by `ledger verify`; both put
back had 3 and 3 for 6 true ones, and the dealer dealt the same masks again. The same by hundreds
in simulated time: `tests/faults/test_random_schedules.py`.
"""

import re
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
from tests.faults.process_invariants import kill_all
from tests.faults.processes import ENDLESS, SERVER_ROLES, FaultyDeployment, Forks, Order

from precad.aggregator.store import audit_ledger, compare_ledgers, read_training
from precad.common.errors import PeerUnavailable, PeerViolation
from precad.common.identifiers import Role


def give_word(deployment: FaultyDeployment) -> None:
    """Both servers' operators let the training go on wherever it asks them."""
    for role in map(Role, SERVER_ROLES):
        if found := re.search(r"precad allow (\S+) .*--version (\d+)", error_of(deployment, role)):
            for each in map(Role, SERVER_ROLES):
                # Whoever is being started again is asked the next time.
                with suppress(PeerUnavailable, PeerViolation):
                    deployment.operator(each).allow(found[1], int(found[2]))


@pytest.fixture
def deployment(tmp_path: Path, forks: Forks) -> Iterator[FaultyDeployment]:
    made = FaultyDeployment(tmp_path, forks, ENDLESS)
    made.start_all()
    made.strike(())
    yield made
    kill_all(made)


def state(deployment: FaultyDeployment, role: str) -> Path:
    return deployment.folder / "state" / role


def url(deployment: FaultyDeployment, role: str) -> str:
    return f"sqlite:///{state(deployment, role) / 'state.db'}"


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


@pytest.mark.parametrize("roles", [SERVER_ROLES[:1], SERVER_ROLES], ids=["a", "both"])
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
    deployment.restart_the_dead()

    def went_on() -> bool:
        # What was under way when both were put back may have left: they ask before they go on.
        give_word(deployment)
        return all(max(deployment.rounds(role)) > used + 2 for role in SERVER_ROLES)

    deployment.wait_for(went_on)
    for role in SERVER_ROLES:
        now = charged(deployment, role)
        assert all(now[client] >= count for client, count in before[role].items())
    kill_all(deployment)
    for role in roles:
        assert "in the ledger again" in deployment.log(role) or "in its ledger" in deployment.log(
            role
        )
    for role in SERVER_ROLES:
        assert audit_ledger(url(deployment, role)).findings == ()
    # But for the attempt that was under way when everybody was killed.
    differences = compare_ledgers(*(url(deployment, role) for role in SERVER_ROLES))
    assert len(differences) <= 1
    masks = [tuple(note["spent"]) for note in deployment.notes("server-a") if "spent" in note]
    assert len(masks) == len(set(masks)), "masks of one attempt were used twice"


def test_a_server_that_lost_its_disk_in_mid_release_goes_on_with_the_operators_word(
    deployment: FaultyDeployment,
) -> None:
    """State and journal are gone, without a copy, while the other may have sent its share."""
    role = SERVER_ROLES[0]
    deployment.order([Order(role, "after", "Attempts.sent")])
    deployment.wait_for(lambda: deployment.processes[role].poll() is not None)
    done = max(deployment.rounds(role))
    known = charged(deployment, role)
    shutil.rmtree(state(deployment, role))
    shutil.rmtree(state(deployment, f"{role}-journal"))
    deployment.restart_the_dead()
    deployment.wait_for(lambda: "write-off" in error_of(deployment, Role(role)))

    def went_on() -> bool:
        give_word(deployment)
        return all(max(deployment.rounds(each), default=0) > done + 2 for each in SERVER_ROLES)

    deployment.wait_for(went_on)
    kill_all(deployment)
    now = charged(deployment, role)
    assert all(now[client] >= count for client, count in known.items())
    for each in SERVER_ROLES:
        assert audit_ledger(url(deployment, each)).findings == ()


def error_of(deployment: FaultyDeployment, role: Role) -> str:
    """What the server says holds it up."""
    try:
        return deployment.operator(role).status(timeout_s=2.0).error
    except PeerUnavailable:
        # It is being started.
        return ""
