"""`precad kit`, `precad keys accept`: an archive without a key; only its own key's
certificate."""

import hashlib
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import Result
from safetensors.numpy import save_file
from tests.rig.commands import precad, said, taken
from tests.rig.refusals import refused

from precad.aggregator.settings import ServerASettings, ServerBSettings
from precad.cli.local_deployment import to_toml
from precad.client.owner_settings import JoinSettings
from precad.common import model, process_settings
from precad.common.identifiers import Role, Secret
from precad.common.identity.authority import make_request, to_pem
from precad.common.identity.credentials import accept, create_request
from precad.common.identity.deployment_keys import Deployment
from precad.common.identity.party_certificate import Principal, private_key
from precad.common.task import Task
from precad.dealer.process import DealerSettings

PORTS = {"server-a": 7401, "dealer": 7403}
CHECKOUT = Path(__file__).parents[2]
A, B = "a.example:7301", "b.example:7302"
CONSORTIUM = """task = "task.toml"
server_a = "a.example:7301"
server_b = "b.example:7302"
dealer = "dealer.example:7303"
owners = { data = "ward.csv", model = "nets:Net" }
"""
WITHOUT_DEALER = re.sub("dealer = .*\n", "", CONSORTIUM)
PARTIES: dict[str, tuple[str, ...]] = {
    name: (name,) for name in ("server-a", "server-b", "dealer", "operator")
}
PARTIES["ward-3"] = ("client", "ward-3")
SETTINGS: dict[str, type[process_settings.ProcessSettings]] = {
    "server-a": ServerASettings,
    "server-b": ServerBSettings,
    "dealer": DealerSettings,
    "ward-3": JoinSettings,
}


@pytest.fixture
def agreed(tmp_path: Path) -> Path:
    shutil.copy(CHECKOUT / "deploy" / "task.toml", tmp_path)
    (tmp_path / "consortium.toml").write_text(CONSORTIUM)
    assert precad("keys", "init", tmp_path / "root", "--root-only").exit_code == 0
    return tmp_path


def kit(agreed: Path, name: str, out: str = "") -> Result:
    given = ("--consortium", agreed / "consortium.toml", "--root", agreed / "root")
    (agreed / out).mkdir(exist_ok=True)
    return precad("kit", *PARTIES[name], *given, "--out", agreed / out)


def unpack(agreed: Path, name: str) -> None:
    """As the page says; Python's own way drops the folder's mode."""
    subprocess.run(["tar", "-xzf", f"{name}-kit.tar.gz"], cwd=agreed, check=True)


def unpacked(agreed: Path, name: str) -> Path:
    result = kit(agreed, name)
    assert result.exit_code == 0, result.output
    unpack(agreed, name)
    return agreed / name


def texts_of(folder: Path) -> dict[Path, str]:
    return {
        path: path.read_text("latin-1") for path in folder.rglob("*") if path.is_file()
    }


def test_without_a_dealer_no_kit_speaks_of_one_and_who_does_is_refused(
    agreed: Path,
) -> None:
    # The owners prove their norms: two servers are all there is.
    shutil.copy(CHECKOUT / "deploy" / "proof" / "task.toml", agreed)
    (agreed / "consortium.toml").write_text(WITHOUT_DEALER)
    for name in PARTIES.keys() - {"dealer"}:
        folder = unpacked(agreed, name)
        assert not [
            path for path, text in texts_of(folder).items() if "dealer" in text.lower()
        ]
        if name in SETTINGS:
            assert (
                "dealer"
                not in SETTINGS[name].load(folder / "settings.toml").model_fields_set
            )
        (agreed / f"{name}-kit.tar.gz").unlink()
    assert 'validation = "proof" has no dealer' in kit(agreed, "dealer").stderr
    (agreed / "consortium.toml").write_text(CONSORTIUM)
    assert "remove it" in kit(agreed, "server-a").stderr
    shutil.copy(CHECKOUT / "deploy" / "task.toml", agreed)
    (agreed / "consortium.toml").write_text(WITHOUT_DEALER)
    assert 'validation = "proof"' in kit(agreed, "server-a").stderr
    assert not list(agreed.glob("*-kit.tar.gz"))


