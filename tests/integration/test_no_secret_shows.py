"""No command repeats a secret; logs of real parts are searched in integration/deployment."""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from tests.rig.commands import precad
from tests.rig.tasks import task_with

from precad.cli.local_deployment import task_to_toml, to_toml
from precad.cli.main import COMMANDS
from precad.common.identity.deployment_keys import create_local_keys

PLANTED = "xplantedx"
HOST = "127.0.0.1"
PROXY = f"http://u:{PLANTED}@{HOST}:1"
DATABASES = (
    f"postgresql://precad:{PLANTED}@{HOST}:bad/precad",
    f"postgresql://precad:{PLANTED}@{HOST}:99999/precad",
    f"postgresql://precad:x@{PLANTED}@{HOST}/precad",
    f"postgresql://precad:{PLANTED}@{HOST}:1/precad",
    f"postgresql://{HOST}:1/precad?user=precad&password={PLANTED}",
    f"postgresql://precad:{PLANTED}@{HOST}:1/precad?connect_timeout=never",
    f"mysql://precad:{PLANTED}@{HOST}/precad",
    f"postgres:/precad:{PLANTED}@{HOST}/precad",
)


def config(folder: Path, values: dict[str, object]) -> str:
    path = folder / "settings.toml"
    path.write_text(to_toml({"task": "task.toml", "state": "state"} | values), encoding="utf-8")
    return str(path)


def owner(folder: Path, values: dict[str, object]) -> str:
    settings = {"client": "ward-3", "server_a": f"{HOST}:1", "server_b": f"{HOST}:1"}
    return config(folder, settings | {"identity": "keys/ward-3", "data": "nothing.csv"} | values)


def server(folder: Path, **values: object) -> str:
    settings = {"identity": "keys/server-b", "listen": f"{HOST}:0", "dealer": f"{HOST}:1"}
    return config(folder, settings | values)


def keys_of(folder: Path) -> str:
    return str(folder / "keys" / "operator")


Line = Callable[[Path], Sequence[object]]
_SETTINGS: tuple[dict[str, object], ...] = (
    {"token": PLANTED},
    {"token": [PLANTED]},
    {"tokne": PLANTED},
    {"token": PLANTED, "proxy": PROXY},
    {"proxy": f"http://u:{PLANTED}@{HOST}"},
    {"proxy": f"https://u:{PLANTED}@{HOST}:1"},
    {"server_a": PROXY},
)
LINES: dict[str, list[Line]] = {
    "demo": [lambda _: ("--output", DATABASES[0], "--dataset", "chess")],
    "simulate": [lambda _: (DATABASES[0],)],
    "plan": [lambda _: ("--task", DATABASES[0])],
    "task": [lambda _: ("show", DATABASES[0])],
    "account": [lambda _: ("--task", DATABASES[0])],
    "certify": [lambda _: ("model", DATABASES[0])],
    "keys": [
        lambda f: ("show", f / "keys"),
        lambda f: ("show", f / "keys" / "ward-3" / "key.pem"),
        lambda f: ("issue", f / "keys", "client", "ward-3"),
        lambda _: ("show", DATABASES[0]),
    ],
    "enrol": [
        lambda f: ("token", "--state", f / "state", "--digest", PLANTED),
        lambda f: ("show", "--state", f / "state"),
    ],
    "setup": [lambda f: (f / "run", "--task", DATABASES[0], "--data", DATABASES[1])],
    "serve": [
        *(lambda f, d=d: ("b", "--config", server(f, database=d)) for d in DATABASES[:3]),
        *(lambda f, d=d: ("b", "--config", server(f, database=d)) for d in DATABASES[5:]),
        lambda f: ("b", "--config", server(f, databse=DATABASES[3])),
        lambda f: ("b", "--config", server(f, dealer=PROXY)),
        lambda f: ("b", "--config", server(f, database=[PLANTED])),
        lambda f: ("b", "--config", server(f, proxy=f"http://u:{PLANTED}@:1")),
    ],
    "doctor": [
        lambda f, s=s: ("--wait", "1", "--config", owner(f, s))  # type: ignore[misc]
        for s in _SETTINGS
    ],
    "join": [lambda f, s=s: ("--config", owner(f, s)) for s in _SETTINGS],  # type: ignore[misc]
    "predict": [lambda _: ("--model", DATABASES[0], DATABASES[0])],
    "evaluate": [lambda _: ("--model", DATABASES[0], DATABASES[0])],
    "status": [
        lambda f: (f"{HOST}:1", "--identity", keys_of(f), "--proxy", f"http://u:{PLANTED}@{HOST}"),
        lambda f: (f"{HOST}:1", "--identity", keys_of(f), "--proxy", PROXY),
        lambda f: (PROXY, "--identity", keys_of(f)),
        lambda f: (f"{HOST}:1", PROXY, "--identity", keys_of(f)),
    ],
    "health": [lambda f: ("--config", server(f, database=DATABASES[0]))],
    "allow": [lambda f: ("coin", PROXY, "--version", 1, "--identity", keys_of(f))],
    "ledger": [
        *(lambda _, d=d: ("show", d) for d in DATABASES),
        *(lambda _, d=d: ("verify", d, "--against", d) for d in DATABASES),
        lambda _: ("show", "state", DATABASES[0]),
        lambda _: ("mine", DATABASES[0]),
    ],
    "backup": [lambda f, d=d: (d, f / "copy") for d in DATABASES],  # type: ignore[misc]
    "kit": [lambda _: ("client", "ward-3", "--consortium", DATABASES[0])],
    "report": [lambda _, d=d: (d,) for d in DATABASES],  # type: ignore[misc]
    "audit": [lambda _: ("--task", DATABASES[0])],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_and_no_log_repeats_a_secret(
    command: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "task.toml").write_text(task_to_toml(task_with({})), encoding="utf-8")
    create_local_keys(tmp_path / "keys", ["ward-3"])
    bodies = [path.read_text("utf-8").splitlines()[1] for path in tmp_path.rglob("key.pem")]
    coins = [path.read_bytes().hex() for path in tmp_path.rglob("coin.key")]
    assert min(len(bodies), len(coins)) > 0
    for line in LINES[command]:
        ended = precad(command, *line(tmp_path))
        output = ended.output + caplog.text
        for secret in (PLANTED, *bodies, *coins):
            assert secret not in output, (ended, output)
        # One line for a person, and no traceback.
        assert isinstance(ended.exception, SystemExit | None), (output, ended.exception)
