"""Files under deploy/ and around the code say what the parts can use and really show,
and fit."""

import json
import os
import re
import shutil
import stat
import subprocess
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from cryptography import x509
from prometheus_client.core import Metric
from tests.conftest import small_task
from tests.rig.aggregators import session_of
from tests.rig.commands import printed
from tests.rig.documents import Document
from tests.rig.keys import identity

from precad.aggregator.enrol.register import Register
from precad.aggregator.rpc.server_metrics import Metrics
from precad.aggregator.settings import ServerASettings, ServerBSettings, ServerSettings
from precad.aggregator.store import open_store
from precad.client.owner_settings import JoinSettings
from precad.client.records.read_records import read_client_data
from precad.common.identifiers import Role
from precad.common.identity.credentials import Identity
from precad.common.identity.deployment_keys import Deployment, create_local_keys
from precad.common.identity.party_certificate import Principal
from precad.common.task import Task
from precad.common.wire.metrics_page import PREFIX, build_info
from precad.dealer.dealer_role import DealerRole
from precad.dealer.dealing_service import DealingService
from precad.dealer.process import DealerSettings, collect
from precad.simulation.datasets import load

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
PROOF = DEPLOY / "proof"
CLIENTS = ("client-1", "client-2", "client-3")
PARTS = ("server-a", "server-b", "dealer")


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("keys")
    create_local_keys(directory, [])
    return directory


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_every_part_finds_the_others_at_the_address_they_listen_on() -> None:
    a = ServerASettings.load(DEPLOY / "server-a.toml")
    b = ServerBSettings.load(DEPLOY / "server-b.toml")
    dealer = DealerSettings.load(DEPLOY / "dealer.toml")
    clients = [JoinSettings.load(DEPLOY / f"{name}.toml") for name in CLIENTS]
    listening = (("dealer", dealer), ("server_a", a), ("server_b", b))
    of_dealer, of_a, of_b = (
        f"{n}:{part.listen.rpartition(':')[2]}" for n, part in listening
    )
    assert (a.dealer, b.dealer, a.server_b) == (of_dealer, of_dealer, of_b)
    assert [
        (each.client, each.data, each.server_a, each.server_b) for each in clients
    ] == [(name, DEPLOY / "records" / f"{name}.npz", of_a, of_b) for name in CLIENTS]


def test_the_clients_records_are_what_the_task_allows(tmp_path: Path) -> None:
    task = Task.load(DEPLOY / "task.toml")
    assert task.enrolment.clients == task.enrolment.min_clients == len(CLIENTS)
    dealt = printed(
        DEPLOY / "records.py", "digits", "--clients", "3", "--output", tmp_path
    )
    paths = [Path(line) for line in dealt.splitlines()]
    assert paths == [tmp_path / name / f"{name}.npz" for name in (*CLIENTS, "held-out")]
    *sizes, held_out = [len(read_client_data(path)[1]) for path in paths]
    assert (held_out, sum(sizes)) == (
        len(load("digits").test_y),
        len(load("digits").train_y),
    )
    assert max(sizes) * task.privacy.record_rate <= task.enrolment.max_expected_records


def test_without_a_dealer_all_else_is_the_same_and_the_dealer_is_never_started() -> (
    None
):
    own, shared = (Task.load(folder / "task.toml") for folder in (PROOF, DEPLOY))
    differ = {"validation", "projections"}
    assert own.model_dump(exclude=differ) == shared.model_dump(exclude=differ)
    assert not own.has_dealer
    for server in ("server-a.toml", "server-b.toml"):
        plain, alone = (
            tomllib.loads((of / server).read_text()) for of in (DEPLOY, PROOF)
        )
        assert plain.pop("dealer")
        assert alone == plain
    whole, proof = (
        dict(
            re.findall(
                r"^  ([\w-]+):(.*?)(?=^  [\w-]|^\w|\Z)", text, re.MULTILINE | re.DOTALL
            )
        )
        for text in (text_of("docker-compose.yml"), text_of("deploy/compose/proof.yml"))
    )
    mount = "- ${TASK:-./deploy/proof/task.toml}:/precad/task.toml:ro\n"
    with_task = {name for name, text in whole.items() if "/precad/task.toml" in text}
    assert {
        name for name, text in proof.items() if mount in text or "*with_task" in text
    } == (with_task - {"dealer"})
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
        kind.load(folder / f"{part}.toml").model_dump()
        for folder in (DEPLOY, DEPLOY / "compose")
    )
    paths = {name for name, value in plain.items() if isinstance(value, Path)}
    others = [name for name in plain if str(plain[name]) != str(operating[name])]
    assert set(others) - paths == differ
    assert all(operating[path].name == plain[path].name for path in paths)
    own = f"postgresql+psycopg://precad@database_{part[-1]}/precad?sslmode=disable"
    assert operating.get("database", own) == own


