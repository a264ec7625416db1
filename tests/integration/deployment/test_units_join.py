"""Owners whose task protects patients join real servers: a table and a .npz file."""

import numpy as np
from examples.demo.local_processes import LINGER_S
from tests.integration.deployment.conftest import Deploy, set_in
from tests.rig.commands import document, precad
from tests.rig.waiting import DEADLINE_S

from precad.aggregator.store import read_training
from precad.common.identifiers import ClientId
from precad.common.model import load_model

ROUNDS = 2
PATIENTS = 12
TABLE = "ward-table"
ARRAYS = "ward-arrays"


def test_owners_enrol_and_are_charged_by_patients_and_one_without_a_column_stays_out(
    deploy: Deploy,
) -> None:
    generator = np.random.default_rng(5)
    patients = np.repeat(np.arange(PATIENTS), generator.integers(1, 8, PATIENTS))
    x = generator.normal(size=(len(patients), 3)).astype(np.float32)
    y = (x.sum(axis=1) > 0).astype(np.int64)
    data = {ClientId(name): (x, y) for name in (TABLE, ARRAYS)}
    changes = {
        "privacy.unit": "patient",
        "privacy.most_records_per_unit": 3,
        "privacy.client_rate": 1.0,
        "training.rounds": ROUNDS,
    }
    with deploy(changes, data=data, linger_s=LINGER_S) as deployment:
        records = deployment.folder / "records"
        np.savez(records / f"{ARRAYS}.npz", x=x, y=y, units=patients)
        rows = [
            f"{a},{b},{c},{label},p-{who}"
            for (a, b, c), label, who in zip(x, y, patients, strict=True)
        ]
        table = records / "ward.csv"
        table.write_text("\n".join(["a,b,c,label,patient", *rows]), encoding="utf-8")
        columns = {"inputs": ["a", "b", "c"], "target": "label"}
        settings = set_in(deployment, TABLE, data="records/ward.csv", columns=columns)
        refused = precad("doctor", "--config", settings)
        assert "columns.unit" in refused.stdout
        assert "protects a patient" in refused.stdout
        columns_with_unit = columns | {"unit": "patient"}
        set_in(deployment, TABLE, columns=columns_with_unit)
        found = precad("doctor", "--config", settings).stdout
        assert f"{len(patients)} records of {PATIENTS} patients, each float32" in found
        deployment.start_servers()
        deployment.start_clients()
        assert deployment.wait((TABLE, ARRAYS), DEADLINE_S) == {TABLE: 0, ARRAYS: 0}
        log = deployment.log(TABLE)
        assert "exact patient-level ε over all tasks" in log
        deployment.stop()
        task = deployment.task
        state = deployment.folder / "state"
        url = f"sqlite:///{state / 'server-a' / 'state.db'}"
        training = read_training(url)
        # Both enrolled with their patients, and servers and owners charge alike.
        assert sum(claim.records for claim in training.claims) == 2 * PATIENTS
        ledger = document("ledger", "show", state / "server-a")
        own = document("ledger", "mine", state / TABLE)
        rows_of_ledger = {row["client"]: row for row in ledger["clients"]}
        assert rows_of_ledger[TABLE]["participations"] == ROUNDS
        assert (ledger["unit"], own["unit"]) == ("patient", "patient")
        assert own["epsilon"] == rows_of_ledger[TABLE]["epsilon"]
        model = load_model(state / TABLE / "model.safetensors", task)
        assert model.version == ROUNDS
