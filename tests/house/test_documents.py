"""Documents and code name what is there: links, sections, paths, functions, tests, words.

Code cites a document as ``docs/soundness.md`` or ``docs/soundness.md, "Headroom"``;
documents name code by its path, and functions and tests as ``path`` · ``function``.
"""

import ast
import re
import shlex
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

import pytest
from click import ClickException
from tests.rig import pages
from tests.rig.commands import taken
from tests.rig.pages import ROOT, commands, typed

PACKAGE = ROOT / "src" / "precad"
"""Links to the top-level folders; in a source distribution the folders themselves."""
PARTS = tuple(
    sorted(each.name for each in (ROOT / "src" / "precad").iterdir() if each.is_dir())
)
CODE = sorted(
    path
    for folder in (
        *(PACKAGE / part for part in PARTS),
        ROOT / "tests",
        ROOT / "benchmarks",
    )
    for path in folder.rglob("*.py")
    if "_pb2" not in path.name and path != Path(__file__)
)
DOCUMENTS = sorted(
    [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "benchmarks").rglob("*.md"),
    ]
)


@cache
def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@cache
def flat(path: Path) -> str:
    """A document, or a source with its comments' line breaks undone, with single spaces."""
    text = text_of(path)
    if path.suffix != ".md":
        text = re.sub(r"\n\s*#\s?", " ", text)
    return " ".join(text.replace('"docs" / "', '"docs/').split())


@cache
def headings(path: Path) -> list[str]:
    """Without the code blocks, whose comments would look like headings."""
    text = re.sub(r"^```.*?^```", "", text_of(path), flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)


def anchor(heading: str) -> str:
    """As the usual renderers make it: lower case, punctuation gone, blanks to hyphens."""
    return re.sub(r"[^\w\- ]", "", heading.lower().replace("`", "")).replace(" ", "-")


def wrong_in(found: Iterator[tuple[Path, str]]) -> dict[str, list[str]]:
    wrong: dict[str, list[str]] = {}
    for path, what in found:
        wrong.setdefault(str(path.relative_to(ROOT)), []).append(what)
    return wrong


def test_every_document_and_section_that_code_cites_is_there() -> None:
    cited = re.compile(r'(?<![\w/.-])((?:[\w.-]+/)*[\w-]+\.md\b)(?:, "([^"]+)")?')
    wrong = (
        (path, f"{name}, {heading}")
        for path in CODE
        for name, heading in cited.findall(flat(path))
        if not (ROOT / name).is_file()
        or (heading and heading not in headings(ROOT / name))
    )
    assert wrong_in(wrong) == {}


LINK = re.compile(r"\]\(([^)\s]+)\)")


def test_every_link_leads_to_a_file_and_a_section() -> None:
    def leads(page: Path, name: str, fragment: str) -> bool:
        linked = page.parent / name if name else page
        return linked.exists() and (
            not fragment or fragment in map(anchor, headings(linked))
        )

    broken = (
        (page, f"{name}#{fragment}")
        for page in DOCUMENTS
        for name, _, fragment in (t.partition("#") for t in LINK.findall(text_of(page)))
        if "://" not in name and not leads(page, name, fragment)
    )
    assert wrong_in(broken) == {}


def test_the_documents_stay_short() -> None:
    """What must be read is worth reading: whoever adds a page makes its room."""

    def words(page: Path) -> int:
        return len(re.sub(r"<!--.*?-->", "", text_of(page), flags=re.DOTALL).split())

    # Alerts, exit statuses and releases came as pages of their own: 2,000 words. Units,
    # owners with one person and bounds by size: 600. Kinds of questions, and plans: 500.
    # Planning a study, from questions to a training: 700.
    assert sum(map(words, (ROOT / "docs").rglob("*.md"))) <= 73_000
    assert words(ROOT / "README.md") <= 900


def test_the_index_links_every_document_of_its_folder() -> None:
    index = ROOT / "docs" / "index.md"
    targets = (target.partition("#")[0] for target in LINK.findall(text_of(index)))
    linked = {(index.parent / target).resolve() for target in targets}
    assert sorted(set((ROOT / "docs").rglob("*.md")) - {index} - linked) == []


FOLDERS = {"src", "tests", "benchmarks", "deploy", "docs", *PARTS}
TEST_FOLDERS = (path.name for path in (ROOT / "tests").iterdir() if path.is_dir())
NAMED_PATH = re.compile(rf"`((?:{'|'.join(FOLDERS)})/[\w./-]*)`")
NAMED_TEST = re.compile(rf"`(?:tests/)?((?:{'|'.join(TEST_FOLDERS)})/[\w/]+\.py)`")
# A file, and functions or classes in it.
NAMED = re.compile(r"`((?:[\w]+/)+\w+\.py)`(?: ·|,)((?:,? `\w+`)+)")