@pytest.mark.parametrize("part", PARTS)
def test_a_part_s_prometheus_reads_it_where_it_listens_in_a_network_of_their_own(
    part: str,
) -> None:
    folder, short = DEPLOY / "compose", part.removeprefix("server-")
    metrics = tomllib.loads((folder / f"{part}.toml").read_text())["metrics"]
    assert f'targets: ["{metrics}"]' in (folder / f"prometheus-{short}.yml").read_text()
    compose, network = (
        (folder / "operating.yml").read_text(),
        metrics.rpartition(":")[0],
    )
    for text in (
        f"{network}: {{aliases: [{network}]}}",
        f"networks: [{network}]",
        f"  {network}: {{internal: true}}",
        f"./deploy/compose/prometheus-{short}.yml:/etc/prometheus/prometheus.yml:ro",
        f"./deploy/compose/{part}.toml:/precad/settings.toml:ro",
    ):
        assert compose.count(text) == 1, text


@pytest.mark.parametrize("part", PARTS)
def test_a_further_tasks_manifest_is_the_first_ones_under_another_name(
    part: str,
) -> None:
    folder = DEPLOY / "kubernetes"
    first = (folder / f"{part}.yml").read_text()
    command = ["sed", "--file", f"{folder / 'further.sed'}", f"{folder / part}.yml"]
    made = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    names = re.compile(rf"\b(?:name|serviceName|app): ({part}[\w-]*)")
    assert [
        name.replace("-clinics", "") for name in names.findall(made)
    ] == names.findall(first)
    assert all(name.startswith(f"{part}-clinics") for name in names.findall(made))
    ports = [
        [int(port) for port in re.findall(r"ort: (7\d+)", text)]
        for text in (first, made)
    ]
    assert ports[1] == [each + 10 for each in ports[0]]
    # One copy of the keys, whatever the tasks.
    secret = re.compile(r"secretName: \S+")
    assert secret.findall(made) == secret.findall(first) != []
    # Where the kit's settings lie.
    assert made.count("--config, clinics/settings.toml]") == first.count(
        "--config, settings.toml]"
    )
    assert "mountPath: /precad/clinics/settings.toml" in made
    assert len(made.splitlines()) == len(first.splitlines())


def resources_of(part: str) -> dict[str, Document]:
    """The first of each kind in a part's manifest."""
    text = text_of(f"deploy/kubernetes/{part}.yml")
    made = list(yaml.safe_load_all(text))
    return {each["kind"]: each for each in reversed(made)}


@pytest.mark.parametrize("part", PARTS)
def test_what_is_renewed_in_a_secret_reaches_a_running_pod(
    part: str, keys: Path, tmp_path: Path
) -> None:
    """The manifest's own script, over a folder that changes as the kubelet changes it:
    by a link to the newest one."""
    pod = resources_of(part)["StatefulSet"]["spec"]["template"]["spec"]
    _, copier = pod["containers"]
    secret = tmp_path / "secret"
    copied = tmp_path / "keys"
    secret.mkdir()
    copied.mkdir()
    script = copier["command"][-1].replace("/secret/", f"{secret}/")
    script = script.replace("/keys/", f"{copied}/")
    # One look instead of one every 30 s.
    script = script.replace("sleep 30 & wait $!", "exit 0")
    assert "exit 0" in script.splitlines()[-2]

    def look() -> None:
        command = [*copier["command"][:-1], script]
        subprocess.run(command, check=True, capture_output=True)

    def mount(source: Path, name: str) -> None:
        shutil.copytree(source, secret / name)
        for path in (secret / name).iterdir():
            # As fsGroup makes them, which precad refuses.
            path.chmod(0o440)
        link = secret / "..data"
        link.with_name("..new").symlink_to(name)
        link.with_name("..new").rename(link)
        for path in (secret / name).iterdir():
            if not (secret / path.name).is_symlink():
                (secret / path.name).symlink_to(f"..data/{path.name}")

    root = Path(shutil.copytree(keys, tmp_path / "root"))
    mount(root / part, "..first")
    look()
    before = Identity.load(copied)
    Deployment.open(root).renew(before.principal, revoke_old=True)
    mount(root / part, "..second")
    # A minute later: file systems keep times of unlike precision.
    later = time.time() + 60
    for path in (secret / "..second").iterdir():
        os.utime(path, (later, later))
    look()
    after = Identity.load(copied)
    assert (after.principal, after.cert == before.cert) == (before.principal, False)
    # The running process looks at the file by itself.
    old = x509.load_pem_x509_certificate(before.cert)
    assert before.revocations.revokes(old)
    assert {stat.S_IMODE(path.stat().st_mode) for path in copied.iterdir()} == {0o400}


