"""The consortium of docs/ceremony.md, as that page leaves it, in a long training."""

import random
from collections.abc import Sequence
from pathlib import Path

from tests.rig.organisations import Organisation
from tests.rig.task_files import task_to_toml
from tests.rig.tasks import logistic, task_with

from precad.cli.kit import IDENTITY, TASK, Consortium
from precad.cli.local_deployment import to_toml
from precad.common.identifiers import Role
from precad.common.identity.deployment_keys import Deployment
from precad.common.identity.party_certificate import Principal
from precad.common.task import Task

PARTIES = {
    "North": (Principal(Role.SERVER_A, "server-a"), Principal.client("north-ward")),
    "South": (Principal(Role.SERVER_B, "server-b"), Principal.client("south-ward")),
    "West": (
        Principal(Role.DEALER, "dealer"),
        Principal.client("west-ward"),
        Principal(Role.OPERATOR, "operator"),
    ),
}
LONG = 5_000
START = (
    ("West", "precad serve dealer --config dealer/settings.toml &"),
    ("South", "precad serve b --config server-b/settings.toml &"),
    ("North", "precad serve a --config server-a/settings.toml &"),
    ("North", "precad join --wait 48 --config north-ward/settings.toml &"),
    ("South", "precad join --wait 48 --config south-ward/settings.toml &"),
    ("West", "precad join --wait 48 --config west-ward/settings.toml &"),
)  # As the ceremony's last step, with owners that outlast stops
CONSORTIUM = """
task = "task.toml"
server_a = "north.example:7301"
server_b = "south.example:7302"
dealer = "west.example:7303"

[owners]
data = "records.csv"
columns = { inputs = ["age", "pressure"], target = "readmitted" }
"""
RECORDS = 100


def task() -> Task:
    """Six parameters; a round takes a second: commands get the processor too."""
    deadlines = {
        "enrol": 120.0,
        "work": 1.0,
        "collect": 10.0,
        "rejoin": 1.0,
        "peer": 10.0,
    }
    changes = logistic(2) | {"name": "runbooks", "privacy.record_rate": 0.1}
    changes |= {"training": {"learning_rate": 0.1, "rounds": LONG}}
    changes |= {
        "enrolment": {"clients": 3, "min_clients": 3, "max_expected_records": 30.0}
    }
    return task_with(changes | {"deadlines": deadlines | {"outage": 240.0}})


def set_up(organisations: dict[str, Organisation]) -> None:
    west = organisations["West"]
    west.write("task.toml", task_to_toml(task()))
    west.write("consortium.toml", CONSORTIUM)
    agreed = Consortium.load(west.folder / "consortium.toml")
    root = Deployment.create(west.folder / "root")
    for name, parties in PARTIES.items():
        organisation = organisations[name]
        for party in parties:
            root.issue(party, out=organisation.folder / party.name / IDENTITY)
            if party.role is not Role.OPERATOR:
                organisation.write(
                    f"{party.name}/settings.toml", to_toml(agreed.settings(party))
                )
                organisation.write(
                    f"{party.name}/{TASK}", agreed.task.read_text("utf-8")
                )
            if party.role is Role.CLIENT:
                for folder in (organisation.folder, organisation.folder / party.name):
                    write_records(
                        folder / "records.csv",
                        party.name,
                        RECORDS,
                        "01",
                        (0, 1),
                        (0, 1),
                    )
    for name, command in START:
        organisations[name].type(command)


def write_records(
    path: Path,
    seed: object,
    count: int,
    labels: Sequence[str],
    *scales: tuple[float, float],
) -> None:
    """With means and deviations of age and pressure."""
    rng, lines = random.Random(str(seed)), ["age,pressure,readmitted"]
    for _ in range(count):
        drawn = [rng.gauss(0, 1) for _ in scales]
        cells = [f"{m + s * z:.3f}" for (m, s), z in zip(scales, drawn, strict=True)]
        lines.append(",".join([*cells, labels[sum(drawn) > 0]]))
    path.write_text("\n".join([*lines, ""]), encoding="utf-8")
