"""Every command in docs/ and README is typed by a test, or its page says what that would need."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from click import ClickException
from tests.rig import pages
from tests.rig.pages import ROOT, commands, typed

from precad.cli.main import app

ALL = [each for page in pages.pages() for each in commands(page)]
PARSED = [each for each in ALL if each.text.startswith("precad ")]
MAIN: Any = app


@pytest.mark.parametrize("page", [each for each in pages.pages() if typed(each)])
def test_a_page_with_commands_has_a_test_that_types_them(page: str) -> None:
    """It names the page, by its path or its name, in a folder of real processes."""
    named = rf'"({re.escape(page)}|{re.escape(Path(page).name)})"'
    tests = [*ROOT.glob("tests/e2e/**/test_*.py"), *ROOT.glob("tests/soak/**/test_*.py")]
    assert any(re.search(named, path.read_text("utf-8")) for path in tests)


@pytest.mark.parametrize("page", sorted({each.page for each in PARSED}))
def test_a_command_is_taken_as_it_stands(page: str) -> None:
    """Also where it isn't run: names and options are right."""
    for command in (each for each in PARSED if each.page == page):
        words = shlex.split(command.text, comments=True)[1:]
        ends = [at for at, word in enumerate(words) if word in {"&", ">", "|", "||", "&&", ";"}]
        words = words[: min(ends, default=len(words))]
        inner, context = MAIN, None
        try:
            while hasattr(inner, "list_commands") and words and not words[0].startswith("-"):
                inner, words = inner.get_command(context, words[0]), words[1:]
                assert inner is not None
            if words != ["--version"]:
                inner.make_context("precad", words)
        except (ClickException, AssertionError) as error:
            pytest.fail(f"{page}:{command.line}: {command.text}: {error!r}")


def test_tests_that_marks_name_exist() -> None:
    named = {name for each in ALL for name in re.findall(r"tests/[\w/]+\.\w+", each.needs)}
    assert named
    assert [name for name in named if not (ROOT / name).is_file()] == []
