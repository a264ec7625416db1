"""The files under deploy/ and around the code say what the parts can use, and fit each other."""

import json
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
from tests.rig.commands import printed

from precad.aggregator.settings import ServerASettings, ServerBSettings, ServerSettings
from precad.client.owner_settings import JoinSettings
from precad.client.records.read_records import read_client_data
from precad.common.task import Task
from precad.dealer.process import DealerSettings
from precad.simulation.datasets import load

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
PROOF = DEPLOY / "proof"
CLIENTS = ("client-1", "client-2", "client-3")


def test_every_part_finds_the_others_at_the_address_they_listen_on() -> None:
    dealer = DealerSettings.load(DEPLOY / "dealer.toml")
    a = ServerASettings.load(DEPLOY / "server-a.toml")
    b = ServerBSettings.load(DEPLOY / "server-b.toml")
    clients = [JoinSettings.load(DEPLOY / f"{name}.toml") for name in CLIENTS]

    of_dealer, of_a, of_b = (
        f"{name}:{part.listen.rpartition(':')[2]}"
        for name, part in (("dealer", dealer), ("server_a", a), ("server_b", b))
    )
    assert (a.dealer, b.dealer, a.server_b) == (of_dealer, of_dealer, of_b)
    assert [(each.client, each.data, each.server_a, each.server_b) for each in clients] == [
        (name, DEPLOY / "records" / f"{name}.npz", of_a, of_b) for name in CLIENTS
    ]


def test_the_clients_records_are_what_the_task_allows(tmp_path: Path) -> None:
    task = Task.load(DEPLOY / "task.toml")
    assert task.enrolment.clients == task.enrolment.min_clients == len(CLIENTS)
    dealt = printed(DEPLOY / "records.py", "digits", "--clients", "3", "--output", tmp_path)
    paths = [Path(line) for line in dealt.splitlines()]
    assert paths == [tmp_path / name / f"{name}.npz" for name in (*CLIENTS, "held-out")]
    *sizes, held_out = [len(read_client_data(path)[1]) for path in paths]
    assert (held_out, sum(sizes)) == (len(load("digits").test_y), len(load("digits").train_y))
    assert max(sizes) * task.privacy.record_rate <= task.enrolment.max_expected_records


def test_without_a_dealer_task_and_settings_are_the_same_besides() -> None:
    own, shared = (Task.load(folder / "task.toml") for folder in (PROOF, DEPLOY))
    differ = {"validation", "projections"}
    assert own.model_dump(exclude=differ) == shared.model_dump(exclude=differ)
    assert not own.has_dealer
    for server in ("server-a", "server-b"):
        plain, proof = (
            tomllib.loads((of / f"{server}.toml").read_text()) for of in (DEPLOY, PROOF)
        )
        assert proof == {name: value for name, value in plain.items() if name != "dealer"}


def test_without_a_dealer_every_part_has_that_task_and_the_dealer_is_never_started() -> None:
    whole, proof = (
        dict(re.findall(r"^  ([\w-]+):(.*?)(?=^  [\w-]|^\w|\Z)", text, re.MULTILINE | re.DOTALL))
        for text in (text_of("docker-compose.yml"), text_of("deploy/compose/proof.yml"))
    )
    mount = "- ${TASK:-./deploy/proof/task.toml}:/precad/task.toml:ro\n"
    with_task = {name for name, text in whole.items() if "/precad/task.toml" in text}
    assert {name for name, text in proof.items() if mount in text or "*with_task" in text} == (
        with_task - {"dealer"}
    )
    assert proof["dealer"].split() == ["profiles:", "[dealer]"]
    assert not [name for name, text in whole.items() if "dealer: {condition" in text]


