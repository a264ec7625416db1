"""The files under deploy/ say what the parts can use, and fit each other."""

import re
import subprocess
import sys
from difflib import ndiff
from pathlib import Path

import pytest

from precad.client.record_file import read_client_data
from precad.client.settings import JoinSettings
from precad.common.aggregator.settings import ServerASettings, ServerBSettings, ServerSettings
from precad.common.task import Task
from precad.dealer.process import DealerSettings
from precad.experiments.client_records import write_records
from precad.experiments.data import load

DEPLOY = Path(__file__).parents[2] / "deploy"
CLIENTS = ("client-1", "client-2", "client-3")


def test_every_part_finds_the_others_at_the_address_they_listen_on() -> None:
    dealer = DealerSettings.load(DEPLOY / "dealer.toml")
    a = ServerASettings.load(DEPLOY / "server-a.toml")
    b = ServerBSettings.load(DEPLOY / "server-b.toml")
    clients = [JoinSettings.load(DEPLOY / f"{name}.toml") for name in CLIENTS]

    def port(address: str) -> str:
        return address.rpartition(":")[2]

    assert {a.dealer, b.dealer} == {f"dealer:{port(dealer.listen)}"}
    assert a.server_b == f"server_b:{port(b.listen)}"
    assert {client.server_a for client in clients} == {f"server_a:{port(a.listen)}"}
    assert {client.server_b for client in clients} == {f"server_b:{port(b.listen)}"}
    assert tuple(client.client for client in clients) == CLIENTS


def test_the_clients_records_are_what_the_task_allows(tmp_path: Path) -> None:
    task = Task.load(DEPLOY / "task.toml")
    assert task.enrolment.clients == task.enrolment.min_clients == len(CLIENTS)
    paths = write_records("digits", len(CLIENTS), tmp_path)
    assert paths == [tmp_path / name / f"{name}.npz" for name in (*CLIENTS, "held-out")]
    *sizes, held_out = [len(read_client_data(path)[1]) for path in paths]
    assert held_out == len(load("digits").test_y)
    assert sum(sizes) == len(load("digits").train_y)
    assert max(sizes) * task.privacy.record_rate <= task.enrolment.max_expected_records


@pytest.mark.parametrize("server", ["a", "b"])
def test_with_a_database_a_server_has_the_same_settings_besides(server: str) -> None:
    kinds: dict[str, type[ServerSettings]] = {"a": ServerASettings, "b": ServerBSettings}
    plain, operating = (
        kinds[server].load(folder / f"server-{server}.toml").model_dump()
        for folder in (DEPLOY, DEPLOY / "compose")
    )
    differ = {name for name in plain if str(plain[name]) != str(operating[name])}
    paths = {"task", "identity", "state", "journal"}
    assert differ - paths == {"database", "metrics"}
    assert operating["database"] == f"postgresql+psycopg://precad@database_{server}/precad"
    for path in paths:
        assert operating[path].name == plain[path].name


def test_with_a_prometheus_the_dealer_has_the_same_settings_besides() -> None:
    plain, operating = (
        DealerSettings.load(folder / "dealer.toml").model_dump()
        for folder in (DEPLOY, DEPLOY / "compose")
    )
    differ = {name for name in plain if str(plain[name]) != str(operating[name])}
    assert differ == {"task", "identity", "metrics"}


@pytest.mark.parametrize("part", ["server-a", "server-b", "dealer"])
def test_a_part_s_prometheus_reads_it_where_it_listens_in_a_network_of_their_own(part: str) -> None:
    folder, short = DEPLOY / "compose", part.removeprefix("server-")
    settings = (folder / f"{part}.toml").read_text()
    metrics = re.search(r'^metrics = "(.+):(\d+)"$', settings, re.MULTILINE)
    assert metrics is not None
    scraped = (folder / f"prometheus-{short}.yml").read_text()
    assert f'targets: ["{metrics[1]}:{metrics[2]}"]' in scraped
    compose = (folder / "operating.yml").read_text()
    network = metrics[1]
    assert compose.count(f"{network}: {{aliases: [{network}]}}") == 1
    assert compose.count(f"networks: [{network}]") == 1
    assert f"  {network}: {{internal: true}}" in compose
    assert f"./deploy/compose/prometheus-{short}.yml:/etc/prometheus/prometheus.yml:ro" in compose
    assert f"./deploy/compose/{part}.toml:/precad/settings.toml:ro" in compose


@pytest.mark.parametrize(
    ("part", "port"), [("server-a", 7311), ("server-b", 7312), ("dealer", 7313)]
)
def test_a_manifest_of_several_tasks_is_the_one_of_one_and_what_is_marked(
    part: str, port: int
) -> None:
    folder = DEPLOY / "kubernetes"
    one, several = (
        re.sub(r"\A(#.*\n)+", "", (place / f"{part}.yml").read_text()).splitlines()
        for place in (folder, folder / "several-tasks")
    )
    added = [line for line in ndiff(one, several) if line.startswith("+ ")]
    gone = [line for line in ndiff(one, several) if line.startswith("- ")]
    mount = "/precad/clinics/task.toml"
    policy = "ports: [{protocol: TCP, port: grpc}"
    assert [line[2:].strip() for line in gone] == [f"- {policy}]"]
    assert [line[2:].strip().removesuffix("  # further") for line in added] == [
        f"- {{name: grpc-clinics, port: {port}, targetPort: grpc-clinics}}",
        f"- {policy}, {{protocol: TCP, port: grpc-clinics}}]",
        f"- {{name: grpc-clinics, containerPort: {port}}}",
        "# further",
        # Where the kit's table has it.
        f"- {{name: settings, mountPath: {mount}, subPath: clinics.toml, readOnly: true}}",
    ]


def test_an_image_takes_crypten_without_what_it_asks_for_and_never_loads() -> None:
    listed = {
        part: subprocess.run(
            [sys.executable, DEPLOY / "requirements.py", *part, "server", "postgres"],
            input=(DEPLOY.parent / "pyproject.toml").read_text(),
            capture_output=True,
            text=True,
            check=True,
        ).stdout.splitlines()
        for part in ((), ("--bare",))
    }
    assert listed["--bare",] == ["crypten==0.4.1"]
    names = {re.split(r"[^\w-]", line)[0] for line in listed[()]}
    assert {"torch", "onnx", "omegaconf", "pyyaml", "psycopg", "sqlalchemy"} <= names
    assert not names & {"crypten", "sklearn", "torchvision", "pandas", "tensorboard"}


@pytest.mark.parametrize("name", CLIENTS)
def test_a_client_reads_the_file_that_is_written_for_it(name: str) -> None:
    settings = JoinSettings.load(DEPLOY / f"{name}.toml")
    assert settings.data == DEPLOY / "records" / f"{name}.npz"
