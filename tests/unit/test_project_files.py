"""The files around the code: CONTRIBUTING.md, Makefile, hooks, examples, licence."""

import hashlib
import json
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
SCRIPTS = sorted(EXAMPLES.glob("*.py"))
# A source distribution has no links: there the package's folders are in src/precad only.
ROOTS = (ROOT, ROOT / "src" / "precad")
# The Apache Software Foundation's text, unchanged.
APACHE_2_SHA256 = "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30"


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def targets() -> set[str]:
    """What `make` can be asked for."""
    (line,) = re.findall(r"^\.PHONY: (.*)$", text_of("Makefile"), re.MULTILINE)
    return set(line.split())


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    return dict(tomllib.loads(text_of("pyproject.toml"))["project"])


def test_contributing_names_paths_that_exist() -> None:
    named = set(re.findall(r"`([\w.]*(?:/[\w.]+)+|\w+\.md)`", text_of("CONTRIBUTING.md")))
    assert {"tests/e2e", "common/errors.py", ".ci/run", "SECURITY.md"} <= named
    assert [n for n in sorted(named) if not any((root / n).exists() for root in ROOTS)] == []


def test_contributing_names_every_kind_of_test() -> None:
    kinds = {path.name for path in (ROOT / "tests").iterdir() if any(path.rglob("test_*.py"))}
    assert {"unit", "e2e"} <= kinds
    named = set(re.findall(r"^\| `tests/(\w+)` \|", text_of("CONTRIBUTING.md"), re.MULTILINE))
    assert kinds <= named


def test_contributing_names_make_targets_that_exist() -> None:
    named = set(re.findall(r"`make ([\w-]+)", text_of("CONTRIBUTING.md")))
    assert named == targets() - {"help"}


def test_make_help_lists_every_target() -> None:
    said = subprocess.run(
        ["make", "--no-print-directory", "-C", ROOT, "help"],
        capture_output=True,
        text=True,
        check=True,
    )
    listed = [line.split()[:2] for line in said.stdout.splitlines()]
    assert sorted(listed) == sorted(["make", target] for target in targets())


def test_a_commit_passes_what_make_lint_checks_with_programs_that_make_installs(
    project: dict[str, Any],
) -> None:
    hooks = text_of(".pre-commit-config.yaml")
    assert set(re.findall(r"repo: (.*)", hooks)) == {"local"}
    entries = re.findall(r"entry: (.*)", hooks)
    installed = {re.split(r"\W", each)[0] for each in project["optional-dependencies"]["dev"]}
    for entry in entries:
        program, _, arguments = entry.partition(" ")
        if program == "make":
            assert arguments in targets()
        else:
            assert program.removeprefix(".venv/bin/") in installed
    (lint,) = re.findall(r"^lint:.*\n((?:\t.*\n)+)", text_of("Makefile"), re.MULTILINE)
    checks = re.findall(r"\$\(BIN\)/(ruff \w+|\w+)", lint)
    assert len(checks) == len(lint.splitlines())
    for check in checks:
        assert any(entry.startswith(f".venv/bin/{check}") for entry in entries), check


def test_the_licence_is_whole_and_the_one_that_the_package_names(project: dict[str, Any]) -> None:
    assert hashlib.sha256((ROOT / "LICENSE").read_bytes()).hexdigest() == APACHE_2_SHA256
    assert (project["license"], project["license-files"]) == ("Apache-2.0", ["LICENSE"])


def test_the_image_is_built_with_every_file_that_the_package_names(project: dict[str, Any]) -> None:
    """Everything else is kept out of the build."""
    let_in = {line[1:] for line in text_of(".dockerignore").splitlines() if line.startswith("!")}
    links = {path.name for path in (ROOT / "src" / "precad").iterdir() if path.is_dir()}
    files = {"pyproject.toml", "setup.py", "src", project["readme"], *project["license-files"]}
    files |= {"deploy/*.py"}
    assert let_in == files | (links - {"__pycache__"})


def test_every_benchmark_is_a_program_that_make_bench_can_run_without_words() -> None:
    """`make bench` runs each: what only another one calls lies in a folder of its own."""
    programs = sorted((ROOT / "benchmarks").glob("*.py"))
    assert programs
    for program in programs:
        source = program.read_text(encoding="utf-8")
        assert '\nif __name__ == "__main__":\n    main()\n' in source, program.name
        needed = re.findall(r'add_argument\(\s*"(?!-)|required=True', source)
        assert not needed, f"{program.name} can't run without words"


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_a_notebooks_code_is_the_scripts_and_ran_without_an_error(script: Path) -> None:
    cells = re.split(r"^# %%.*\n", script.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    notebook = json.loads(script.with_suffix(".ipynb").read_text(encoding="utf-8"))
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert ["".join(cell["source"]) for cell in code] == [
        cell.strip("\n") for cell in cells if not all_comment(cell)
    ]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    kinds = {each["output_type"] for cell in code for each in cell["outputs"]}
    assert kinds <= {"stream", "display_data", "execute_result"}
    assert script.with_suffix(".ipynb").stat().st_size < 100_000


def all_comment(cell: str) -> bool:
    return all(line.startswith("#") for line in cell.strip("\n").splitlines())


def test_every_example_stands_in_the_list() -> None:
    listed = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert len(SCRIPTS) >= 6
    assert [script.name for script in SCRIPTS if f"]({script.name})" not in listed] == []