def test_settings_say_where_the_others_are_and_what_columns_are_called(
    agreed: Path,
) -> None:
    names = {"blood pressure": "RR.sys", "a.b": 'quoted "x"', "😀": "naïve", "": "#"}
    owners = {"data": "ward.csv", "model": "nets:Net", "columns": {"rename": names}}
    consortium = {
        "task": "task.toml",
        "server_a": A,
        "server_b": B,
        "dealer": "d.example:7303",
    }
    (agreed / "consortium.toml").write_text(
        to_toml(consortium | {"owners": owners}), "utf-8"
    )
    a = ServerASettings.load(unpacked(agreed, "server-a") / "settings.toml")
    assert (a.listen, a.server_b, a.dealer) == ("0.0.0.0:7301", B, "d.example:7303")
    owner = JoinSettings.load(unpacked(agreed, "ward-3") / "settings.toml")
    assert (owner.client, owner.server_a, owner.server_b) == ("ward-3", A, B)
    assert (owner.data.name, owner.model, owner.epsilon_limit) == (
        "ward.csv",
        "nets:Net",
        None,
    )
    assert owner.columns.rename == names
    # What is read out is the archive, and the same for whoever packs it.
    first, second = (kit(agreed, "server-a", out=out).stdout for out in ("one", "two"))
    one, two = (
        (agreed / out / "server-a-kit.tar.gz").read_bytes() for out in ("one", "two")
    )
    assert one == two
    assert hashlib.sha256(one).hexdigest() in first
    assert first.splitlines()[1:] == second.splitlines()[1:]


def test_a_wrong_consortium_is_refused_and_a_further_tasks_name_that_is_taken(
    agreed: Path,
) -> None:
    for before, after, words in (
        ('server_b = "b.example:7302"\n', "", "server_b = None: is required"),
        ("b.example:7302", "b.example", "give host:port"),
        ("server_b =", "server_c =", "server_"),
        ("data =", "epsilon_limit = 3.0, data =", "leave it out of [owners]"),
    ):
        (agreed / "consortium.toml").write_text(CONSORTIUM.replace(before, after))
        result = kit(agreed, "server-a")
        assert (result.exit_code, words in result.stderr) == (2, True), result.stderr
    for task in ("keys", "state", "spool", "Wards", "../x", ""):
        assert further(agreed, "server-a", task).exit_code == 2, task
    assert not list(agreed.glob("*-kit.tar.gz"))
    assert not list(agreed.glob("*-kit.tar.gz"))


def further(agreed: Path, name: str, task: str = "clinics") -> Result:
    text = (agreed / "task.toml").read_text()
    (agreed / "further.toml").write_text(text.replace("digits-logistic", task))
    ports = CONSORTIUM.replace("task.toml", "further.toml").replace(":73", ":74")
    (agreed / "further-consortium.toml").write_text(ports)
    agreed_on = ("--consortium", agreed / "further-consortium.toml", "--out", agreed)
    return precad("kit", *PARTIES[name], "--further", task, *agreed_on)


def further_unpacked(agreed: Path, name: str) -> Path:
    result = further(agreed, name)
    archive = agreed / f"{name}-clinics-kit.tar.gz"
    assert hashlib.sha256(archive.read_bytes()).hexdigest() in result.stdout
    assert str(Task.load(agreed / "further.toml").digest) in result.stdout
    unpack(agreed, f"{name}-clinics")
    return agreed / name / "clinics"


