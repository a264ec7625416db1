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


def test_the_version_is_said_whatever_follows() -> None:
    for arguments in (("--version",), ("--version", "no-such-command")):
        result = run(*arguments)
        assert (result.exit_code, result.stdout) == (0, f"precad {__version__}\n")


def test_no_command_shows_the_help() -> None:
    for path in ((), ("serve",), ("keys",)):
        result = run(*path)
        assert (result.exit_code, "Usage:" in result.output) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["demo", "--dataset", "chess"], ["dataset", "'chess'", "digits, breast-cancer"]),
        (["demo", "--model", "oracle"], ["model", "'oracle'", "digits mlp"]),
        (["demo", "--attack", "rain"], ["--attack", "'rain'", "wraparound", "dropout"]),
        (["demo", "--attackers", "2"], ["--attackers", "2", "--attack wraparound"]),
        (
            ["demo", "--attack", "garbage", "--attackers", "10"],
            ["--attackers", "10", "fewer than the 10 clients"],
        ),
        (["demo", "--attack", "garbage", "--attackers", "0"], ["--attackers", "0", "at least 1"]),
        (["demo", "--clients", "400"], ["clients", "400", "from 1 to 359"]),
        (["demo", "--client-rate", "0"], ["client_rate", "0.0", "greater than 0"]),
        (["status", ADDRESS, "--identity", "/nowhere"], ["/nowhere"]),
    ],
)
def test_a_wrong_value_is_named_with_its_field_and_the_remedy(
    arguments: list[str], said: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    error = refused(*arguments)
    for words in said:
        assert words in error
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        (["demo", "--clients", "0"], "--clients"),
        (["demo", "--rounds", "0"], "--rounds"),
        (["demo", "--rounds", "many"], "--rounds"),
        (["demo", "--seed", "-1"], "--seed"),
        (["demo", "--client-rate", "2"], "--client-rate"),
        (["demo", "--nonsense"], "--nonsense"),
        (["serve", "a"], "--config"),
        (["join"], "--config"),
        (["status"], "ADDRESS"),
        (["status", ADDRESS, "--server", "c", "--identity", "keys"], "--server"),
        (["status", ADDRESS], "--identity"),
    ],
)
def test_an_option_that_cannot_be_is_named(arguments: list[str], option: str) -> None:
    told = commands.refused(*arguments)
    assert option in told
    assert "--help" in told


def test_a_folder_that_holds_something_is_not_written_to(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("mine")
    error = refused("demo", "--output", tmp_path)
    assert f"--output = '{tmp_path}'" in error
    assert "isn't empty" in error
    assert [path.name for path in tmp_path.iterdir()] == ["precious"]


def settings(part: str) -> dict[str, object]:
    """Settings of one part, all well but for a task file that isn't there."""
    both: dict[str, object] = {"task": "task.toml", "identity": "keys"}
    owner = {"client": "ward-3", "server_a": ADDRESS, "server_b": ADDRESS, "data": "x.npz"}
    server = {"listen": ADDRESS, "dealer": "127.0.0.1:7303", "state": "state"}
    return (
        both
        | {
            "a": server | {"server_b": "127.0.0.1:7302"},
            "b": server,
            "dealer": {"listen": ADDRESS},
            "c": owner | {"state": "state"},
        }[part]
    )


PARTS = {"a": ("serve", "a"), "b": ("serve", "b"), "dealer": ("serve", "dealer"), "c": ("join",)}


@pytest.mark.parametrize("part", PARTS)
def test_a_broken_settings_file_is_named_with_what_is_wrong(part: str, tmp_path: Path) -> None:
    config, command = tmp_path / "settings.toml", PARTS[part]
    good = settings(part)
    address = "server_a" if part == "c" else "listen"

    def error(changed: dict[str, object]) -> str:
        config.write_text(to_toml(changed))
        return refused(*command, "--config", config)

    assert f"config = '{config}': can't be read" in refused(*command, "--config", config)
    config.write_bytes(b'task = "unfinished\n')
    assert "at line 1" in refused(*command, "--config", config)
    config.write_bytes(b"\xff\xfe")
    assert f"config = '{config}': isn't UTF-8 text: save it as UTF-8" in refused(
        *command, "--config", config
    )

    assert f"lisen = 3: unknown key in {config}; remove it" in error(good | {"lisen": 3})
    without = {key: value for key, value in good.items() if key != address}
    assert f"{address} = None: is required in {config}" in error(without)
    assert f"{address} = '7301': give host:port" in error(good | {address: "7301"})
    # All well but for a file that is named there: looked for beside the settings file.
    assert f"task = '{tmp_path / 'task.toml'}': can't be read" in error(good)
    (tmp_path / "task.toml").write_text('name = "x"\ncolour = "red"\n')
    assert "is required" in error(good)


@pytest.mark.parametrize("part", PARTS)
def test_an_identity_is_required_and_must_be_there(part: str, tmp_path: Path) -> None:
    config, command = tmp_path / "settings.toml", PARTS[part]
    good = settings(part)
    config.write_text(to_toml({key: good[key] for key in good if key != "identity"}))
    assert f"identity = None: is required in {config}" in refused(*command, "--config", config)
    config.write_text(to_toml(good))
    (tmp_path / "task.toml").write_text(task_to_toml(task_with({})))
    if part != "c":
        error = refused(*command, "--config", config)
        assert f"identity = '{tmp_path / 'keys' / 'ca.pem'}': can't be read (No such file" in error


def test_an_address_without_a_port_is_refused(tmp_path: Path) -> None:
    create_local_keys(tmp_path, [])
    error = refused("status", "nowhere", "--identity", tmp_path / "operator")
    assert "address = 'nowhere': give host:port" in error
