"""A mutation run: does a test fail for each small change of what must be right?

    make mutants
    python -m tests.mutants --minutes 30 --modules accounting

Each mutant is one change of one module (``operators.py``), made where the module is
imported, in a process forked from a warm parent (``child.py``): no file changes. It
plays the tests that run the changed line, the quickest first, until one fails; before a
mutant counts as survived, all tests of those files. Which tests run which lines is
found out once a module. The result is written after each mutant, and a run that is
broken off goes on: what was done stays, as long as the module has such a place. The
order is mixed by a seed, so that a part of a run is a sample of the whole.

Neither well-kept tool fits. mutmut 3 doesn't follow the links that ``src/precad`` is
made of, and changes no constant of a module and no decorated function; cosmic-ray
writes each change into the source and starts pytest anew for it: imports of torch and
SciPy are seconds a mutant.

``explained.json`` says of survivors why no test can tell them apart, or what would.
``named.txt`` has mutants that reviews made by hand and that no test killed then, by
module and tests: name, text before, text after. Each dies now.
"""

import argparse
import ast
import functools
import importlib
import io
import json
import os
import platform
import tokenize
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from random import Random

from tests.mutants.child import ROOT, Coverage, covering, imported, play
from tests.mutants.operators import Mutation, mutated, mutations

RESULT = ROOT / "benchmarks/results/mutants.json"
EXPLAINED = Path(__file__).with_name("explained.json")
NAMED = Path(__file__).with_name("named.txt")
PARTS = (
    *(
        "accounting",
        "certify",
        "aggregator/noise.py",
        "common/ring.py",
        "common/fixed_point.py",
        "common/submission.py",
    ),
    *("norm_check", "aggregator/validate", "aggregator/release.py", "aggregator/store"),
    *("client/own_account.py", "client/data_set_account.py"),
    "client/account_plan.py",
    *("client/account_file.py", "client/both_servers.py"),
    "client/server_statements.py",
)
LEFT_OUT = ("plots.py", "/migrations/", "__init__.py")
KINDS = (
    *("accounting", "aggregator", "certify", "client", "common", "norm_check"),
    *("property", "vectors", "contract"),
)
TESTS = (
    *(f"{kind}/**/test_*.py" for kind in KINDS),
    *(f"integration/{part}test_*.py" for part in ("", "store/", "validation/")),
)
NOT_THESE = ("document", "_command", "test_cli_", "test_two_processes", "test_browser")
"""Of prose, or of whole commands, which are slow and start processes that have no
mutant."""
ALSO = {
    "aggregator/release.py": ["tests/integration/test_run_round.py"],
    "aggregator/store": ["tests/integration/store"],
}  # Tests of a folder that don't name its modules
WARM = (
    *("numpy", "scipy.stats", "scipy.special", "torch", "pydantic", "sqlalchemy"),
    *("alembic", "cryptography.x509", "click", "matplotlib", "mpmath", "pandas"),
    *("dp_accounting", "sklearn", "hypothesis", "greenlet", "psycopg"),
)
ENOUGH_S = 60.0
"""Of CPU time, and five times what the tests take by themselves: after it a mutant is
endless."""
LAYOUT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}
CLOSING = (")", "]", "}")


def modules() -> list[str]:
    found = [
        str(path.relative_to(ROOT))
        for part in PARTS
        for path in (
            [ROOT / part]
            if part.endswith(".py")
            else sorted((ROOT / part).rglob("*.py"))
        )
    ]
    return [each for each in found if not any(word in each for word in LEFT_OUT)]


def tests_of(module: str) -> list[str]:
    """Files of tests that name the module, or one that imports it, or what a package
    shows."""
    near = [
        module,
        *(other for other in modules() if _names_one(ROOT / other, [module])),
    ]
    found = [
        each
        for folder, files in ALSO.items()
        if module.startswith(folder)
        for each in files
    ]
    for folder in TESTS:
        for path in sorted((ROOT / "tests").glob(folder)):
            name = str(path.relative_to(ROOT))
            if not any(word in name for word in NOT_THESE) and _names_one(path, near):
                found.append(name)
    return found


