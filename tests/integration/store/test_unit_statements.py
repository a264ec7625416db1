"""What every command says of a task's unit: its name, and the same ε everywhere.

Where the unit is a record, none speaks of persons or patients.
"""

import html
import json
import re
from pathlib import Path

import pytest
from tests.conftest import small_task
from tests.rig.commands import document, said
from tests.rig.documents import Document
from tests.rig.stores import A, enrolled, released

from precad.accounting.adversaries import Adversary, Run
from precad.accounting.exact import epsilon_spent
from precad.aggregator.store import open_store
from precad.certify.finished_runs import CertificateInputs
from precad.cli.report_html import page
from precad.cli.report_page import Report
from precad.cli.report_sources import gather
from precad.cli.task_description import written
from precad.client.own_account import OwnAccount
from precad.client.participation import TrainedModel
from precad.common.identifiers import ClientId, Role
from precad.common.model import initial_vector, model_digest
from precad.common.task import Task

ROUNDS = 3
PEOPLE = re.compile(r"\b(patient|person)s?\b", re.IGNORECASE)


def task_of(unit: str) -> Task:
    changes: Document = {
        "privacy.client_rate": 1.0,
        "training.rounds": ROUNDS,
        "name": "wards",
    }
    if unit != "record":
        changes["privacy.unit"] = unit
        changes["privacy.most_records_per_unit"] = 4
    return small_task(8, changes)


def inputs_of(task: Task) -> dict[str, object]:
    mechanism = task.mechanism
    return CertificateInputs(
        task_digest=str(task.digest),
        effective_record_clip=mechanism.sensitivity,
        rounds=ROUNDS,
        clients=3,
        protects=mechanism.unit,
        malicious_submission_soundness_bits=task.projections,
        record_clip=mechanism.unit_clip,
        client_clip=mechanism.owner_clip,
        record_rate=mechanism.unit_rate,
        client_rate=mechanism.owner_rate,
        noise_multiplier=mechanism.noise_multiplier,
        delta=task.privacy.delta,
    ).model_dump()


class Told:
    """All that is said of one finished training, and each place's ε of one unit."""

    def __init__(self, folder: Path, unit: str) -> None:
        task = task_of(unit)
        self.unit = unit
        self.file = folder / "task.toml"
        self.file.write_text(written(task, "A task."), encoding="utf-8")
        assert Task.load(self.file).digest == task.digest
        for role in (Role.SERVER_A, Role.SERVER_B):
            state = folder / "state" / role.value
            state.mkdir(parents=True)
            store = enrolled(
                open_store(f"sqlite:///{state}/state.db", task, role, None)
            )
            for number in range(ROUNDS):
                released(store, number, number)
            store.close()
        history = "round,accuracy\n3,0.8\n"
        (folder / "history.csv").write_text(history, encoding="utf-8")
        summary = {"accuracy": 0.8, "certificate_inputs": inputs_of(task)}
        (folder / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
        self.epsilons: dict[str, float] = {}
        self.texts: dict[str, str] = {}
        self._report(gather([str(folder)]))
        self._servers_and_plans(folder)
        self._owners(folder, task)

    def _report(self, report: Report) -> None:
        source = page(report)
        text = html.unescape(
            re.sub(r"<style>.*?</style>|<[^>]*>", " ", source, flags=re.DOTALL)
        )
        self.texts["report"] = " ".join(text.split())
        self.texts["report's labels"] = " ".join(
            re.findall(r'aria-label="([^"]*)"', source)
        )
        (first, *_) = report.guarantees
        assert first.protects == self.unit
        assert first.epsilon is not None
        self.epsilons["report"] = first.epsilon

    def _servers_and_plans(self, folder: Path) -> None:
        account = document(
            "account", "--task", self.file, "--participations", str(ROUNDS)
        )
        self.epsilons["account"] = exact(account["guarantees"])
        plan = document("plan", "--task", self.file)
        self.epsilons["plan"] = exact(plan["statements"])
        certified = document("certify", "loss", "--runs", folder, "--loss", "0.2")
        self.epsilons["certify"] = exact(certified["runs"]["joint_privacy_cost"])
        state = folder / "state" / "server-a"
        ledger = document("ledger", "show", state)
        assert ledger["unit"] == self.unit
        (row,) = (row for row in ledger["clients"] if row["client"] == A.name)
        self.epsilons["ledger"] = row["epsilon"]
        self.texts |= {
            "account": said("account", "--task", self.file, "--participations", "3"),
            "plan": said("plan", "--task", self.file),
            "certify": said(
                *("certify", "loss", "--runs", folder, "--loss", "0.2"),
                *("--unit", "record"),
            ),
            "ledger": said("ledger", "show", state),
            "task": said("task", "show", self.file),
        }

    def _owners(self, folder: Path, task: Task) -> None:
        account = folder / "participations.log"
        own = OwnAccount(task, task.mechanism.unit_rate, None, account, ClientId("w"))
        for version in range(ROUNDS):
            own.charge(version)
        self.epsilons["owner's account"] = own.epsilon()
        self.texts["owner's account"] = said("ledger", "mine", folder)
        theta = initial_vector(task.model)
        digest = model_digest(task.digest, ROUNDS, task.model.parameters, theta)
        model = TrainedModel(task=task, version=ROUNDS, theta=theta, digest=digest)
        path = folder / "model.safetensors"
        model.save(path)
        self.texts["model"] = path.read_bytes()[:4096].decode("utf-8", "ignore")


def exact(statements: list[Document]) -> float:
    """ε of one unit against one server."""
    (found, *_) = (
        each
        for each in statements
        if (each["adversary"], each["accountant"]) == ("one-server", "exact")
    )
    epsilon: float = found["epsilon"]
    return epsilon


@pytest.fixture(scope="module", params=["record", "patient"])
def told(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Told:
    return Told(tmp_path_factory.mktemp("told"), request.param)


def test_one_epsilon_stands_in_all_places(told: Told) -> None:
    task = Task.load(told.file)
    step = Run.of(task).step(Adversary.ONE_SERVER)
    by_hand = epsilon_spent(step, delta=task.privacy.delta, counts={0: ROUNDS})
    assert set(told.epsilons) == {
        "report",
        "account",
        "plan",
        "certify",
        "ledger",
        "owner's account",
    }
    assert told.epsilons == pytest.approx(dict.fromkeys(told.epsilons, by_hand))


def test_every_statement_names_the_unit_and_no_other(told: Told) -> None:
    for place, text in told.texts.items():
        assert re.search(rf"\b{told.unit}s?\b", text), (place, text)
        if told.unit == "record":
            assert not PEOPLE.search(text), (place, PEOPLE.search(text))
            continue
        # Records are spoken of as what a patient has, or what models are tried on.
        left = re.sub(
            r"(up to \d+|held-out|public|another's|with|the same) records\b"
            r"|most_records_per_unit|max_expected_records",
            "",
            text,
        )
        assert not re.search(r"\brecords?\b", left), (place, left)
