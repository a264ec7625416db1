"""Imports point one way, mathematics stays pure, and nothing dangerous is called."""

import ast
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

# Links to the top-level folders; in a source distribution the folders themselves.
ROOT = Path(__file__).parents[2] / "src" / "precad"
PARTS = ("common", "client", "server_a", "server_b", "dealer", "experiments", "cli")
# Which parts each part may import; protos are for whoever is on the wire.
ALLOWED = {
    "common": {"common", "protos"},
    "client": {"client", "common", "protos"},
    "server_a": {"server_a", "common", "protos"},
    "server_b": {"server_b", "common", "protos"},
    "dealer": {"dealer", "common", "protos"},
    "experiments": {"experiments", "client", "common", "protos"},
    # The command line starts every part.
    "cli": {*PARTS, "protos"},
}
# Inside common/, downwards: what every party may load, the mathematics, and what the two servers
# are alike. Whatever isn't named is ground.
MATHEMATICS = ("common/account", "common/certify")
MAY_IMPORT_AGGREGATOR = ("common/aggregator", "server_a", "server_b", "cli")
# No network, storage or process in them.
PURE = (
    *MATHEMATICS,
    "common/aggregator/collect",
    "common/aggregator/mpc",
    "common/aggregator/round",
    "common/aggregator/validate",
    "common/checks.py",
    "common/deal",
    "common/description.py",
    "common/encode",
    "common/enrolment.py",
    "common/errors.py",
    "common/fitting.py",
    "common/fss",
    "common/headroom.py",
    "common/identifiers.py",
    "common/kernel",
    "common/keystream.py",
    "common/link",
    "common/model",
    "common/noise",
    "common/norm_check",
    "common/ring.py",
    "common/secret.py",
    "common/share",
    "common/task.py",
)
IMPURE = (
    "grpc",
    "google.protobuf",
    "sqlalchemy",
    "precad.common.aggregator.store",
    "precad.protos",
)
RANDOM = ("random", "numpy.random", "torch.random")
# Where the secrets are: shares, masks, rows, triples, noise, cohorts, samples of records. Not
# client/participant.py, whose waits before it tries again are spread by Python's generator.
SECRET = (
    "common/aggregator",
    "common/deal",
    "common/fss",
    "common/kernel",
    "common/keystream.py",
    "common/link",
    "common/noise",
    "common/norm_check",
    "common/secret.py",
    "common/share",
    "common/wire",
    "common/identity",
    "client/train/sample.py",
    "client/train/update.py",
    "client/connection.py",
    "client/data_owner.py",
    "dealer",
    "server_a",
    "server_b",
)


