"""The package as it is handed out: built from a copy, installed alone, and trained with."""

import fcntl
import json
import math
import os
import re
import shutil
import site
import sys
import sysconfig
import tarfile
import venv
import zipfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from subprocess import run
from typing import NamedTuple

import pytest
from tests.rig.commands import document, said
from tests.rig.demo import Demo, check_every_run, demo

import precad

CHECKOUT = Path(__file__).parents[2]
ROUNDS, CLIENTS, ATTACKERS = 3, 3, 1
DOCUMENTS = {
    "LICENSE",
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "SECURITY.md",
    "Makefile",
}
# What git ignores, by name; builds of a checkout would leave files behind and find old
# ones.
NOT_SOURCE = (
    ".git",
    ".venv",
    "*.egg-info",
    "*.so",
    "build",
    "dist",
    "runs",
    "precad-demo",
)
CACHES = ("__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".hypothesis")
PRIVATE = {".pem", ".db", ".safetensors", ".npz"}
BUILD = (
    "import sys; from setuptools import build_meta;"
    " build_meta.build_{what}(sys.argv[1])"
)
COMPILER = shutil.which(
    (os.environ.get("CC") or sysconfig.get_config_var("CC")).split()[0]
)
BUILD_OF = "9.8.7 " + "ab" * 20
"""What the copy is told that it is: git isn't there for it."""
KERNEL = f"precad/common/kernel/_projections{sysconfig.get_config_var('EXT_SUFFIX')}"
IN_USE = "from precad.common.kernel import kernel_in_use; print(kernel_in_use())"
WHERE = """
import importlib.metadata, json, precad, sys
print(json.dumps([precad.__file__, importlib.metadata.version("precad"), sys.path]))
"""


def made_once(
    folders: pytest.TempPathFactory, name: str, make: Callable[[Path], object]
) -> Path:
    """A folder that all processes' tests share, and that none may change.

    ``make`` fills it, and others wait meanwhile; where it fails, the next one tries.
    """
    own = folders.getbasetemp()
    # Under pytest-xdist each process has a folder of its own, in one that they share.
    shared = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    folder, whole = shared / name, shared / f"{name}.made"
    with (shared / f"{name}.lock").open("a+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not whole.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            make(folder)
            whole.touch()
    return folder


class Package(NamedTuple):
    sdist: frozenset[str]  # Relative to the source distribution's own folder
    wheel: frozenset[str]
    wheel_without_compiler: Path
    environment: Path

    def says(self, program: str, *arguments: str, cwd: Path) -> str:
        """What one prints, with nothing of the test's own on its path."""
        clean = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith("PYTHON")
        }
        return call(
            str(self.environment / "bin" / program), *arguments, cwd=cwd, env=clean
        )


def call(*command: str, cwd: Path, env: dict[str, str] | None = None) -> str:
    ended = run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def build(what: str, source: Path, into: Path, **environment: str) -> Path:
    """Build as pip does, with what is installed.

    Returns the one file that it has made.
    """
    into.mkdir()
    program = BUILD.format(what=what)
    call(
        sys.executable,
        "-c",
        program,
        str(into),
        cwd=source,
        env={**os.environ, **environment},
    )
    (built,) = into.iterdir()
    return built


def build_all(folder: Path) -> None:
    """Source to source distribution to wheel to environment, all without the network."""
    source, environment = folder / "source", folder / "environment"
    ignored = shutil.ignore_patterns(*NOT_SOURCE, *CACHES)
    shutil.copytree(CHECKOUT, source, symlinks=True, ignore=ignored)
    # Whoever tried something out in the checkout must not publish the key.
    (source / "tests" / "left-over.pem").touch()
    sdist = build("sdist", source, folder / "sdist", PRECAD_BUILD=BUILD_OF)
    with tarfile.open(sdist) as archive:
        # As an argument Python 3.11 takes it from 3.11.4 on, and Debian has an older
        # one.
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(folder / "unpacked")
        archive.extractall(folder / "unpacked again")
    (unpacked,), (again,) = (
        (folder / f"unpacked{word}").iterdir() for word in ("", " again")
    )
    wheel = build("wheel", unpacked, folder / "wheel")
    build("wheel", again, folder / "without", CC=str(folder / "no-compiler"))
    venv.create(environment)
    # Installed as it is, and its dependencies as the test has them: Python reads no
    # .pth file in a folder that another .pth file names, so an editable precad in there
    # stays out.
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-cache-dir")
    offline = ("--no-deps", "--no-index", "--no-compile")
    call(
        *(*pip, "--python", str(environment), "install", *offline, str(wheel)),
        cwd=folder,
    )
    (libraries,) = environment.glob("lib/python*/site-packages")
    (libraries / "dependencies.pth").write_text("\n".join(site.getsitepackages()))


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Package:
    folder = made_once(tmp_path_factory, "package", build_all)
    (sdist,), (wheel,), (without,) = (
        (folder / kind).iterdir() for kind in ("sdist", "wheel", "without")
    )
    with tarfile.open(sdist) as archive:
        members = [member for member in archive.getmembers() if not member.isdir()]
    assert all(member.isfile() for member in members), (
        "a link leads nowhere once it is unpacked"
    )
    files = frozenset(member.name.partition("/")[2] for member in members)
    with zipfile.ZipFile(wheel) as archive:
        return Package(
            files, frozenset(archive.namelist()), without, folder / "environment"
        )


@pytest.fixture(scope="module")
def trained(package: Package, tmp_path_factory: pytest.TempPathFactory) -> Demo:
    """The small real run: of the installed wheel, every part its own process, one owner bad."""

    def train(folder: Path) -> None:
        sizes = ("--dataset", "breast-cancer", "--rounds", ROUNDS, "--clients", CLIENTS)
        bad = ("--attack", "wraparound", "--attackers", ATTACKERS)
        # The demo isn't in the wheel: of this checkout there is nothing else.
        for sources in ("examples", "research"):
            shutil.copytree(CHECKOUT / sources, folder / "sources" / sources)
        run = demo(
            folder / "run",
            *sizes,
            *bad,
            python=package.environment / "bin" / "python",
            sources=folder / "sources",
        )
        (folder / "said.json").write_text(
            json.dumps([run.summary, run.stderr]), encoding="utf-8"
        )

    folder = made_once(tmp_path_factory, "trained", train)
    summary, stderr = json.loads((folder / "said.json").read_text("utf-8"))
    return Demo(folder / "run", summary, stderr)


def modules_of_the_source() -> set[str]:
    root = Path(precad.__file__).parent
    # rglob follows no links inside of what it walks.
    folders = [root, *(path for path in root.iterdir() if path.is_dir())]
    found = {path for folder in folders for path in folder.rglob("*.py")}
    return {str(PurePosixPath("precad", path.relative_to(root))) for path in found}


def test_the_wheel_holds_the_whole_package_and_nothing_else(package: Package) -> None:
    modules = modules_of_the_source()
    assert len(modules) > 100
    code = {name for name in package.wheel if ".dist-info/" not in name}
    assert {name for name in code if name.endswith(".py")} == modules
    others = {"report_page.html", "py.typed", "precad.proto"}
    others |= {"releases.toml", "build.json"}
    others |= {"precad_pb2.pyi", "precad_pb2_grpc.pyi", "__init__.pyi"}
    others |= {path.name for path in (CHECKOUT / "cli" / "machines").iterdir()}
    compiled = {KERNEL} if COMPILER else set()
    assert compiled <= code
    assert {PurePosixPath(name).name for name in code - modules - compiled} == others
    assert any("/migrations/versions/" in name for name in code)
    assert {name.split("/")[0] for name in code} == {"precad"}
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in package.wheel)


