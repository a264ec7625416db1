"""What loads and must be installed: no accounting unasked, nothing that Windows lacks,
the kernel that is named; an install with some extras runs their commands, and names
what others need.
"""

import re
import subprocess
import sys
import tomllib
from importlib.machinery import EXTENSION_SUFFIXES
from itertools import pairwise
from pathlib import Path

import pytest
from tests.conftest import small_task
from tests.rig.commands import printed, python
from tests.rig.questions import asking, ward
from tests.rig.task_files import task_to_toml

from precad.cli.main import COMMANDS, EXTRAS
from precad.common.errors import (
    LEAST_EXTRA,
    Misconfiguration,
    MissingPackage,
    PrecadError,
    missing,
)
from precad.common.identity.deployment_keys import Deployment
from precad.common.kernel import (
    NUMPY,
    VARIABLE,
    built_library,
    chosen,
    kernels,
    project_blocks,
)

ACCOUNT = "precad.accounting"
LIGHT = ("adversaries", "events", "filter")
WITHOUT_UNIX = """
import importlib, os, pkgutil, signal, sys
import precad.client.gradients.local_update
loaded = set(sys.modules)
unix = ("fcntl", "grp", "pwd", "resource", "syslog", "termios")
sys.modules.update(dict.fromkeys(unix))
for name in ("fork", "getuid", "fchmod", "killpg", "sched_getaffinity", "O_DIRECTORY"):
    delattr(os, name)
for name in ("pthread_sigmask", "SIGKILL", "SIGHUP"):
    delattr(signal, name)
# Again, as on a system that never had them.
for name in [name for name in sys.modules if name.startswith("precad.")]:
    del sys.modules[name]
import precad.client
for module in pkgutil.walk_packages(precad.client.__path__, "precad.client."):
    importlib.import_module(module.name)
for module in ("precad.cli.main", "precad.cli.owner_commands"):
    importlib.import_module(module)
print(*loaded, "|", *sys.modules)
"""
SERVES = (
    "import asyncio; from precad.aggregator.server_process import run_server as run; "
)
SERVES += "asyncio.run(run(None, None, None))"


def loaded_by(program: str) -> set[str]:
    return set(printed("-c", f"{program}\nimport sys\nprint(*sys.modules)").split())


def accounting(loaded: set[str]) -> set[str]:
    counting = (ACCOUNT, "precad.certify", "dp_accounting")
    return {name for name in loaded if name.startswith(counting)}


NETWORK = {
    "grpc",
    "google.protobuf",
    "sqlalchemy",
    "precad.aggregator.store",
    "precad.protos",
}
ABSENT = {
    (
        "from precad.simulation.datasets import load\n"
        "load('digits'), load('breast-cancer')"
    ): {*("sklearn", "pandas", "scipy.stats")},
    "from precad.cli.main import app\napp(['--help'], standalone_mode=False)": {
        *("numpy", "scipy", "torch", "dp_accounting", "matplotlib")
    },
    # What is imported on first use is listed before.
    "import precad\nassert {'DataOwner', 'simulate'} <= set(dir(precad))": {
        "numpy",
        "torch",
    },
    "from precad.common import ring, submission, model, task": NETWORK,
    "from precad.norm_check import share_update; import precad.certify": NETWORK,
    "from precad.aggregator import noise; from precad.accounting import guarantees": (
        NETWORK
    ),
    # The servers' messages are protobuf.
    "import precad.aggregator.validate": {"grpc", "sqlalchemy"},
}


@pytest.mark.parametrize("program", ABSENT)
def test_what_is_large_or_impure_loads_only_where_it_is_used(program: str) -> None:
    assert not loaded_by(program) & ABSENT[program]


def test_a_training_step_loads_no_accounting_and_no_client_module_needs_unix() -> None:
    training, everything = (
        set(p.split()) for p in printed("-c", WITHOUT_UNIX).split("|")
    )
    assert accounting(training) == set()
    assert "precad.client.gradients.local_update" in training
    assert {"precad.client.connection", "precad.client.data_owner"} <= everything


def test_an_owners_account_loads_no_accountant_before_it_is_asked_and_then_one() -> (
    None
):
    loaded = loaded_by("import precad.client.own_account")
    assert accounting(loaded) == {ACCOUNT, *(f"{ACCOUNT}.{each}" for each in LIGHT)}
    assert not loaded & {"numpy", "scipy"}
    asks = "from precad.accounting.events import poisson_gaussian as step\n"
    asks += "from precad.accounting.exact import epsilon_spent as e\n"
    asks += "e(step(rate=0.2, noise_multiplier=2.0), counts={0: 3}, delta=1e-5)"
    loaded = loaded_by(asks)
    assert f"{ACCOUNT}.exact" in loaded
    others = {f"{ACCOUNT}.{m}" for m in ("guarantees", "rdp")}
    assert not loaded & {"dp_accounting", "scipy.signal", "scipy.stats", *others}
    # Who expands a mask loads nothing else of a submission.
    loaded = loaded_by("from precad.common.ring import mask_stream")
    shared = {
        n.removeprefix("precad.common") for n in loaded if n.startswith("precad.common")
    }
    assert shared == {"", ".errors", ".frozen", ".homes", ".identifiers", ".ring"}


