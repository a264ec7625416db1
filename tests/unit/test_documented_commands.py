"""Every command in docs/ and README is typed by a test, or its page says what that would need."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from tests.rig import pages
from tests.rig.pages import ROOT, Command, commands, typed

from precad.cli.main import app

TYPED_BY = "tests/soak/test_documented_commands.py"
PLAYED_BY = {
    "README.md": TYPED_BY,
    "docs/ceremony.md": "tests/soak/test_ceremony.py",
    "docs/data-owner.md": "tests/soak/test_runbooks.py",
    "docs/durable-state.md": "tests/soak/test_runbooks.py",
    "docs/experiments.md": TYPED_BY,
    "docs/identity.md": TYPED_BY,
    "docs/quick-start.md": "tests/soak/test_quick_start.py",
    "docs/report.md": TYPED_BY,
    "docs/robustness.md": TYPED_BY,
    "docs/several-tasks.md": "tests/soak/test_further_task.py",
    "docs/simulate.md": TYPED_BY,
    "docs/trained-model.md": TYPED_BY,
    **{
        f"docs/runbooks/{name}.md": "tests/soak/test_runbooks.py"
        for name in (
            *("sizing", "backup", "upgrade", "certificates", "lost-key", "lost-disk"),
            *("lost-party", "leaving", "incident"),
        )
    },
}
"""By page, the test that types all its commands that aren't marked, from the page itself."""
BY_THEIR_OWN_EYES = ("docs/ceremony.md", "docs/quick-start.md")
"""Pages whose tests read them by rules of their own; the others' take `tests.rig.pages.typed`."""
ALL = [each for page in pages.pages() for each in commands(page)]
PARSED = [each for each in ALL if each.text.startswith("precad ")]
MAIN: Any = app


def place(command: Command) -> str:
    return f"{command.page}:{command.line}"


@pytest.mark.parametrize("page", pages.pages())
def test_a_page_with_commands_has_a_test_that_types_them(page: str) -> None:
    assert bool(typed(page)) == (page in PLAYED_BY), [place(each) for each in typed(page)]


@pytest.mark.parametrize(("page", "test"), PLAYED_BY.items())
def test_the_test_that_is_named_types_the_page(page: str, test: str) -> None:
    text = (ROOT / test).read_text(encoding="utf-8")
    name = Path(page).name if page in BY_THEIR_OWN_EYES else page
    assert f'"{name}"' in text
    assert page in BY_THEIR_OWN_EYES or "tests.rig.pages import" in text


def test_the_ceremony_and_the_quick_start_type_what_is_found_here() -> None:
    from tests.soak import test_ceremony, test_quick_start  # noqa: PLC0415

    fenced = [line for kind, _, text in test_ceremony.FENCED if kind == "sh" for line in [text]]
    lines = [line for text in fenced for line in text.splitlines()]
    assert lines == [each.text for each in typed("docs/ceremony.md")]
    found = [each.text for each in typed("docs/quick-start.md")]
    assert sorted(test_quick_start.TYPED) == sorted(found)


@pytest.mark.parametrize("command", PARSED, ids=place)
def test_a_command_is_taken_as_it_stands(command: Command) -> None:
    """Also where it isn't run: names and options are right."""
    words = shlex.split(command.text, comments=True)[1:]
    ends = [place for place, word in enumerate(words) if word in {"&", ">", "|", "||", "&&", ";"}]
    words = words[: min(ends, default=len(words))]
    inner, context = MAIN, None
    while hasattr(inner, "list_commands") and words and not words[0].startswith("-"):
        inner, words = inner.get_command(context, words[0]), words[1:]
        assert inner is not None
    if words != ["--version"]:
        inner.make_context("precad", words)


def test_a_mark_says_what_is_needed_and_stands_before_commands() -> None:
    marked = {each.page for each in ALL if each.needs}
    for page in pages.pages():
        marks = re.findall(
            r"^<!-- (?:all commands need|needs)", (ROOT / page).read_text("utf-8"), re.MULTILINE
        )
        assert bool(marks) == (page in marked), page
    assert all(len(each.needs) > 3 for each in ALL if each.needs)


def test_tests_that_marks_name_exist() -> None:
    named = {name for each in ALL for name in re.findall(r"tests/[\w/]+\.\w+", each.needs)}
    assert named
    assert [name for name in named if not (ROOT / name).is_file()] == []


def test_there_are_commands_of_each_kind() -> None:
    assert len(typed("docs/ceremony.md")) >= 50
    assert sum(len(typed(page)) for page in PLAYED_BY if "runbooks" in page) >= 100
    # Most are played: a mark is the exception.
    assert sum(not each.needs for each in ALL) > 3 * sum(bool(each.needs) for each in ALL)


PAGE = """# A page

Text.

    precad keys show keys     # whose
    what is no command

    precad ledger verify STATE \\
      --json
1. A list
    precad no command, but a paragraph

    precad keys revoke keys operator

<!-- needs: a telescope -->
```sh title="North"
ls stars

```

```
precad status
└── a drawing
```

    what is no command
<!-- needs: another telescope -->

    precad keys show operator
"""


def test_what_is_a_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "README.md").write_text(PAGE, encoding="utf-8")
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    found = [(c.line, c.text, c.says, c.title, c.needs) for c in commands("README.md")]
    assert found == [
        (5, "precad keys show keys", "whose", "", ""),
        (8, "precad ledger verify STATE --json", "", "", ""),
        (13, "precad keys revoke keys operator", "", "", ""),
        (17, "ls stars", "", "North", "a telescope"),
        (22, "precad status", "", "", ""),
        (29, "precad keys show operator", "", "", "another telescope"),
    ]
    whole = PAGE.replace("Text.", "<!-- all commands need: a year -->")
    (tmp_path / "README.md").write_text(whole, encoding="utf-8")
    assert {c.needs for c in commands("README.md")} == {
        "a year",
        "a telescope",
        "another telescope",
    }
