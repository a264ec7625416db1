"""The files of a local deployment: task, settings, data, keys; one folder a party."""

import json
import secrets
import socket
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from precad.client.record_file import write_client_data
from precad.common.identifiers import ClientId
from precad.common.task import Task

LINGER_S = 600.0
"""Servers of a local deployment stay until whoever started them stops them."""

Data = tuple[NDArray[np.float32], NDArray[np.int64]]
Way = Callable[[str, str], str]
"""The address at which a part, by its name, reaches another part's address."""


def straight(_who: str, address: str) -> str:
    """Nothing in between."""
    return address


def free_addresses(count: int) -> list[str]:
    """Addresses on loopback whose ports are free now.

    Below the range that Linux takes outgoing connections' ports from (32768 on): none of those
    gets one of these before a part listens on it.
    """
    sockets: list[socket.socket] = []
    try:
        while len(sockets) < count:
            candidate = socket.socket()
            try:
                candidate.bind(("127.0.0.1", 10_000 + secrets.randbelow(22_000)))
            except OSError:
                candidate.close()
            else:
                sockets.append(candidate)
        return [f"127.0.0.1:{held.getsockname()[1]}" for held in sockets]
    finally:
        for held in sockets:
            held.close()


def to_toml(values: Mapping[str, object]) -> str:
    """A TOML document of strings, numbers, booleans, lists and tables, the tables last."""
    flat = {key: value for key, value in values.items() if not isinstance(value, dict)}
    tables = {key: value for key, value in values.items() if isinstance(value, dict)}
    return "".join(
        [f"{key} = {_toml_value(value)}\n" for key, value in flat.items()]
        + [f"\n[{key}]\n{to_toml(table)}" for key, table in tables.items()]
    )


def _toml_value(value: object) -> str:
    match value:
        case dict():
            return f"{{ {', '.join(f'{key} = {_toml_value(one)}' for key, one in value.items())} }}"
        case [dict(), *_]:
            return "[\n" + "".join(f"  {_toml_value(row)},\n" for row in value) + "]"
    # JSON's strings, numbers and booleans are TOML's too.
    return json.dumps(value)


def task_to_toml(task: Task) -> str:
    """A task file that reads back as ``task``."""
    return to_toml(task.model_dump(mode="json", exclude_none=True))


def write_settings(
    folder: Path,
    task: Task,
    data: Mapping[ClientId, Data],
    addresses: Mapping[str, str],
    *,
    linger_s: float = LINGER_S,
    way: Way = straight,
) -> None:
    """Write every party's settings, and every client's records, under ``folder``."""
    (folder / "task.toml").write_text(task_to_toml(task), encoding="utf-8")
    a, b, dealer = addresses["server-a"], addresses["server-b"], addresses["dealer"]
    settings: dict[str, dict[str, object]] = {
        "dealer": {"listen": dealer},
        "server-a": {"listen": a, "server_b": way("server-a", b)},
        "server-b": {"listen": b},
    }
    for server in ("server-a", "server-b"):
        settings[server] |= {
            "dealer": way(server, dealer),
            "state": f"state/{server}",
            "linger": linger_s,
        }
    records = folder / "records"
    records.mkdir(exist_ok=True)
    for client, (x, y) in data.items():
        settings[client.name] = {
            "client": client.name,
            "server_a": way(client.name, a),
            "server_b": way(client.name, b),
            "data": f"records/{write_client_data(records, client, x, y).name}",
            "state": f"state/{client}",
        }
    for name, values in settings.items():
        whole = {"task": "task.toml", "identity": f"keys/{name}", **values}
        (folder / f"{name}.toml").write_text(to_toml(whole), encoding="utf-8")
