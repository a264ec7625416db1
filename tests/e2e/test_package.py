"""The package as it is handed out: built from a copy, installed alone, and run from there."""

import json
import os
import shutil
import site
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import pytest

import precad

CHECKOUT = Path(__file__).parents[2]
TIMEOUT_S = 280
DOCUMENTS = ("LICENSE", "README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "Makefile")
# What git ignores, by name; builds of a checkout would leave files behind and find old ones.
NOT_SOURCE = (".git", ".venv", "*.egg-info", "*.so", "build", "dist", "runs", "precad-demo")
CACHES = ("__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".hypothesis")
PRIVATE = {".pem", ".db", ".safetensors", ".npz"}
BUILD_SDIST = "import sys; from setuptools import build_meta as b; b.build_sdist(sys.argv[1])"
COMPILER = shutil.which((os.environ.get("CC") or sysconfig.get_config_var("CC")).split()[0])
KERNEL = f"precad/common/kernel/_projections{sysconfig.get_config_var('EXT_SUFFIX')}"
IN_USE = "from precad.common.kernel.kernel import kernel_in_use; print(kernel_in_use())"
WHERE = """
import importlib.metadata, json, precad, sys
print(json.dumps([precad.__file__, importlib.metadata.version("precad"), sys.path]))
"""


@dataclass(frozen=True, slots=True)
class Package:
    """Both distributions, unpacked names, and an environment with the wheel."""

    sdist: frozenset[str]
    """Files, relative to the source distribution's own folder."""
    wheel: frozenset[str]
    wheel_without_compiler: Path
    environment: Path

    def run(self, program: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment, with nothing of the test's own on its path."""
        clean = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
        return call(str(self.environment / "bin" / program), *arguments, cwd=cwd, env=clean)


def call(
    *command: str, cwd: Path, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    ended = subprocess.run(
        command,
        cwd=cwd,
        env={**(os.environ if env is None else env), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Package:
    """Source to source distribution to wheel to environment, all without the network."""
    folder = tmp_path_factory.mktemp("package")
    source, built, environment = folder / "source", folder / "built", folder / "environment"
    ignored = shutil.ignore_patterns(*NOT_SOURCE, *CACHES)
    shutil.copytree(CHECKOUT, source, symlinks=True, ignore=ignored)
    # Whoever tried something out in the checkout must not publish the key.
    (source / "tests" / "left-over.pem").touch()
    built.mkdir()
    call(sys.executable, "-c", BUILD_SDIST, str(built), cwd=source)
    (sdist,) = built.iterdir()
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-cache-dir")
    offline = ("--no-deps", "--no-index")
    call(
        *(*pip, "wheel", *offline, "--no-build-isolation", "-w", str(built), str(sdist)), cwd=folder
    )
    (wheel,) = built.glob("*.whl")
    call(
        *(*pip, "wheel", *offline, "--no-build-isolation", "-w", str(folder), str(sdist)),
        cwd=folder,
        env={**os.environ, "CC": str(folder / "no-compiler")},
    )
    (without_compiler,) = folder.glob("*.whl")
    venv.create(environment)
    call(*(*pip, "--python", str(environment), "install", *offline, str(wheel)), cwd=folder)
    # The dependencies, as the test has them. Python reads no .pth file in a folder that another
    # .pth file names: an editable precad in there stays out.
    (libraries,) = environment.glob("lib/python*/site-packages")
    (libraries / "dependencies.pth").write_text("\n".join(site.getsitepackages()))
    with tarfile.open(sdist) as archive:
        members = [member for member in archive.getmembers() if not member.isdir()]
    assert all(member.isfile() for member in members), "a link leads nowhere once it is unpacked"
    with zipfile.ZipFile(wheel) as archive:
        names = frozenset(archive.namelist())
    return Package(
        frozenset(str(PurePosixPath(*PurePosixPath(m.name).parts[1:])) for m in members),
        names,
        without_compiler,
        environment,
    )


def files_of(folder: str) -> set[str]:
    """Files of the checkout's folder that belong to the source, relative to the checkout."""
    paths = (CHECKOUT / folder).rglob("*")
    return {
        str(path.relative_to(CHECKOUT))
        for path in paths
        if path.is_file() and "__pycache__" not in path.parts
    }


def modules_of_the_source() -> set[str]:
    """What `import precad…` finds here, as the names of a wheel's files."""
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
    others = {"page.html", "py.typed", "precad.proto", "precad_pb2.pyi", "precad_pb2_grpc.pyi"}
    others |= {"client.yml", "dealer.yml", "server-a.yml", "server-b.yml", "precad.service"}
    compiled = {KERNEL} if COMPILER else set()
    assert {PurePosixPath(name).name for name in code - modules - compiled} == others
    assert compiled <= code
    assert any("/migrations/versions/" in name for name in code)
    assert {name.split("/")[0] for name in code} == {"precad"}
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in package.wheel)


def test_the_kernel_is_compiled_when_the_package_is_installed(
    package: Package, tmp_path: Path
) -> None:
    in_use = package.run("python", "-c", IN_USE, cwd=tmp_path).stdout.strip()
    assert in_use in ({"avx512-vnni", "avx2", "c"} if COMPILER else {"numpy"})


def test_without_a_compiler_the_package_is_installed_and_numpy_does_the_work(
    package: Package, tmp_path: Path
) -> None:
    with zipfile.ZipFile(package.wheel_without_compiler) as archive:
        assert package.wheel - {KERNEL} == set(archive.namelist())
        archive.extractall(tmp_path)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    said = call(sys.executable, "-c", IN_USE, cwd=tmp_path, env=environment)
    assert said.stdout == "numpy\n"


def test_the_source_distribution_holds_tests_and_documents(package: Package) -> None:
    assert set(DOCUMENTS) <= package.sdist
    assert {"setup.py", "src/precad/common/kernel/projections.c"} <= package.sdist
    assert {name.removeprefix("src/") for name in package.sdist} >= modules_of_the_source()
    for folder in ("docs", "deploy", "benchmarks", ".ci"):
        assert files_of(folder) <= package.sdist
    tests = {name for name in files_of("tests") if PurePosixPath(name).suffix not in PRIVATE}
    assert "tests/vectors/golden.json" in tests
    assert tests <= package.sdist


def test_no_key_or_state_is_published(package: Package) -> None:
    both = package.sdist | package.wheel
    assert {name for name in both if PurePosixPath(name).suffix in PRIVATE} == set()


def test_what_runs_is_the_installed_wheel(package: Package, tmp_path: Path) -> None:
    file, version, path = json.loads(package.run("python", "-c", WHERE, cwd=tmp_path).stdout)
    assert Path(file).is_relative_to(package.environment)
    assert version == precad.__version__
    foreign = [entry for entry in path if (Path(entry) / "precad").exists()]
    assert [Path(entry).is_relative_to(package.environment) for entry in foreign] == [True]
    for command in (("precad",), ("python", "-m", "precad")):
        said = package.run(*command, "--version", cwd=tmp_path).stdout
        assert said == f"precad {precad.__version__}\n"


def test_the_demo_trains_from_the_wheel_alone(package: Package, tmp_path: Path) -> None:
    try:
        said = package.run(
            *("precad", "demo", "--clients", "2", "--rounds", "2", "--json", "--output", "run"),
            cwd=tmp_path,
        )
    finally:
        # An owner who was late wrote there where it was.
        for log in sorted((tmp_path / "run" / "logs").glob("owner*.log")):
            sys.stdout.write(f"--- {log.name}\n{log.read_text()}")
    summary = json.loads(said.stdout)
    assert (summary["version"], summary["accepted"]) == (2, 4)
    assert summary["model_digest_a"] == summary["model_digest_b"]
    assert (tmp_path / "run" / "model.safetensors").is_file()
