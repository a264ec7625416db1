"""Imports point one way, mathematics stays pure, and nothing dangerous is called."""

import ast
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

# Links to the top-level folders; in a source distribution the folders themselves.
ROOT = Path(__file__).parents[2] / "src" / "precad"
# Which parts each part may import, besides itself and `common`. Nothing imports
# `examples`, `research` or `benchmarks`, which aren't in the wheel.
ALLOWED = {
    "common": {"protos"},
    "accounting": set(),
    "certify": {"accounting"},
    "norm_check": {"protos"},
    "aggregator": {"accounting", "norm_check", "protos"},
    "server_a": {"aggregator", "norm_check"},
    "server_b": {"aggregator", "norm_check"},
    "dealer": {"norm_check", "protos"},
    "client": {"accounting", "norm_check", "protos"},
    "simulation": {"accounting", "client", "norm_check"},
    # The command line starts every part.
    "cli": {
        *(
            "accounting",
            "aggregator",
            "certify",
            "client",
            "dealer",
            "norm_check",
        ),
        *("protos", "server_a", "server_b", "simulation"),
    },
}
PARTS = tuple(ALLOWED)
# Of the servers' house the noise alone: a simulation adds the noise that a training
# would.
PLAYS_NOISE = ("simulation",)
NOISE = "precad.aggregator.noise"
# No network, storage or process in them.
PURE = (
    "accounting",
    "aggregator/attempt_states.py",
    "aggregator/collect",
    "aggregator/noise.py",
    "aggregator/peer_link.py",
    "aggregator/rounds/privacy_cap.py",
    "aggregator/server_messages.py",
    "aggregator/validate",
    "certify",
    "common/checks.py",
    "common/errors.py",
    "common/fixed_point.py",
    "common/identifiers.py",
    "common/kernel",
    "common/model.py",
    "common/proof_shape.py",
    "common/ring.py",
    "common/roster.py",
    "common/submission.py",
    "common/task.py",
    "common/task_schema.py",
    "norm_check/dealing.py",
    "norm_check/norm_proof.py",
    "norm_check/prime_field.py",
    "norm_check/proof_submission.py",
    "norm_check/share_update.py",
)
IMPURE = (
    "grpc",
    "google.protobuf",
    "sqlalchemy",
    "precad.aggregator.store",
    "precad.protos",
)
# Services and stubs alone touch messages, besides common/wire and what a submission is
# on the network; the others take plain values. This list only shrinks.
MESSAGES = {
    "aggregator/rpc/aggregation_service.py",
    "aggregator/rpc/dealer_client.py",
    "aggregator/rpc/notices.py",
    "aggregator/rpc/operation_service.py",
    "aggregator/rpc/peer_transport.py",
    "aggregator/workers/worker_pairs.py",
    "aggregator/workers/worker_process.py",
    "client/connection.py",
    "client/server_state.py",
    "dealer/dealing_service.py",
    "norm_check/submission_messages.py",
}
RANDOM = ("random", "numpy.random", "torch.random")
# Where the secrets are: shares, masks, rows, triples, noise, cohorts, samples of
# records. Not client/participant.py, whose waits before it tries again are spread by
# Python's generator.
SECRET = (
    *("aggregator", "common/identity", "common/identifiers.py", "common/kernel"),
    *(
        "common/ring.py",
        "common/submission.py",
        "common/wire",
        "client/gradients/local_update.py",
    ),
    *("client/connection.py", "client/data_owner.py"),
    *("dealer", "norm_check", "server_a", "server_b"),
)


def sources(*under: str) -> list[Path]:
    """Python files of the given folders or files, without generated code; each must exist."""
    found = []
    for path in (ROOT / name for name in under):
        assert path.exists(), path
        found += [path] if path.suffix == ".py" else sorted(path.rglob("*.py"))
    return [path for path in found if "_pb2" not in path.name]


def file_of(path: Path) -> str:
    """``precad.client.connection`` of a path, ``precad.client`` of the folder's own file."""
    return ".".join(
        ("precad", *path.relative_to(ROOT).with_suffix("").parts)
    ).removesuffix(".__init__")


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


@cache
def homes_in(package: str) -> dict[str, str]:
    """In which modules the names are at home that a package shows (common/homes.py)."""
    stub = ROOT.parent.joinpath(*package.split("."), "__init__.pyi")
    if not stub.is_file():
        return {}
    return {
        alias.name: str(node.module)
        for node in tree_of(stub).body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=module, names=names, level=level):
                assert (level, bool(module)) == (0, True), "imports are absolute"
                # `from precad import protos` names a part too.
                yield from (str(module), *(f"{module}.{alias.name}" for alias in names))
                # And `from precad.common import Task` names where it is at home.
                homes = homes_in(str(module))
                for alias in names:
                    if alias.name in homes:
                        home = homes[alias.name]
                        yield from (home, f"{home}.{alias.name}")