def test_without_locks_no_keys_are_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(Misconfiguration, match="make keys on Linux"):
        Deployment.create(tmp_path)
    assert not list(tmp_path.rglob("*.pem"))


def test_a_kernel_that_is_not_there_is_refused_and_one_that_cannot_be_loaded_is_none(
    tmp_path: Path,
) -> None:
    broken = tmp_path / f"_projections{EXTENSION_SUFFIXES[0]}"
    broken.write_bytes(b"for another machine")
    assert (built_library(tmp_path), kernels(broken)) == (
        broken,
        {NUMPY: project_blocks},
    )
    available = {"c": project_blocks, NUMPY: project_blocks}
    with pytest.raises(
        Misconfiguration, match=r"PRECAD_KERNEL = 'avx2': must be .* c, numpy"
    ):
        chosen(available, "avx2")
    # No server starts.
    done = python("-c", SERVES, env={VARIABLE: "fortran"})
    assert done.returncode == 1
    assert "Misconfiguration: PRECAD_KERNEL = 'fortran'" in done.stderr


ROOT = Path(__file__).parents[2]
DISTRIBUTIONS = {"sklearn": "scikit-learn", "prometheus_client": "prometheus-client"}
WITHOUT = """
import sys
from importlib.abc import MetaPathFinder
absent = set(sys.argv.pop(1).split(","))
class Absent(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in absent:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
"""
"""Hides packages as if they weren't installed; also from what others import if they
can."""
RUN = WITHOUT + "from precad.cli.start import main\nmain()"


@pytest.fixture(scope="module")
def extras() -> dict[str, set[str]]:
    """Each extra's distributions, those of the extras that it names included."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    optional: dict[str, list[str]] = project["optional-dependencies"]

    def closure(requirements: list[str]) -> set[str]:
        found: set[str] = set()
        for requirement in requirements:
            own = re.fullmatch(r"precad\[(.*)\]", requirement)
            if own:
                found |= {
                    d for each in own[1].split(",") for d in closure(optional[each])
                }
            else:
                found.add(re.split(r"[^\w-]", requirement)[0])
        return found

    return {"": closure(project["dependencies"])} | {
        e: closure(r) for e, r in optional.items()
    }


def run(
    program: str, absent: set[str], *arguments: str, cwd: Path | None = None
) -> "subprocess.CompletedProcess[str]":
    return python("-c", program, ",".join(sorted(absent)), *arguments, cwd=cwd)


def lacking(extras: dict[str, set[str]], *names: str) -> set[str]:
    """Packages, by their import names, that an install with those extras doesn't
    have."""
    there = {distribution for name in names for distribution in extras[name]}
    return {name for name in LEAST_EXTRA if DISTRIBUTIONS.get(name, name) not in there}


def test_each_extra_has_what_its_role_loads_and_no_more(
    extras: dict[str, set[str]],
) -> None:
    named = {DISTRIBUTIONS.get(name, name) for name in LEAST_EXTRA}
    assert named == extras["demo"] - extras[""] - {"sklearn"}
    for name, extra in LEAST_EXTRA.items():
        assert DISTRIBUTIONS.get(name, name) in extras[extra]
    assert set(EXTRAS.values()) <= set(extras)
    assert extras["client"] == {"torch", "scipy", "scikit-learn"}
    assert not extras["server"] & {"scikit-learn", "matplotlib", "dp-accounting"}
    assert extras["dealer"] == {"prometheus-client"}
    assert not extras["demo"] & {"ray", "pytest", "opendp", "psycopg", "flwr"}
    assert extras["demo"] < extras["dev"]


HELP = f"""{WITHOUT}
from click.testing import CliRunner
from precad.cli.main import COMMANDS, app
for command in ("", *COMMANDS):
    said = CliRunner().invoke(app, [*filter(None, [command]), "--help"])
    shown = (command, said.output, said.exception)
    assert said.exit_code == 0 and "Usage" in said.stdout, shown
    print(command)
