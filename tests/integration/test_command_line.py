"""`precad` as a person meets it: help that teaches, and refusals that say what to do."""

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.rig import commands
from tests.rig.commands import precad as run
from tests.rig.tasks import task_with

from precad import __version__
from precad.cli.local_deployment import task_to_toml, to_toml
from precad.cli.main import app
from precad.common.identity.deployment_keys import create_local_keys

ADDRESS = "127.0.0.1:7301"
NO_CONTEXT: Any = None


def refused(*arguments: object) -> str:
    """What stderr says, on one line of ours, after a refusal with status 2."""
    told = commands.refused(*arguments)
    lines = [line for line in told.splitlines() if line.startswith("precad: ")]
    assert (len(lines), "Traceback" in told) == (1, False), told
    return lines[0]


def inner(command: Any) -> list[str]:
    """The names inside a group; it may load what they stand for only when asked."""
    return list(command.list_commands(NO_CONTEXT)) if hasattr(command, "list_commands") else []


def every(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield path
    for name in inner(command):
        yield from every(command.get_command(NO_CONTEXT, name), (*path, name))


ALL = list(every(app))


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_every_command_explains_itself_and_each_of_its_options(path: tuple[str, ...]) -> None:
    result = run(*path, "--help")
    assert result.exit_code == 0
    command: Any = app
    for name in path:
        command = command.get_command(NO_CONTEXT, name)
    assert len(command.help.split()) >= 4
    for parameter in command.params:
        if parameter.param_type_name == "option" and "--help" not in parameter.opts:
            assert parameter.help, parameter.name
    for name in inner(command):
        assert name in result.stdout


def test_help_shows_a_settings_file_that_is_one() -> None:
    for command, needed in (("serve", {"server_b", "dealer", "state"}), ("join", {"client"})):
        text = run(command, "--help").stdout
        lines = [line.strip() for line in text.splitlines() if " = " in line]
        shown = tomllib.loads("\n".join(lines))
        assert needed | {"task", "identity"} <= set(shown)


@pytest.mark.parametrize(
    ("line", "status", "said"),
    [
        ("--version", 0, f"precad {__version__}\n"),
        ("--version no-such-command", 0, f"precad {__version__}\n"),
        *((line, 2, "Usage:") for line in ("", "serve", "keys")),
    ],
)
def test_the_version_is_said_and_no_command_shows_the_help(
    line: str, status: int, said: str
) -> None:
    result = run(*line.split())
    assert (result.exit_code, said in result.output) == (status, True)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("demo --dataset chess", ["dataset", "'chess'", "digits, breast-cancer"]),
        ("demo --model oracle", ["model", "'oracle'", "digits mlp"]),
        ("demo --attack rain", ["--attack", "'rain'", "wraparound", "dropout"]),
        ("demo --attackers 2", ["--attackers", "2", "--attack wraparound"]),
        ("demo --attack garbage --attackers 10", ["--attackers = 10", "fewer than the 10 clients"]),
        ("demo --attack garbage --attackers 0", ["--attackers = 0", "at least 1"]),
        ("demo --clients 400", ["clients", "400", "from 1 to 359"]),
        ("demo --client-rate 0", ["client_rate", "0.0", "greater than 0"]),
        ("demo --output full", ["--output = 'full'", "isn't empty"]),
        (f"status {ADDRESS} --identity /nowhere", ["/nowhere"]),
        ("status nowhere --identity full/operator", ["address = 'nowhere': give host:port"]),
    ],
)
def test_a_wrong_value_is_named_with_its_field_and_the_remedy(
    line: str, said: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    create_local_keys(tmp_path / "full", [])
    before = sorted(tmp_path.rglob("*"))
    error = refused(*line.split())
    assert [words for words in said if words not in error] == [], error
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("line", "option"),
    [
        ("demo --clients 0", "--clients"),
        ("demo --rounds 0", "--rounds"),
        ("demo --rounds many", "--rounds"),
        ("demo --seed -1", "--seed"),
        ("demo --client-rate 2", "--client-rate"),
        ("demo --nonsense", "--nonsense"),
        ("serve a", "--config"),
        ("join", "--config"),
        ("status", "ADDRESS"),
        (f"status {ADDRESS} --server c --identity keys", "--server"),
        (f"status {ADDRESS}", "--identity"),
    ],
)
def test_an_option_that_cannot_be_is_named(line: str, option: str) -> None:
    told = commands.refused(*line.split())
    assert (option in told, "--help" in told) == (True, True), told


BOTH: dict[str, object] = {"task": "task.toml", "identity": "keys"}
SERVER = {"listen": ADDRESS, "dealer": "127.0.0.1:7303", "state": "state"}
OWNER = {"client": "ward-3", "server_a": ADDRESS, "server_b": ADDRESS, "data": "x.npz"}
PARTS: dict[str, dict[str, object]] = {
    "serve a": BOTH | SERVER | {"server_b": "127.0.0.1:7302"},
    "serve b": BOTH | SERVER,
    "serve dealer": BOTH | {"listen": ADDRESS},
    "join": BOTH | OWNER | {"state": "state"},
}
"""Settings of each part, all well but for a task file that isn't there."""


@pytest.mark.parametrize("part", PARTS)
def test_a_broken_settings_file_is_named_with_what_is_wrong(part: str, tmp_path: Path) -> None:
    config, good = tmp_path / "settings.toml", PARTS[part]
    address = "server_a" if part == "join" else "listen"

    def error(changed: dict[str, object] | bytes | None) -> str:
        if changed is not None:
            text = changed if isinstance(changed, bytes) else to_toml(changed).encode()
            config.write_bytes(text)
        return refused(*part.split(), "--config", config)

    def without(field: str) -> dict[str, object]:
        return {key: value for key, value in good.items() if key != field}

    assert f"config = '{config}': can't be read" in error(None)
    assert "at line 1" in error(b'task = "unfinished\n')
    assert f"config = '{config}': isn't UTF-8 text: save it as UTF-8" in error(b"\xff\xfe")
    assert f"lisen = 3: unknown key in {config}; remove it" in error(good | {"lisen": 3})
    for required in (address, "identity"):
        assert f"{required} = None: is required in {config}" in error(without(required))
    assert f"{address} = '7301': give host:port" in error(good | {address: "7301"})
    # All well but for a file that is named there: looked for beside the settings file.
    assert f"task = '{tmp_path / 'task.toml'}': can't be read" in error(good)
    (tmp_path / "task.toml").write_text('name = "x"\ncolour = "red"\n')
    assert "is required" in error(good)
    (tmp_path / "task.toml").write_text(task_to_toml(task_with({})))
    if part != "join":
        there = f"identity = '{tmp_path / 'keys' / 'ca.pem'}': can't be read (No such file"
        assert there in error(good)