def within(module: str, packages: tuple[str, ...]) -> bool:
    return any(module == p or module.startswith(f"{p}.") for p in packages)


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def importers(files: list[Path], wrong: Callable[[str], bool]) -> list[tuple[str, str]]:
    each_import = (
        (relative(path), each) for path in files for each in imported(tree_of(path))
    )
    return [(path, each) for path, each in each_import if wrong(each)]


@pytest.mark.parametrize("part", PARTS)
def test_imports_point_one_way(part: str) -> None:
    allowed = {part, "common", "__version__", "TLS13_ALONE", *ALLOWED[part]}

    def forbidden(module: str) -> bool:
        if part in PLAYS_NOISE and within(module, (NOISE,)):
            return False
        # `from precad import __version__` imports no part.
        _, _, below = module.partition("precad.")
        return bool(below) and below.split(".")[0] not in allowed

    assert importers(sources(part), forbidden) == []


def test_no_files_import_each_other_in_a_circle() -> None:
    """Inside functions, or for their types alone, neither."""
    files = {file_of(path): path for path in sources(*PARTS)}
    imports = {
        file: {*imported(tree_of(path))} & files.keys() for file, path in files.items()
    }
    # `from precad.client import connection` names the folder's own file too, and
    # imports the other.
    lone = {
        file: (
            {of for of in found if not any(each.startswith(f"{of}.") for each in found)}
            - {file}
        )
        for file, found in imports.items()
    }
    assert next(iter(TopologicalSorter(lone).static_order())) in files


def folder_of(file: str) -> str:
    """``precad.aggregator.rounds`` of each file in it; a file beside folders is its own."""
    inner = {each for each in (ROOT / file.split(".")[1]).iterdir() if each.is_dir()}
    below = ".".join(file.split(".")[:3])
    return below if below.rpartition(".")[2] in {each.name for each in inner} else file


def test_no_folders_import_each_other_in_a_circle() -> None:
    # A part's own file stands for all of it, and imports what it shows.
    files = {
        file: path
        for file, path in ((file_of(path), path) for path in sources(*PARTS))
        if file.removeprefix("precad.") not in PARTS
    }
    graph: dict[str, set[str]] = {folder_of(file): set() for file in files}
    for file, path in files.items():
        needed = {folder_of(each) for each in {*imported(tree_of(path))} & files.keys()}
        graph[folder_of(file)] |= needed - {folder_of(file)}
    assert next(iter(TopologicalSorter(graph).static_order())) in graph


def test_no_part_imports_what_the_wheel_lacks() -> None:
    """The demo, the papers' studies, benchmarks and tests import the package."""
    outside = ("examples", "research", "benchmarks", "tests")
    assert importers(sources(*PARTS), lambda module: within(module, outside)) == []
    assert not any((ROOT / folder).exists() for folder in outside)
    assert all((Path(__file__).parents[2] / folder).is_dir() for folder in outside)


def test_mathematics_imports_no_network_and_one_place_messages_and_crypten() -> None:
    """What it loads in turn: test_what_loads.py."""
    assert importers(sources(*PURE), lambda module: within(module, IMPURE)) == []
    found = importers(
        sources(*PARTS), lambda module: within(module, ("precad.protos",))
    )
    assert {
        path for path, _ in found if not path.startswith("common/wire/")
    } == MESSAGES
    found = importers(sources(*PARTS), lambda module: within(module, ("crypten",)))
    assert {path for path, _ in found} == {"aggregator/validate/crypten_import.py"}


def test_no_two_files_of_the_wheel_have_one_name_but_each_parts_process() -> None:
    found = Counter(path.name for path in sources(*PARTS))
    allowed = {"__init__.py", "process.py"}
    assert {name for name, number in found.items() if number > 1} <= allowed


FORBIDDEN_CALLS = {
    *(
        "eval",
        "exec",
        "compile",
        "__import__",
        "torch.load",
        "torch.save",
        "numpy.load",
    ),
    *("joblib.load", "os.system", "yaml.load"),
}
FORBIDDEN_MODULES = ("pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve")
WEAK = {f"torch.{n}" for n in ("rand", "randn", "randint", "manual_seed", "Generator")}