def test_the_source_distribution_holds_tests_documents_and_nobody_s_state(
    package: Package,
) -> None:
    sources = {
        f"src/precad/common/kernel/{each}.c" for each in ("projections", "field")
    }
    assert package.sdist >= {"setup.py"} | sources | DOCUMENTS
    assert {
        name.removeprefix("src/") for name in package.sdist
    } >= modules_of_the_source()
    source = {
        path.relative_to(CHECKOUT)
        for folder in ("docs", "deploy", "benchmarks", "examples", ".ci", "tests")
        for path in (CHECKOUT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    wanted = {
        str(path)
        for path in source
        if path.parts[0] != "tests" or path.suffix not in PRIVATE
    }
    assert "tests/vectors/golden.json" in wanted
    assert wanted <= package.sdist
    both = package.sdist | package.wheel
    assert {name for name in both if PurePosixPath(name).suffix in PRIVATE} == set()


def test_what_runs_is_the_installed_wheel_with_its_kernel_or_numpy_without_a_compiler(
    package: Package, tmp_path: Path
) -> None:
    file, version, path = json.loads(package.says("python", "-c", WHERE, cwd=tmp_path))
    assert Path(file).is_relative_to(package.environment)
    # The source distribution keeps what was decided when it was made.
    expected, commit = BUILD_OF.split()
    assert version == expected
    foreign = [entry for entry in path if (Path(entry) / "precad").exists()]
    assert [Path(entry).is_relative_to(package.environment) for entry in foreign] == [
        True
    ]
    for command in (("precad",), ("python", "-m", "precad")):
        printed = package.says(*command, "--version", cwd=tmp_path)
        assert printed == f"precad {expected} (commit {commit})\n"
    kernel = package.says("python", "-c", IN_USE, cwd=tmp_path).strip()
    assert kernel in ({"avx512-vnni", "avx2", "c"} if COMPILER else {"numpy"})
    with zipfile.ZipFile(package.wheel_without_compiler) as archive:
        assert package.wheel - {KERNEL} == set(archive.namelist())
        archive.extractall(tmp_path)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    assert (
        call(sys.executable, "-c", IN_USE, cwd=tmp_path, env=environment) == "numpy\n"
    )


def test_the_demo_trains_by_the_wheel_alone_and_rejects_a_bad_owner(
    trained: Demo,
) -> None:
    check_every_run(trained, rounds=ROUNDS, clients=CLIENTS, attackers=ATTACKERS)
    summary, submitted = trained.summary, ROUNDS * CLIENTS
    found = [summary[name] for name in ("dataset", "model", "rejected", "accepted")]
    rejected, accepted = (
        {"norm-exceeded": ROUNDS * ATTACKERS},
        ROUNDS * (CLIENTS - ATTACKERS),
    )
    assert found == ["breast-cancer", "logistic", rejected, accepted]
    # A's share of an update is a seed of 32 bytes; B gets its own, the body of 8·d and
    # its salt.
    assert summary["bytes"]["clients to server-a"] == submitted * 32
    assert summary["bytes"]["clients to server-b"] == submitted * (
        32 + 32 + 8 * summary["dim"]
    )
    bad = f"{ATTACKERS} of them bad: wraparound"
    for words in (
        bad,
        "accuracy",
        "ε",
        "held-out",
        "No server ever saw an update",
        "summary.json",
    ):
        assert words in trained.stderr


def test_certify_report_and_ledger_take_the_folder_of_a_run(
    trained: Demo, tmp_path: Path
) -> None:
    runs = document("certify", "loss", "--runs", trained.folder)["runs"]
    assert runs["count"] == 1
    assert runs["task_digest"] == trained.summary["certificate_inputs"]["task_digest"]
    cost = runs["joint_privacy_cost"][0]["epsilon"]
    assert math.isclose(cost, trained.summary["epsilon_exact_server"], rel_tol=0.01)
    for role in ("server-a", "server-b"):
        ledger = trained.folder / "state" / role
        clients = document("ledger", "show", ledger)["clients"]
        counts = sorted(client["participations"] for client in clients)
        assert counts == [0] * ATTACKERS + [ROUNDS] * (CLIENTS - ATTACKERS)
        said("ledger", "verify", ledger)
    said("report", trained.folder, "--out", tmp_path / "report.html")
    assert trained.summary["model_digest_a"] in (tmp_path / "report.html").read_text(
        "utf-8"
    )


def test_an_upgrade_from_one_build_s_wheel_to_the_next_changes_the_files(
    tmp_path: Path,
) -> None:
    """Builds of two commits are two versions: the newer is no "already satisfied"."""
    source = tmp_path / "source"
    ignored = shutil.ignore_patterns(*NOT_SOURCE, *CACHES, "tests", "benchmarks")
    shutil.copytree(CHECKOUT, source, symlinks=True, ignore=ignored)
    git = ("git", "-c", "user.name=a", "-c", "user.email=a@b.example")
    call(*git, "init", "--quiet", cwd=source)
    listed = source / "common" / "releases.toml"
    # The first commit here is the newest release.
    listed.write_text(re.sub(r"(?m)^commit = .*\n", "", listed.read_text("utf-8")))
    environment = tmp_path / "environment"
    venv.create(environment)
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    install = ("--python", str(environment), "install", "--upgrade", "--no-compile")
    program = str(environment / "bin" / "python")
    asks = "from precad.common.releases import this_build; print(this_build())"
    # Not this checkout, wherever another test has named it.
    outside = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    installed = []
    for number in range(2):
        with (source / "common" / "clock.py").open("a", encoding="utf-8") as file:
            file.write(f"# {number}\n")
        call(*git, "add", "--all", cwd=source)
        call(*git, "commit", "--quiet", "--message", "a", cwd=source)
        commit = call(*git, "rev-parse", "HEAD", cwd=source).strip()
        folder = tmp_path / f"wheel {number}"
        wheel = build("wheel", source, folder, CC=str(tmp_path / "no-compiler"))
        # By name and not by path: pip itself decides which one is newer.
        found = ("--find-links", str(folder), "--no-index", "--no-deps", "--pre")
        said = call(*pip, *install, *found, "precad", cwd=tmp_path, env=outside)
        assert "Successfully installed precad" in said
        stated = call(program, "-c", asks, cwd=tmp_path, env=outside)
        assert f"(commit {commit})" in stated
        (clock,) = environment.glob("lib/python*/site-packages/precad/common/clock.py")
        assert clock.read_text("utf-8").endswith(f"# {number}\n")
        installed.append(wheel.name.split("-")[1])
    release, on_the_way = installed
    assert ".dev" not in release
    assert ".dev1+g" in on_the_way
