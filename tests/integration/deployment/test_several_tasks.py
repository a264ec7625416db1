"""Several tasks on the same two servers and dealer: a process and a settings file each."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from tests.rig.commands import document
from tests.rig.crew import CHANGES
from tests.rig.tasks import logistic
from tests.rig.waiting import until
from tests.rig.warm import forked

from precad.cli.local_deployment import LocalDeployment
from precad.common.errors import PeerUnavailable
from precad.common.identifiers import ClientId, Role
from precad.common.task import Task
from precad.common.wire.calls import ServerStatus

NAMES = ("ward-1", "ward-2")
ROUNDS = {"wards": 4, "clinics": 2}
Start = Callable[[str], LocalDeployment]


@pytest.fixture
def start(tmp_path: Path, make_task: Callable[..., Task]) -> Iterator[Start]:
    """A task's parts, with the keys and the owners' accounts of the first."""
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(4, 127)).astype(np.float32), np.zeros(4, dtype=np.int64)

    with ExitStack() as stack:

        def started(name: str) -> LocalDeployment:
            own = {"name": name, "training.rounds": ROUNDS[name], "enrolment.min_clients": 2}
            changes = CHANGES | logistic(127) | own | {"enrolment.clients": 2}
            data = {ClientId(each): (x, y) for each in NAMES}
            made = LocalDeployment(tmp_path / name, make_task(8, changes), data, popen=forked)
            stack.enter_context(made)
            if name != "wards":
                shutil.rmtree(made.folder / "keys")
                (made.folder / "keys").symlink_to(tmp_path / "wards" / "keys")
            for owner in NAMES:
                with (made.folder / f"{owner}.toml").open("a", encoding="utf-8") as settings:
                    settings.write(f'account = "{tmp_path / "accounts" / owner}"\n')
            made.start_servers()
            return made

        yield started


def status(deployment: LocalDeployment, role: Role) -> ServerStatus | None:
    try:
        return deployment.operator(role).status()
    except PeerUnavailable:
        return None


def done(deployment: LocalDeployment) -> list[ServerStatus]:
    def over() -> list[ServerStatus]:
        said = [status(deployment, role) for role in (Role.SERVER_A, Role.SERVER_B)]
        found = [each for each in said if each is not None and each.phase == "done"]
        return found if len(found) == len(said) else []

    return until(over, lambda: deployment.log("server-a"), poll_s=0.3)


def test_two_tasks_train_side_by_side_and_an_owner_has_one_account(
    tmp_path: Path, start: Start
) -> None:
    wards, clinics = start("wards"), start("clinics")
    # One waits for its owners all along.
    clinics.start_clients()
    for each in done(clinics):
        assert (each.task_name, each.version, each.enrolled) == ("clinics", 2, 2)
        assert dict(each.participations) == dict.fromkeys(NAMES, ROUNDS["clinics"])
    said = until(lambda: status(wards, Role.SERVER_A), lambda: wards.log("server-a"), poll_s=0.3)
    assert said is not None
    assert (said.task_name, said.version, said.enrolled) == ("wards", 0, 0)

    wards.start_clients()
    assert len({each.model_digest for each in done(wards)}) == 1
    for deployment in (wards, clinics):
        assert set(deployment.wait(NAMES, 60.0).values()) == {0}
        # Each server has a ledger for each task, and an owner one account for all.
        view = document("ledger", "show", deployment.folder / "state" / "server-a")
        assert view["totals"]["participations"] == 2 * deployment.task.training.rounds
    account = document("ledger", "mine", tmp_path / "accounts" / NAMES[0])
    assert sorted(each["versions"] for each in account["tasks"]) == sorted(ROUNDS.values())
    assert account["epsilon"] > max(each["epsilon"] for each in account["tasks"])