@functools.cache
def _imports(path: Path) -> frozenset[tuple[str, str]]:
    """(module, name) of each import from the package."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    return frozenset(
        (node.module or "", each.name) for node in nodes for each in node.names
    )


@functools.cache
def _shown(module: str) -> frozenset[tuple[str, str]]:
    """What is imported by whoever imports a name of the module, from it or from its
    package."""
    body = ast.parse((ROOT / module).read_text(encoding="utf-8")).body
    names = {
        node.name for node in body if isinstance(node, ast.ClassDef | ast.FunctionDef)
    }
    package, _, name = imported(module).rpartition(".")
    return frozenset({(package, each) for each in (*names, name)})


def _names_one(path: Path, of: Sequence[str]) -> bool:
    found = _imports(path)
    origins = {origin for origin, _ in found}
    return any(imported(each) in origins or found & _shown(each) for each in of)


@functools.cache
def covered(module: str) -> Coverage:
    """Which tests run which lines, found out once."""
    tests = tests_of(module)
    return covering(module, tests) if tests else {"lines": {}, "seconds": {}}


def judge(mutation: Mutation, coverage: Coverage) -> list[str]:
    """What came of one mutant: ["killed", test], ["endless"], ["survived"] or ["not
    run"]."""
    seconds = coverage["seconds"]
    lines = (coverage["lines"].get(str(line), ()) for line in mutation.run)
    running = (
        {test for tests in lines for test in tests} if mutation.run else set(seconds)
    )
    if not running:
        return ["not run"]
    tree = mutated(mutation, (ROOT / mutation.module).read_text(encoding="utf-8"))
    files = {test.partition("::")[0] for test in running}
    others = [test for test in seconds if test.partition("::")[0] in files]
    for some in (
        sorted(running, key=lambda test: seconds[test]),
        [test for test in others if test not in running],
    ):
        if some:
            limit = ENOUGH_S + 5 * sum(seconds[test] for test in some)
            played = play(some, limit, (mutation.module, tree))
            if played.status == "endless":
                return ["endless"]
            if played.status != "passed":
                return ["killed", played.killer]
    return ["survived"]


def named() -> Iterator[tuple[str, str, str, str, str]]:
    """Module, tests, name, text before and after of each of ``named.txt``."""
    module = tests = name = old = ""
    for line in NAMED.read_text(encoding="utf-8").splitlines():
        match line[:2], line[2:]:
            case "# ", name:
                pass
            case "- ", old:
                pass
            case "+ ", new:
                yield module, f"tests/{tests}", name, old, new
            case _:
                module, tests = line.split()


def _code(text: str) -> list[tuple[str, int, int]]:
    """Tokens of code, each with where it begins and ends; how lines break doesn't
    count.

    Of a piece of code too, whose brackets needn't close.
    """
    starts = [0, *accumulate(len(line) for line in text.splitlines(keepends=True))]
    found: list[tuple[str, int, int]] = []
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type in LAYOUT:
                continue
            if token.string in CLOSING and found and found[-1][0] == ",":
                found.pop()
            (first, column), (last, after) = token.start, token.end
            found.append(
                (token.string, starts[first - 1] + column, starts[last - 1] + after)
            )
    except tokenize.TokenError:
        pass
    return found


def replaced(source: str, old: str, new: str) -> str:
    """The source with ``new`` in the one place of ``old``, however that is laid out.

    Raises LookupError: there is no such place, or more than one.
    """
    code = _code(source)
    wanted = [text for text, _, _ in _code(old)]
    texts = [text for text, _, _ in code]
    places = [
        start
        for start in range(len(texts) - len(wanted) + 1)
        if texts[start : start + len(wanted)] == wanted
    ]
    if len(places) != 1:
        raise LookupError(f"{len(places)} places of: {old}")
    begin = code[places[0]][1]
    end = code[places[0] + len(wanted) - 1][2]
    return source[:begin] + new + source[end:]


def judge_named() -> list[dict[str, object]]:
    """The review's survivors, each with the test that kills it."""
    found = []
    for module, tests, name, old, new in named():
        source = (ROOT / module).read_text(encoding="utf-8")
        tree = ast.parse(replaced(source, old, new))
        played = play([tests], 300.0, (module, tree))
        shown = {"name": name, "module": module, "mutation": f"{old} → {new}"}
        found.append(
            shown | {"killed by": played.killer, "cpu_s": round(played.cpu_s, 1)}
        )
        print(f"{name}: {played.killer or 'SURVIVED'}", flush=True)  # noqa: T201
    return found


class Result:
    def __init__(self, path: Path) -> None:
        self._path = path
        kept = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        self.named: list[dict[str, object]] = kept.get("named", [])
        self.done: dict[str, list[str]] = {
            row[0]: row[4:] for row in kept.get("mutants", [])
        }
        """What came of each mutant, by its key."""
        self.cpu_s: float = kept.get("cpu_s", 0.0)

    def write(self, every: dict[str, Mutation]) -> None:
        """Of mutants that the modules still have."""
        explained = json.loads(EXPLAINED.read_text(encoding="utf-8"))
        judged = [
            (every[key], outcome) for key, outcome in self.done.items() if key in every
        ]
        rows = [
            [each.key, each.module, each.line, each.what, *out] for each, out in judged
        ]
        rows.sort(key=lambda row: row[1:3])
        names = ("key", "where", "mutation", "outcome", "explanation")
        survivors = [
            dict(
                zip(
                    names,
                    (key, f"{at}:{line}", what, out, explained.get(key, "")),
                    strict=True,
                )
            )
            for key, at, line, what, out, *_ in rows
            if out in {"survived", "not run"}
        ]
        hardware = {"processor": platform.machine(), "cores": os.cpu_count()}
        summary = {
            "what": "make mutants",
            "hardware": hardware,
            "cpu_s": round(self.cpu_s),
        }
        summary |= {"mutants": len(every), "judged": len(rows)}
        summary |= dict(sorted(Counter(str(row[4]) for row in rows).items()))
        by_module = Counter(row[1] for row in rows)
        document = {"summary": summary, "by_module": by_module, "named": self.named}
        lines = ",\n".join(f"    {json.dumps(row, ensure_ascii=False)}" for row in rows)
        text = json.dumps(
            document | {"survivors": survivors}, indent=2, ensure_ascii=False
        )[:-2]
        text += f',\n  "cpu_s": {self.cpu_s:.1f},\n  "mutants": [\n{lines}\n  ]\n}}\n'
        self._path.write_text(text, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--minutes", type=float, help="of CPU time; all mutants without it"
    )
    parser.add_argument("--modules", default="", help="only those whose path begins so")
    parser.add_argument(
        "--named", action="store_true", help="only the review's survivors"
    )
    given = parser.parse_args()
    for name in WARM:
        importlib.import_module(name)
    result = Result(RESULT)
    sources = (
        (module, (ROOT / module).read_text(encoding="utf-8")) for module in modules()
    )
    found = [each for source in sources for each in mutations(*source)]
    every = {each.key: each for each in found}
    if given.named or not result.named:
        result.named = judge_named()
        result.write(every)
    if given.named:
        return
    order = [each for each in found if each.module.startswith(given.modules)]
    Random(1).shuffle(order)
    began = sum(os.times()[:4])
    for each in (each for each in order if each.key not in result.done):
        before = sum(os.times()[:4])
        if given.minutes is not None and before - began >= 60 * given.minutes:
            break
        result.done[each.key] = outcome = judge(each, covered(each.module))
        result.cpu_s += sum(os.times()[:4]) - before
        result.write(every)
        said = f"{each.module}:{each.line} {each.what}: {' '.join(outcome)}"
        print(said, flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
