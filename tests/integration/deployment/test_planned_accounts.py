"""A question and a training on one account with a plan, by real servers, in any order."""

from pathlib import Path

import numpy as np
import pytest
from examples.demo.local_processes import LocalDeployment
from tests.integration.deployment.conftest import set_in
from tests.rig.commands import document
from tests.rig.crew import CHANGES
from tests.rig.questions import asking, ward, write_csv
from tests.rig.tasks import logistic, task_with
from tests.rig.waiting import DEADLINE_S
from tests.rig.warm import forked

from precad.client.account_file import ACCOUNT_FILE
from precad.client.account_plan import PlanLimit
from precad.client.data_set_account import Account
from precad.client.own_account import OwnAccount
from precad.common.errors import Misconfiguration
from precad.common.identifiers import ClientId
from precad.common.task import Task

NAMES = ("ward-1", "ward-2")
ROUNDS = 6
QUESTION = asking(
    changes={"noise_multiplier": 7.0, "delta": 1e-5},
    enrolment={"clients": 2, "max_expected_records": 1000},
)
TRAINING = task_with(
    logistic(3)
    | CHANGES
    | {
        "validation": "proof",
        "training.rounds": ROUNDS,
        "enrolment.clients": 2,
        "enrolment.min_clients": 2,
        "privacy.noise_multiplier": 1.0,
        "privacy.record_rate": 0.05,
        "privacy.client_rate": 1.0,
        "privacy.delta": 1e-5,
    }
)
PLAN = f"""
delta = 1e-5
purse = 0.1429

[[training]]
noise_multiplier = 1.0
record_rate = 0.05
rounds = {ROUNDS}
"""


@pytest.mark.parametrize("order", [(QUESTION, TRAINING), (TRAINING, QUESTION)])
def test_a_question_and_a_training_have_all_their_rounds_in_either_order(
    order: tuple[Task, Task], tmp_path: Path
) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text(PLAN, encoding="utf-8")
    promised = PlanLimit.load(plan)
    # Without it the same limit ends with the first of both.
    without = tmp_path / "without.log"
    first, second = order
    rate = first.mechanism.unit_rate
    OwnAccount(first, rate, promised.epsilon, without).charge(0)
    with pytest.raises(Misconfiguration, match="open an account with a plan"):
        OwnAccount(second, second.mechanism.unit_rate, None, without)
    x = np.random.default_rng(3).normal(size=(60, 3)).astype(np.float32)
    records = x, (x[:, 0] > 0).astype(np.int64)
    for task in order:
        deployment = LocalDeployment(
            tmp_path / task.name,
            task,
            {ClientId(name): records for name in NAMES},
            popen=forked,
        )
        for number, name in enumerate(NAMES):
            settings = {
                "account": str(tmp_path / "accounts" / name),
                "plan": str(plan),
                "epsilon_limit": promised.epsilon,
            }
            if task is QUESTION:
                table = write_csv(tmp_path / f"{name}.csv", ward(100, number))
                settings["data"] = str(table)
            set_in(deployment, name, **settings)
        with deployment:
            deployment.start_servers()
            deployment.start_clients()
            assert deployment.wait(NAMES, DEADLINE_S) == dict.fromkeys(NAMES, 0)
            for server in ("server-a", "server-b"):
                state = deployment.folder / "state" / server
                charged = document("ledger", "show", state)["totals"]
                assert charged["participations"] == 2 * task.mechanism.releases
    for name in NAMES:
        folder = tmp_path / "accounts" / name
        mine = document("ledger", "mine", folder)
        assert sorted(each["versions"] for each in mine["tasks"]) == [1, ROUNDS]
        assert mine["epsilon"] <= mine["limit"]["epsilon"] == promised.epsilon
        assert mine["limit"]["plan"]["trainings"][0]["rounds_left"] == 0
        assert Account(folder / ACCOUNT_FILE).limit == promised