@pytest.mark.parametrize("name", PARTIES)
def test_a_kit_has_no_key_and_a_further_tasks_kit_stands_beside_it(
    name: str, agreed: Path
) -> None:
    folder = unpacked(agreed, name)
    before, mode = texts_of(folder), (folder / "keys").stat().st_mode
    assert mode & 0o777 == 0o700
    # A token goes into the settings.
    assert {each.stat().st_mode & 0o77 for each in folder.glob("settings.toml")} <= {0}
    request = f"precad keys request {name}/keys {' '.join(PARTIES[name])}\n"
    assert request in before[folder / "NEXT.txt"]
    more = further_unpacked(agreed, name)
    texts = texts_of(more)
    assert (texts_of(folder), (folder / "keys").stat().st_mode) == (
        before | texts,
        mode,
    )
    assert not [
        path for path, text in (before | texts).items() if "PRIVATE KEY" in text
    ]
    assert str(Task.load(agreed / "further.toml").digest) in texts[more / "NEXT.txt"]
    steps = re.findall("^    (precad .*)$", texts[more / "NEXT.txt"], re.MULTILINE)
    for step in steps:
        taken(*shlex.split(step)[1:])
    if name not in SETTINGS:
        assert set(before) == {folder / "NEXT.txt", folder / "keys" / "ca.pem"}
        return
    first, own = (
        SETTINGS[name].load(place / "settings.toml") for place in (folder, more)
    )
    assert (
        Task.load(first.task).digest == Task.load(CHECKOUT / "deploy/task.toml").digest
    )
    assert {folder / "compose.yml", folder / f"precad-{name}.service"} <= set(before)
    unit = f"precad-{name}-clinics.service"
    files = {path.name for path in more.iterdir()}
    assert files == {"task.toml", "settings.toml", "compose.yml", unit, "NEXT.txt"}
    assert "--config clinics/settings.toml\n" in texts[more / unit]
    assert own.identity.resolve() == first.identity.resolve()
    places = {"task", "listen", "server_a", "server_b", "dealer", "state", "journal"}
    differ = places & set(SETTINGS[name].model_fields)
    assert all(getattr(first, field) != getattr(own, field) for field in differ)
    for field in {"state", "journal"} & differ:
        assert (
            getattr(own, field).resolve() == getattr(first, field).resolve() / "clinics"
        )
    if isinstance(own, JoinSettings) and isinstance(first, JoinSettings):
        # It has the first one's records and account.
        assert own.account is not None
        found = own.account.resolve(), own.data.resolve()
        assert found == (first.state.resolve(), first.data.resolve())
        assert "precad join --config ward-3/clinics/settings.toml" in steps


@pytest.mark.parametrize("name", ["server-a", "dealer", "ward-3"])
def test_a_further_compose_file_goes_with_the_first(name: str, agreed: Path) -> None:
    folder = unpacked(agreed, name)
    more = (further_unpacked(agreed, name) / "compose.yml").read_text()
    whole = (folder / "compose.yml").read_text()
    mounts = [
        line.split(":")
        for line in re.findall(r"^      - (\S+:/\S+)$", more, re.MULTILINE)
    ]
    # What is mounted from this machine comes with the kits, or is the owner's own.
    own = {"./keys", "./records.csv"}
    for source, *_ in mounts:
        if source.startswith("./"):
            assert source in own or (folder / source).is_file()
        else:
            assert re.search(rf"^  {source}:$", whole, re.MULTILINE)
    assert ("./clinics/task.toml", "/precad/clinics/task.toml") in [
        (a, b) for a, b, *_ in mounts
    ]
    (service,) = re.findall(r"^  (\S+):$", more, re.MULTILINE)
    # A service of its own beside the first.
    assert service.removesuffix("-clinics") in re.findall(
        r"^  (\S+):$", whole, re.MULTILINE
    )
    assert "--config, clinics/settings.toml]" in more
    assert re.findall(r"ports: (.*)", more) == (
        [f'["{PORTS[name]}:{PORTS[name]}"]'] if name in PORTS else []
    )