@pytest.mark.parametrize(
    ("part", "kind", "differ"),
    [
        ("server-a", ServerASettings, {"database", "metrics"}),
        ("server-b", ServerBSettings, {"database", "metrics"}),
        ("dealer", DealerSettings, {"metrics"}),
    ],
)
def test_with_databases_and_prometheus_parts_have_the_same_settings_besides(
    part: str, kind: type[DealerSettings | ServerSettings], differ: set[str]
) -> None:
    plain, operating = (
        kind.load(folder / f"{part}.toml").model_dump() for folder in (DEPLOY, DEPLOY / "compose")
    )
    paths = {name for name, value in plain.items() if isinstance(value, Path)}
    others = [name for name in plain if str(plain[name]) != str(operating[name])]
    assert set(others) - paths == differ
    assert all(operating[path].name == plain[path].name for path in paths)
    own = f"postgresql+psycopg://precad@database_{part[-1]}/precad?sslmode=disable"
    assert operating.get("database", own) == own


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
    for text in (
        f"{network}: {{aliases: [{network}]}}",
        f"networks: [{network}]",
        f"  {network}: {{internal: true}}",
        f"./deploy/compose/prometheus-{short}.yml:/etc/prometheus/prometheus.yml:ro",
        f"./deploy/compose/{part}.toml:/precad/settings.toml:ro",
    ):
        assert compose.count(text) == 1, text


@pytest.mark.parametrize("part", ["server-a", "server-b", "dealer"])
def test_a_further_tasks_manifest_is_the_first_ones_under_another_name(part: str) -> None:
    folder = DEPLOY / "kubernetes"
    first = (folder / f"{part}.yml").read_text()
    command = ["sed", "--file", str(folder / "further.sed"), str(folder / f"{part}.yml")]
    made = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    names = re.compile(rf"\b(?:name|serviceName|app): ({part}[\w-]*)")
    assert [name.replace("-clinics", "") for name in names.findall(made)] == names.findall(first)
    assert all(name.startswith(f"{part}-clinics") for name in names.findall(made))
    ports = [[int(port) for port in re.findall(r"ort: (\d+)", text)] for text in (first, made)]
    assert ports[1] == [each + 10 for each in ports[0]]
    # One copy of the keys, whatever the tasks.
    secret = re.compile(r"secretName: \S+")
    assert secret.findall(made) == secret.findall(first) != []
    # Where the kit's settings lie.
    assert made.count("--config, clinics/settings.toml]") == first.count("--config, settings.toml]")
    assert "mountPath: /precad/clinics/settings.toml" in made
    assert len(made.splitlines()) == len(first.splitlines())


def test_an_image_takes_crypten_without_what_it_asks_for_and_never_loads() -> None:
    listed = {
        part: printed(
            *(DEPLOY / "requirements.py", *part, "server", "postgres"),
            input=text_of("pyproject.toml"),
        ).splitlines()
        for part in ((), ("--bare",))
    }
    assert listed["--bare",] == ["crypten==0.4.1"]
    names = {re.split(r"[^\w-]", line)[0] for line in listed[()]}
    assert {"torch", "onnx", "omegaconf", "pyyaml", "psycopg", "sqlalchemy"} <= names
    assert not names & {"crypten", "sklearn", "torchvision", "pandas", "tensorboard"}


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_the_image_is_built_with_every_file_that_the_package_names() -> None:
    """Everything else is kept out of the build."""
    project = tomllib.loads(text_of("pyproject.toml"))["project"]
    let_in = {line[1:] for line in text_of(".dockerignore").splitlines() if line.startswith("!")}
    links = {path.name for path in (ROOT / "src" / "precad").iterdir() if path.is_dir()}
    files = {"pyproject.toml", "setup.py", "src", project["readme"], *project["license-files"]}
    files |= {"deploy/*.py"}
    assert let_in == files | (links - {"__pycache__"})


@pytest.mark.parametrize(
    "script", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.name
)
def test_a_notebooks_code_is_the_scripts_and_ran_without_an_error(script: Path) -> None:
    cells = re.split(r"^# %%.*\n", script.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    notebook = json.loads(script.with_suffix(".ipynb").read_text(encoding="utf-8"))
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert ["".join(cell["source"]) for cell in code] == [
        text
        for text in (cell.strip("\n") for cell in cells)
        if not all(line.startswith("#") for line in text.splitlines())
    ]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    kinds = {each["output_type"] for cell in code for each in cell["outputs"]}
    assert kinds <= {"stream", "display_data", "execute_result"}
    assert script.with_suffix(".ipynb").stat().st_size < 100_000
