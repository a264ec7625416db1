"""Owners that train by themselves join real servers: the owner is what is protected."""

import numpy as np
from tests.integration.deployment.conftest import Deploy
from tests.rig.commands import document, precad, said
from tests.rig.waiting import DEADLINE_S

from precad.cli.local_deployment import LINGER_S
from precad.common.identifiers import ClientId
from precad.common.model import load_model

ROUNDS = 2
OWNERS = ("ward-1", "ward-2", "ward-3")


def test_owners_train_by_themselves_and_every_statement_is_of_an_owner(
    deploy: Deploy,
) -> None:
    generator = np.random.default_rng(5)
    data = {}
    for number, name in enumerate(OWNERS):
        x = generator.normal(size=(8 + 20 * number, 3)).astype(np.float32)
        data[ClientId(name)] = x, (x.sum(axis=1) > 0).astype(np.int64)
    changes = {
        "local": {"epochs": 2, "learning_rate": 0.2, "batch_size": 6},
        "privacy.record_clip": 0.5,
        "privacy.client_clip": 0.5,
        "privacy.record_rate": 1.0,
        "privacy.client_rate": 1.0,
        "training.rounds": ROUNDS,
        "enrolment.max_expected_records": 100.0,
        "enrolment.planned_units": len(OWNERS),
    }
    with deploy(changes, len(OWNERS), data, linger_s=LINGER_S) as deployment:
        task = deployment.folder / "task.toml"
        settings = deployment.folder / f"{OWNERS[0]}.toml"
        found = precad("doctor", "--config", settings).stdout
        print(found)
        print(said("task", "show", task))
        print(said("task", "check", task))
        deployment.start_servers()
        deployment.start_clients()
        assert deployment.wait(OWNERS, DEADLINE_S) == dict.fromkeys(OWNERS, 0)
        print(deployment.log(OWNERS[0]))
        deployment.stop()
        state = deployment.folder / "state"
        ledger = document("ledger", "show", state / "server-a")
        own = document("ledger", "mine", state / OWNERS[0])
        print(ledger, own)
        print(said("account", "--task", task))
        report = deployment.folder / "report.html"
        print(said("report", state / "server-a", "--out", report))
        import re
        print(re.sub(r"<style.*?</style>|<svg.*?</svg>|<[^>]+>", " ", report.read_text(), flags=re.S))
        print(said("plan", "--task", task))
        print(said("audit", "--help")[:200])
        model = load_model(state / OWNERS[0] / "model.safetensors", deployment.task)
        assert model.version == ROUNDS
        raise AssertionError