@pytest.mark.parametrize("name", ["server-b", "ward-3", "dealer"])
def test_weights_travel_with_the_task_to_whom_starts_from_them(
    name: str, agreed: Path
) -> None:
    state = {
        "1.weight": np.eye(2, 4, dtype=np.float32),
        "1.bias": np.ones(2, np.float32),
    }
    save_file(state, agreed / "start.safetensors")
    wishes = (
        "--features",
        "4",
        "--classes",
        "2",
        "--records",
        "3x600",
        "--epsilon",
        "3",
    )
    start = ("--from", agreed / "start.safetensors")
    (agreed / "task.toml").unlink()
    said(
        "task",
        "new",
        agreed / "task.toml",
        "--architecture",
        "logistic",
        *wishes,
        *start,
    )
    folder = unpacked(agreed, name)
    for place, within in ((folder, ""), (further_unpacked(agreed, name), "clinics/")):
        if name == "dealer":
            assert not (place / "start.safetensors").exists()
            continue
        assert model.initial_vector(Task.load(place / "task.toml").model).sum() == 4
        mounted = (
            "      -"
            f" ./{within}start.safetensors:/precad/{within}start.safetensors:ro\n"
        )
        assert mounted in (place / "compose.yml").read_text()
    text = (agreed / "task.toml").read_text()
    (agreed / "far").mkdir()
    (agreed / "start.safetensors").rename(agreed / "far" / "start.safetensors")
    (agreed / "task.toml").write_text(text.replace('"start.saf', '"far/start.saf'))
    far = kit(agreed, "server-a")
    assert (far.exit_code, "must lie beside" in far.stderr) == (2, True)


@pytest.mark.parametrize("name", SETTINGS)
def test_systemd_takes_the_unit(name: str, agreed: Path) -> None:
    unit = unpacked(agreed, name) / f"precad-{name}.service"
    text = unit.read_text()
    assert f"/srv/precad/{name}" in text
    assert "$" not in text
    program = shutil.which("systemd-analyze")
    if program is None:
        sys.stdout.write("no systemd here: the unit's sections alone are looked at\n")
        sections = [line for line in text.splitlines() if line.startswith("[")]
        assert sections == ["[Unit]", "[Service]", "[Install]"]
        return
    # It looks whether the program is there.
    unit.write_text(text.replace("/opt/precad/bin/precad", sys.executable))
    command = [program, "verify", "--man=no", str(unit)]
    checked = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (checked.returncode, checked.stderr) == (0, "")


def test_any_other_certificate_is_refused_and_nothing_changes(agreed: Path) -> None:
    keys = unpacked(agreed, "server-a") / "keys"
    a, b = (Principal.service(role) for role in (Role.SERVER_A, Role.SERVER_B))
    request = create_request(keys, a)
    # What is read out of a request is its key's.
    shown = [
        precad("keys", "show", each).stdout
        for each in (request, create_request(agreed, a))
    ]
    assert all(
        text.startswith("server-a.precad: asks for a certificate\n") for text in shown
    )
    assert shown[0] != shown[1]
    before = texts_of(keys)
    root, other = (
        Deployment.open(agreed / "root"),
        Deployment.create(agreed / "other-root"),
    )
    # The root was talked into certifying this key as another party's.
    key, talked = (
        private_key(Secret((keys / "key.pem").read_bytes()), "x"),
        agreed / "talked.pem",
    )
    talked.write_bytes(to_pem(make_request(key, b)))
    elsewhere = create_request(agreed / "elsewhere", a)
    for out, issuer, party, asked, refusal in (
        ("one", root, a, elsewhere, "belongs to another certificate"),
        ("two", other, a, request, "is another root than"),
        ("three", root, b, talked, r"is for server-a\.precad, not server-b"),
    ):
        refused(
            refusal, accept, keys, issuer.issue(party, out=agreed / out, request=asked)
        )
    assert texts_of(keys) == before
