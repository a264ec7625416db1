"""The README's commands: each is taken by the program as it stands."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from precad.cli.main import app
from precad.common.identity.credentials import Identity

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
FENCED = re.findall(r"^```(\w*)\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)
BLOCKS = "".join(text for language, text in FENCED if not language)
LINES = [line.split("  #")[0].split(" # ")[0].strip() for line in BLOCKS.splitlines()]
COMMANDS = [line for line in LINES if line.startswith("precad ")]
DEMOS = [line for line in LINES if line.startswith("make demo ARGS=")]
TABLE = sorted(set(re.findall(r"`precad ([a-z]+)", README)))
MAIN: Any = app


def taken(words: list[str]) -> str:
    """The command that takes these words, parsed and not run."""
    command, rest, context = MAIN, words, None
    path: list[str] = []
    while hasattr(command, "list_commands"):
        name, *rest = rest
        command = command.get_command(context, name)
        assert command is not None, name
        path.append(name)
    command.make_context(path[-1], rest)
    return " ".join(path)


def test_there_are_commands_to_look_at() -> None:
    assert len(COMMANDS) >= 6
    assert len(DEMOS) >= 2
    assert len(TABLE) >= 10


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_is_taken_as_it_stands(line: str) -> None:
    assert taken(shlex.split(line)[1:])


@pytest.mark.parametrize("line", DEMOS)
def test_a_demo_takes_its_arguments(line: str) -> None:
    arguments = shlex.split(line)[2].removeprefix("ARGS=").split()
    if "--help" not in arguments:
        assert taken(["demo", *arguments]) == "demo"


def test_a_wrong_option_is_noticed() -> None:
    with pytest.raises(Exception, match="No such option"):
        taken(["demo", "--attak", "wraparound"])


@pytest.mark.parametrize("name", TABLE)
def test_a_command_that_is_named_is_there(name: str) -> None:
    assert name in MAIN.list_commands(None)


def test_the_keys_are_made_as_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (line,) = (line for line in COMMANDS if " keys init " in line)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        app(shlex.split(line)[1:])
    assert ended.value.code == 0
    made = [path.name for path in (tmp_path / "keys").iterdir()]
    assert len([name for name in made if name.startswith("client")]) == 3
    assert Identity.load(tmp_path / "keys" / "server-a")
