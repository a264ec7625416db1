"""Several tasks on the same two servers and dealer: a process and a settings file each."""

import shutil
from pathlib import Path

import numpy as np
from tests.integration.deployment.conftest import SERVERS, Deploy, set_in
from tests.rig.commands import document
from tests.rig.tasks import logistic
from tests.rig.waiting import DEADLINE_S

from precad.cli.local_deployment import LINGER_S, LocalDeployment
from precad.common.identifiers import ClientId, Role
from precad.common.wire.calls import ServerStatus

NAMES = ("ward-1", "ward-2")


def ended(deployment: LocalDeployment) -> list[ServerStatus]:
    """What both servers say once all owners have the final model."""
    assert set(deployment.wait(NAMES, DEADLINE_S).values()) == {0}
    return [deployment.operator(Role(name)).status() for name in SERVERS]


def test_two_tasks_train_side_by_side_and_an_owner_has_one_account(
    tmp_path: Path, deploy: Deploy
) -> None:
    x = np.random.default_rng(1).normal(size=(4, 127)).astype(np.float32)
    data = {ClientId(each): (x, np.zeros(4, dtype=np.int64)) for each in NAMES}

    def start(name: str, rounds: int) -> LocalDeployment:
        own = {"name": name, "training.rounds": rounds, "enrolment.min_clients": 2}
        return deploy(logistic(127) | own, data=data, linger_s=LINGER_S)

    wards, clinics = start("wards", 4), start("clinics", 2)
    # The keys and the owners' accounts of the first.
    shutil.rmtree(clinics.folder / "keys")
    (clinics.folder / "keys").symlink_to(wards.folder / "keys")
    for deployment in (wards, clinics):
        for owner in NAMES:
            set_in(deployment, owner, account=str(tmp_path / "accounts" / owner))
        deployment.start_servers()
    # One waits for its owners all along.
    clinics.start_clients()
    for each in ended(clinics):
        assert (each.task_name, each.version, each.enrolled) == ("clinics", 2, 2)
        assert dict(each.participations) == dict.fromkeys(NAMES, 2)
    said = wards.operator(Role.SERVER_A).status(wait=True, timeout_s=DEADLINE_S)
    assert (said.task_name, said.version, said.enrolled) == ("wards", 0, 0)

    wards.start_clients()
    assert len({each.model_digest for each in ended(wards)}) == 1
    for deployment in (wards, clinics):
        # Each server has a ledger for each task, and an owner one account for all.
        view = document("ledger", "show", deployment.folder / "state" / "server-a")
        assert view["totals"]["participations"] == 2 * deployment.task.training.rounds
    account = document("ledger", "mine", tmp_path / "accounts" / NAMES[0])
    assert sorted(each["versions"] for each in account["tasks"]) == [2, 4]
    assert account["epsilon"] > max(each["epsilon"] for each in account["tasks"])