"""


def test_every_command_shows_its_help_without_any_extra() -> None:
    said = run(HELP, set(LEAST_EXTRA))
    assert said.returncode == 0, said.stderr
    assert said.stdout.split() == list(COMMANDS)


PARTS = {
    "dealer": "common.wire.metrics_page",
    "": "dealer.process client.connection common.identity.deployment_keys",
    "client": (
        "client.data_owner client.owner_settings client.own_account accounting.exact"
    ),
    "server": "server_a.process server_b.process aggregator.workers.worker_process",
    "plan": "cli.certify_answer accounting.guarantees",
    "report": "cli.report_sources cli.report",
    "simulation": "simulation simulation.datasets",
}
LOADED = f"""{WITHOUT}
from importlib import import_module
for step in sys.argv[1:]:
    hidden, modules = step.split(":")
    absent = set(hidden.split(","))
    for module in modules.split():
        import_module("precad." + module)
    assert not absent & set(sys.modules), (modules, absent & set(sys.modules))
"""


@pytest.mark.parametrize(
    "chain",
    [("", "client", "simulation"), ("dealer",), ("plan", "report"), ("server",)],
)
def test_a_part_needs_its_extra_alone(
    extras: dict[str, set[str]], chain: tuple[str, ...]
) -> None:
    """One process for parts of which each needs more than the one before."""
    absent = [lacking(extras, each) for each in chain]
    assert all(more >= less for more, less in pairwise(absent))
    steps = [
        f"{','.join(a)}:{PARTS[each]}" for a, each in zip(absent, chain, strict=True)
    ]
    said = run(LOADED, absent[0], *steps)
    assert said.returncode == 0, said.stderr


AN_ACCOUNT = (
    "--record-rate 0.2 --client-rate 1 --noise-multiplier 2 --rounds 6 --delta 1e-5"
)
OWNER = """
client = "ward-3"
task = "task.toml"
server_a = "127.0.0.1:1"
server_b = "127.0.0.1:2"
identity = "keys"
data = "records.csv"
state = "state"
"""


@pytest.mark.parametrize(
    ("line", "installed", "extra"),
    [
        ("serve a --config x.toml", "client", "server"),
        ("join --config x.toml", "", "client"),
        ("simulate x.toml", "plan", "simulation"),
        (f"account {AN_ACCOUNT}", "", "plan"),
        ("ledger show x", "client", "server"),
    ],
)
def test_a_command_that_lacks_a_package_says_what_to_install(
    extras: dict[str, set[str]], tmp_path: Path, line: str, installed: str, extra: str
) -> None:
    absent = lacking(extras, *filter(None, [installed]))
    (tmp_path / "x.toml").write_text(OWNER, encoding="utf-8")
    trained = task_to_toml(small_task())
    (tmp_path / "task.toml").write_text(trained, encoding="utf-8")
    command, *words = line.split()
    said = run(RUN, absent, command, *words, cwd=tmp_path)
    install = rf"which isn't installed: pip install 'precad\[{extra}\]'\n\Z"
    # What it is about to do may stand before it.
    found = re.search(
        rf"^precad: precad {command} needs (\w+), {install}", said.stderr, re.MULTILINE
    )
    assert found, said.stderr
    assert (said.returncode, found[1] in absent) == (1, True)


PARSED = (
    "from precad.common.task import Task;"
    f" task = Task.parse({small_task().model_dump(mode='json')!r})"
)


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (
            "from precad.client import model_section",
            "model_section needs torch.*precad.client.",
        ),
        (
            "import precad; precad.simulate",
            r"precad.simulate needs torch.*precad\[simulation\]",
        ),
        (
            (
                f"{PARSED}; import precad; precad.DataOwner('a', task=task, data=0,"
                " server_a='a:1', server_b='b:1', identity=0)"
            ),
            r"DataOwner needs torch.*precad.client.",
        ),
    ],
)
def test_the_sdk_without_its_extra_is_an_error_that_names_it(
    program: str, words: str
) -> None:
    said = run(WITHOUT + program, set(LEAST_EXTRA))
    last = said.stderr.strip().splitlines()[-1]
    assert re.match(rf"precad\.common\.errors\.MissingPackage: .*{words}", last)
    assert {ImportError, PrecadError} <= {*MissingPackage.__mro__}


@pytest.mark.parametrize("name", ["pandas", None, "precad.common.forgotten"])
def test_a_missing_module_that_no_extra_brings_stays_as_loud_as_it_was(
    name: str | None,
) -> None:
    assert (
        missing(ModuleNotFoundError("No module named x", name=name), "precad join")
        is None
    )


def test_an_owner_that_answers_a_question_needs_no_torch() -> None:
    program = f"""
import sys
from precad.client import DataOwner
from precad.common.task import Task
task = Task.parse({asking().model_dump(mode="json")!r})
DataOwner('a', task=task, data={ward(9, 1)!r}, server_a='a:1', server_b='b:1', identity=0)
print('torch' in sys.modules)
"""
    said = python("-c", program)
    assert said.stdout == "False\n", said.stderr