@pytest.mark.parametrize("part", PARTS)
def test_a_pod_calls_and_is_called_by_whom_its_part_needs(part: str) -> None:
    resources = resources_of(part)
    policy = resources["NetworkPolicy"]["spec"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    called = {
        port["port"]
        for rule in policy["egress"]
        for port in rule["ports"]
        if rule["to"]
    }
    wanted = {"server-a": {53, 7302, 7303}, "server-b": {53, 7303}, "dealer": set()}
    assert called == wanted[part]
    grpc_port, metrics = policy["ingress"]
    assert [rule["ports"][0]["port"] for rule in (grpc_port, metrics)] == [
        "grpc",
        "metrics",
    ]
    assert metrics["from"]
    assert resources["PodDisruptionBudget"]["spec"]["minAvailable"] == 1
    containers = resources["StatefulSet"]["spec"]["template"]["spec"]["containers"]
    named = yaml.safe_load(text_of("deploy/kubernetes/kustomization.yaml"))
    assert {each["image"] for each in containers} <= {
        image["name"] for image in named["images"]
    }


def test_an_image_takes_crypten_without_what_it_asks_for_and_never_loads() -> None:
    project, program = text_of("pyproject.toml"), DEPLOY / "requirements.py"
    assert (
        printed(program, "--bare", "server", "postgres", input=project)
        == "crypten==0.4.1\n"
    )
    listed = printed(program, "server", "postgres", input=project).splitlines()
    names = {re.split(r"[^\w-]", line)[0] for line in listed}
    assert {"torch", "onnx", "omegaconf", "pyyaml", "psycopg", "sqlalchemy"} <= names
    assert not names & {"crypten", "sklearn", "torchvision", "pandas", "tensorboard"}


def test_the_image_is_built_with_every_file_that_the_package_names_and_no_other() -> (
    None
):
    project = tomllib.loads(text_of("pyproject.toml"))["project"]
    let_in = {
        line[1:]
        for line in text_of(".dockerignore").splitlines()
        if line.startswith("!")
    }
    links = {path.name for path in (ROOT / "src" / "precad").iterdir() if path.is_dir()}
    files = {
        "pyproject.toml",
        "setup.py",
        "src",
        project["readme"],
        *project["license-files"],
    }
    assert let_in == files | {"deploy/*.py", "deploy/*.txt"} | (links - {"__pycache__"})


@pytest.mark.parametrize(
    "script", sorted((ROOT / "examples").glob("[a-z]*.py")), ids=lambda p: p.name
)
def test_a_notebooks_code_is_the_scripts_and_ran_without_an_error(script: Path) -> None:
    cells = re.split(
        r"^# %%.*\n", script.read_text(encoding="utf-8"), flags=re.MULTILINE
    )[1:]
    notebook = json.loads(script.with_suffix(".ipynb").read_text(encoding="utf-8"))
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    texts = [
        cell.strip("\n") for cell in cells if re.search("^[^#\n]", cell, re.MULTILINE)
    ]
    assert ["".join(cell["source"]) for cell in code] == texts
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    kinds = {each["output_type"] for cell in code for each in cell["outputs"]}
    assert kinds <= {"stream", "display_data", "execute_result"}
    assert script.with_suffix(".ipynb").stat().st_size < 100_000


# Dashboard, alert rules and docs/metrics.md

NAME = re.compile(r"\bprecad_\w+")
Both = tuple[list[Metric], list[Metric]]


@pytest.fixture
def metrics(tmp_path: Path) -> Iterator[Both]:
    changes = {"privacy.epsilon_limit": 3.0, "privacy.owners_per_unit": 2}
    task = small_task(8, changes)
    store = open_store("sqlite://", task, Role.SERVER_A)
    session = session_of(
        Role.SERVER_A,
        task,
        store,
        tmp_path,
        register=Register(task, store),
        identity=identity(Principal.service(Role.SERVER_A)),
    )
    dealer = DealerRole.of(task)
    dealers = identity(Principal.service(Role.DEALER))
    service = DealingService(task, dealer, dealers)
    of_dealer = list(collect(task.name, dealer, service, dealers))
    yield list(Metrics(session).collect()), of_dealer
    store.close()


def full_name(metric: Metric) -> str:
    return metric.name + ("_total" if metric.type == "counter" else "")


@pytest.fixture
def shown(metrics: Both) -> set[str]:
    return {full_name(metric) for part in metrics for metric in part}


def test_each_metrics_name_is_prometheus_own_and_stands_on_the_page(
    metrics: Both,
) -> None:
    head = r"^\| (?:a server's|the dealer's) \| says \| names nobody, because \|\n.+\n"
    _, *tables = re.split(head, text_of("docs/metrics.md"), flags=re.MULTILINE)
    for table, own in zip(tables, metrics, strict=True):
        # Every part's page has the build besides.
        part = [build_info(), *own]
        for metric in part:
            assert re.fullmatch(PREFIX + r"[a-z][a-z_]+", metric.name)
            assert {sample.name for sample in metric.samples} <= {full_name(metric)}
            assert metric.documentation.endswith(".")
        rows = [
            row.strip("|").split(" | ")
            for row in table.partition("\n\n")[0].splitlines()
        ]
        assert {len([cell for cell in row if cell.strip()]) for row in rows} == {3}
        listed = {name for row in rows for name in NAME.findall(row[0])}
        assert sorted(listed) == sorted(map(full_name, part))

    # A dealer that nobody has called shows both servers at zero: the first call is an
    # increase.
    halves = next(
        metric for metric in metrics[1] if full_name(metric) == "precad_halves_total"
    )
    found = [(sample.labels["server"], sample.value) for sample in halves.samples]
    assert found == [("server-a", 0), ("server-b", 0)]


def test_rules_are_about_metrics_and_the_dashboard_asks_for_every_one(
    shown: set[str],
) -> None:
    rules = re.findall(r"expr: (.+)", text_of("deploy/monitoring/alerts.yml"))
    assert len(rules) >= 7
    assert {name for rule in rules for name in NAME.findall(rule)} <= shown
    dashboard = json.loads(text_of("deploy/monitoring/dashboard.json"))
    chosen = {variable["name"] for variable in dashboard["templating"]["list"]}
    assert chosen == {"datasource", "instance"}
    asked = set()
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            # Names that are neither functions, labels nor within a selector.
            bare = re.sub(r"\{[^}]*\}|\[[^\]]*\]|\bby \([^)]*\)", "", target["expr"])
            asked |= set(re.findall(r"[a-zA-Z_]\w*(?!\w*\s*\()", bare)) - {"by"}
            # It shows the chosen Prometheus and parts.
            assert (
                target["datasource"]["uid"]
                == panel["datasource"]["uid"]
                == "${datasource}"
            )
            selected = re.findall(r"\{([^}]*)\}", target["expr"])
            assert selected
            assert all('instance=~"$instance"' in each for each in selected)
            # A number is the present one, and not that of every series there has been
            # meanwhile.
            assert target.get("instant", False) == (panel["type"] == "stat")
    # Prometheus has a metric of its own of every target.
    assert asked == shown | {"up"}


def test_every_alert_is_fired_and_silent_in_promtools_tests_and_has_a_runbook() -> None:
    rules = text_of("deploy/monitoring/alerts.yml")
    names = set(re.findall(r"- alert: (\w+)", rules))
    cases = "".join(
        text_of(f"tests/peers/{name}.yml") for name in ("alerts", "alerts_of_days")
    )
    fired = r"- alertname: (\w+)\n +eval_time: \w+\n +exp_alerts:\n +- exp_labels"
    assert set(re.findall(fired, cases)) == names
    assert set(re.findall(r"- \{alertname: (\w+), eval_time: \w+\}", cases)) == names
    page = "docs/runbooks/alerts.md"
    assert names <= set(re.findall(r"^## (\w+)$", text_of(page), re.MULTILINE))
    links = re.findall(rf'runbook: "{page}#(\w+)"', rules)
    assert sorted(links) == sorted(name.lower() for name in names)