def home(name: str) -> Path | None:
    places = (ROOT / name, PACKAGE / name, ROOT / "tests" / name)
    return next((path for path in places if path.exists()), None)


@cache
def names_in(path: Path) -> set[str]:
    """Functions, classes and constants that a file defines or takes from elsewhere."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(text_of(path))):
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                found.add(name)
            case ast.Name(id=name, ctx=ast.Store()):
                found.add(name)
            case ast.ImportFrom(names=names):
                found |= {alias.asname or alias.name for alias in names}
    return found


def test_every_path_function_and_test_that_a_document_names_exists() -> None:
    known: set[str] = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        known |= {
            path.stem,
            *re.findall(r"^ *def (test_\w+)", text_of(path), re.MULTILINE),
        }

    def missing() -> Iterator[tuple[Path, str]]:
        for page in DOCUMENTS:
            paths = NAMED_PATH.findall(text_of(page)) + NAMED_TEST.findall(
                text_of(page)
            )
            yield from ((page, name) for name in paths if home(name) is None)
            for name, listed in NAMED.findall(flat(page)):
                there = names_in(path) if (path := home(name)) else set()
                yield from (
                    (page, each) for each in set(re.findall(r"`(\w+)`", listed)) - there
                )
            alone = re.findall(r"`(test_\w+)`", flat(page))
            yield from ((page, name) for name in alone if name not in known)

    assert wrong_in(missing()) == {}


def test_every_file_that_a_question_or_a_mark_names_is_there() -> None:
    text = text_of(Path(__file__).with_name("ten_questions.toml"))
    questions = tomllib.loads(text)["question"]
    assert len(questions) == 10
    named = {each["file"] for each in questions if "file" in each}
    marked = {
        name for each in ALL for name in re.findall(r"tests/[\w/]+\.\w+", each.needs)
    }
    assert marked
    assert [name for name in named | marked if not (ROOT / name).is_file()] == []


def test_every_corrected_formula_is_in_a_table_and_every_reference_value_is_there() -> (
    None
):
    printed = text_of(ROOT / "research" / "printed" / "printed_certificates.py")
    corrected = re.findall(
        r"^def (\w+)\([^)]*\) -> Reproduction", printed, re.MULTILINE
    )
    certificates = text_of(ROOT / "docs" / "certificates.md")
    assert corrected
    assert [name for name in corrected if f"`{name}`" not in certificates] == []
    golden = text_of(ROOT / "tests" / "vectors" / "golden.json")
    names = set(re.findall(r'"name": "([^"]+)"', golden))
    accounting = text_of(ROOT / "docs" / "privacy-accounting.md")
    patterns = re.findall(r"`(\w+\*)`", accounting + certificates)
    assert len(patterns) > 15
    assert [p for p in patterns if not any(fnmatch(name, p) for name in names)] == []


# Commands: each is typed by a test, or its page says what that would need.

ALL = [each for page in pages.pages() for each in commands(page)]
PARSED = [each for each in ALL if each.text.startswith("precad ")]


@pytest.mark.parametrize("page", [each for each in pages.pages() if typed(each)])
def test_a_page_with_commands_has_a_test_that_types_them(page: str) -> None:
    """It names the page, by its path or its name, in a folder of real processes."""
    named = rf'"({re.escape(page)}|{re.escape(Path(page).name)})"'
    tests = [
        *ROOT.glob("tests/e2e/**/test_*.py"),
        *ROOT.glob("tests/soak/**/test_*.py"),
    ]
    assert any(re.search(named, path.read_text("utf-8")) for path in tests)


@pytest.mark.parametrize("page", sorted({each.page for each in PARSED}))
def test_a_command_is_taken_as_it_stands(page: str) -> None:
    """Also where it isn't run: names and options are right."""
    for command in (each for each in PARSED if each.page == page):
        words = shlex.split(command.text, comments=True)[1:]
        ends = [
            at
            for at, word in enumerate(words)
            if word in {"&", ">", "|", "||", "&&", ";"}
        ]
        try:
            taken(*words[: min(ends, default=len(words))])
        except (ClickException, AssertionError) as error:
            pytest.fail(f"{page}:{command.line}: {command.text}: {error!r}")