def sources(*under: str) -> list[Path]:
    """Python files of the given folders or files, without generated code; each must exist."""
    found = []
    for name in under:
        path = ROOT / name
        assert path.exists(), f"{name} doesn't exist"
        found += [path] if path.suffix == ".py" else sorted(path.rglob("*.py"))
    return [path for path in found if "_pb2" not in path.name]


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def imported(tree: ast.AST) -> Iterator[str]:
    """Every module that is imported anywhere, also inside functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            assert node.module
            yield node.module
            # `from precad import protos` names a part too.
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@cache
def imports_of(path: Path) -> tuple[str, ...]:
    return tuple(imported(tree_of(path)))


def within(module: str, packages: tuple[str, ...]) -> bool:
    return any(module == p or module.startswith(f"{p}.") for p in packages)


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def importers(files: list[Path], wrong: Callable[[str], bool]) -> list[tuple[str, str]]:
    """Files with what they import of what is wrong."""
    return [(relative(path), each) for path in files for each in imports_of(path) if wrong(each)]


@pytest.mark.parametrize("part", PARTS)
def test_imports_point_one_way(part: str) -> None:
    def forbidden(module: str) -> bool:
        # `from precad import __version__` imports no part.
        _, _, below = module.partition("precad.")
        return bool(below) and below.split(".")[0] not in {*ALLOWED[part], "__version__"}

    assert sources(part)
    assert importers(sources(part), forbidden) == []


def layer_of(module: str) -> int:
    """0 for ground, 1 for mathematics, 2 for the aggregator, of a module in common/."""
    if within(module, ("precad.common.aggregator",)):
        return 2
    return int(within(module, ("precad.common.account", "precad.common.certify")))


def module_of(path: Path) -> str:
    return ".".join(("precad", *path.relative_to(ROOT).with_suffix("").parts))


def test_imports_inside_common_only_go_down() -> None:
    layers: dict[int, list[Path]] = {0: [], 1: [], 2: []}
    for path in sources("common"):
        layers[layer_of(module_of(path))].append(path)
    assert all(layers.values())
    assert importers(layers[0], lambda module: layer_of(module) > 0) == []
    assert importers(layers[1], lambda module: layer_of(module) > 1) == []


def test_only_the_servers_and_who_starts_them_import_the_aggregator() -> None:
    inside = tuple(f"{part}/" for part in MAY_IMPORT_AGGREGATOR)
    outside = [path for path in sources(*PARTS) if not relative(path).startswith(inside)]
    assert len(outside) > 100
    assert importers(outside, lambda m: within(m, ("precad.common.aggregator",))) == []


def test_no_part_imports_what_is_only_published() -> None:
    """Printed formulas and other defences are to be compared with; the package lacks them."""
    assert importers(sources(*PARTS), lambda module: within(module, ("published",))) == []
    assert not (ROOT / "published").exists()
    assert (Path(__file__).parents[2] / "published").is_dir()


def test_function_secret_sharing_knows_nothing_of_norms() -> None:
    ground = tuple(f"precad.common.{name}" for name in ("fss", "errors", "keystream", "secret"))
    assert (
        importers(
            sources("common/fss"),
            lambda module: within(module, ("precad",)) and not within(module, ground),
        )
        == []
    )


def test_mathematics_imports_no_network_and_no_storage() -> None:
    assert importers(sources(*PURE), lambda module: within(module, IMPURE)) == []


@pytest.mark.parametrize(
    ("modules", "impure"),
    [
        ("encode share norm_check.gates account.planning noise model task", IMPURE),
        # CrypTen itself loads TensorBoard's writer, and with it protobuf.
        ("aggregator.validate aggregator.round.run_round", ("grpc", "sqlalchemy", "precad.protos")),
    ],
)
def test_mathematics_loads_no_network_and_no_storage(modules: str, impure: tuple[str, ...]) -> None:
    """At run time, with everything that it imports in turn."""
    program = (
        "import sys, importlib\n"
        f"for name in {modules.split()}:\n"
        "    importlib.import_module(f'precad.common.{name}')\n"
        f"    loaded = [m for m in sys.modules for p in {impure}"
        "              if f'{m}.'.startswith(f'{p}.')]\n"
        "    assert not loaded, (name, sorted(loaded))"
    )
    run = subprocess.run(
        [sys.executable, "-c", program],
        check=False,
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(ROOT.parent), "OMP_NUM_THREADS": "1"},
    )
    assert run.returncode == 0, run.stderr


FORBIDDEN_CALLS = {
    "eval",
    "exec",
    "compile",
    "__import__",
    "torch.load",
    "torch.save",
    "numpy.load",
    "joblib.load",
    "os.system",
    "yaml.load",
}
FORBIDDEN_MODULES = ("pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve")


def full_name(node: ast.expr, aliases: dict[str, str]) -> str:
    """``np.random.normal`` as ``numpy.random.normal``."""
    if isinstance(node, ast.Name):
        return aliases.get(node.id, node.id)
    if isinstance(node, ast.Attribute):
        return f"{full_name(node.value, aliases)}.{node.attr}"
    return "?"


def aliases_of(tree: ast.AST) -> dict[str, str]:
    aliases = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            aliases.update({a.asname: a.name for a in node.names if a.asname})
        elif isinstance(node, ast.ImportFrom):
            aliases.update({a.asname or a.name: f"{node.module}.{a.name}" for a in node.names})
    return aliases


def dangers(tree: ast.AST) -> list[str]:
    """Calls and imports that run or unpickle what somebody else wrote."""
    aliases = aliases_of(tree)
    found = [module for module in imported(tree) if within(module, FORBIDDEN_MODULES)]
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = full_name(node.func, aliases)
        keywords = {k.arg: k.value for k in node.keywords}
        if name == "numpy.load":
            allowed = keywords.get("allow_pickle")
            # NumPy's default is False; only a literal False may be written.
            if allowed is None or (isinstance(allowed, ast.Constant) and allowed.value is False):
                continue
        shell = keywords.get("shell")
        if name in FORBIDDEN_CALLS or (
            name.startswith("subprocess.") and shell is not None and ast.literal_eval(shell)
        ):
            found.append(name)
    return found


@pytest.mark.parametrize("part", PARTS)
def test_nothing_is_unpickled_or_evaluated(part: str) -> None:
    found = {relative(path): dangers(tree_of(path)) for path in sources(part)}
    assert {path: names for path, names in found.items() if names} == {}


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from pickle import loads",
        "import torch as t\nt.load('x')",
        "from torch import load\nload('x')",
        "import numpy as np\nnp.load('x', allow_pickle=True)",
        "import numpy as np\nnp.load('x', allow_pickle=flag)",
        "eval('1')",
        "def f():\n    import subprocess\n    subprocess.run('x', shell=True)",
    ],
)
def test_the_check_sees_what_is_dangerous(source: str) -> None:
    assert dangers(ast.parse(source))


def weak_randomness(tree: ast.AST) -> list[str]:
    """Uses of Python's, NumPy's or torch's generators, none of which may make a secret."""
    aliases = aliases_of(tree)
    found = [module for module in imported(tree) if within(module, RANDOM)]
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = full_name(node.func, aliases)
            if within(name, RANDOM) or name in {
                "torch.rand",
                "torch.randn",
                "torch.randint",
                "torch.manual_seed",
                "torch.Generator",
            }:
                found.append(name)
    return found


def test_secrets_come_from_no_statistical_generator() -> None:
    files = sources(*SECRET)
    assert len(files) > 40
    found = {relative(path): weak_randomness(tree_of(path)) for path in files}
    assert {path: names for path, names in found.items() if names} == {}


@pytest.mark.parametrize(
    "source",
    [
        "import random",
        "import numpy as np\nnp.random.default_rng()",
        "from numpy.random import default_rng",
        "import torch\ntorch.randint(3)",
    ],
)
def test_the_check_sees_weak_randomness(source: str) -> None:
    assert weak_randomness(ast.parse(source))


def test_crypten_is_imported_in_one_place() -> None:
    found = importers(sources(*PARTS), lambda module: within(module, ("crypten",)))
    assert {path for path, _ in found} == {"common/aggregator/mpc/crypten_import.py"}