def full_name(node: ast.expr, aliases: dict[str, str]) -> str:
    """``np.random.normal`` as ``numpy.random.normal``."""
    if isinstance(node, ast.Name):
        return aliases.get(node.id, node.id)
    if isinstance(node, ast.Attribute):
        return f"{full_name(node.value, aliases)}.{node.attr}"
    return "?"


def calls(tree: ast.AST) -> Iterator[tuple[str, dict[str | None, ast.expr]]]:
    aliases = {}
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                aliases.update({a.asname: a.name for a in names if a.asname})
            case ast.ImportFrom(module=module, names=names):
                aliases.update(
                    {a.asname or a.name: f"{module}.{a.name}" for a in names}
                )
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield full_name(node.func, aliases), {k.arg: k.value for k in node.keywords}


def dangers(tree: ast.AST) -> list[str]:
    """Calls and imports that run or unpickle what somebody else wrote."""
    found = [module for module in imported(tree) if within(module, FORBIDDEN_MODULES)]
    for name, keywords in calls(tree):
        allowed, shell = keywords.get("allow_pickle"), keywords.get("shell")
        # NumPy's default is False; only a literal False may be written.
        if name == "numpy.load" and (
            allowed is None
            or (isinstance(allowed, ast.Constant) and allowed.value is False)
        ):
            continue
        if name in FORBIDDEN_CALLS or (
            name.startswith("subprocess.")
            and shell is not None
            and ast.literal_eval(shell)
        ):
            found.append(name)
    return found


def weak_randomness(tree: ast.AST) -> list[str]:
    """Uses of Python's, NumPy's or torch's generators, none of which may make a secret."""
    found = [module for module in imported(tree) if within(module, RANDOM)]
    return found + [
        name for name, _ in calls(tree) if within(name, RANDOM) or name in WEAK
    ]


def hits(
    files: list[Path], wrong: Callable[[ast.AST], list[str]]
) -> list[tuple[str, list[str]]]:
    found = [(relative(path), wrong(tree_of(path))) for path in files]
    return [each for each in found if each[1]]


@pytest.mark.parametrize("part", PARTS)
def test_nothing_is_unpickled_or_evaluated(part: str) -> None:
    assert hits(sources(part), dangers) == []


def test_secrets_come_from_no_statistical_generator() -> None:
    files = sources(*SECRET)
    assert len(files) > 40
    assert hits(files, weak_randomness) == []


def test_the_checks_see_the_dangerous() -> None:
    for source in (
        "import pickle",
        "from pickle import loads",
        "import torch as t\nt.load('x')",
        "from torch import load\nload('x')",
        "import numpy as np\nnp.load('x', allow_pickle=True)",
        "import numpy as np\nnp.load('x', allow_pickle=flag)",
        "eval('1')",
        "def f():\n    import subprocess\n    subprocess.run('x', shell=True)",
    ):
        assert dangers(ast.parse(source)), source
    for source in (
        "import random",
        "import numpy as np\nnp.random.default_rng()",
        "from numpy.random import default_rng",
        "import torch\ntorch.randint(3)",
    ):
        assert weak_randomness(ast.parse(source)), source


LISTENS = {
    "grpc.aio.server": "common/wire/guarded_port.py",
    "add_port": "common/wire/guarded_port.py",
    "add_secure_port": "common/identity/mutual_tls.py",
    "_Server": "common/wire/metrics_page.py",
    # For a free port's number, or whether it is free; nothing listens on it.
    "bind": "cli/local_deployment.py common/process_settings.py",
}  # What makes a port, and the one file that may
NEVER = (
    *(
        "grpc.server",
        "add_insecure_port",
        "start_http_server",
        "start_wsgi_server",
        "make_server",
    ),
    *("HTTPServer", "ThreadingWSGIServer", "create_server", "asyncio.start_server"),
    "asyncio.start_unix_server",
)
GUARDED = (
    "aggregator/server_process.py",
    "aggregator/workers/worker_process.py",
    "dealer/process.py",
)


def test_no_part_opens_a_port_without_the_guard() -> None:
    """Every port is a GuardedPort's, or the metrics', which has a guard of its own."""
    made = [
        (relative(path), ast.unparse(node.func))
        for path in sources(*PARTS)
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Call)
    ]
    allowed = LISTENS | dict.fromkeys(NEVER, "nowhere")
    for path, called in made:
        where = allowed.get(called, allowed.get(called.rpartition(".")[2], path))
        assert path in where.split(), f"{path} opens a port by {called}; {where} does"
    assert (
        tuple(sorted(path for path, called in made if called == "GuardedPort"))
        == GUARDED
    )
