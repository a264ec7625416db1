"""The files of a local deployment: task, settings, data, keys; one folder a party."""

import json
import secrets
import socket
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from precad.client.records.read_records import write_client_data
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
    return _lines(flat) + "".join(f"\n[{key}]\n{_lines(table)}" for key, table in tables.items())


def _lines(values: Mapping[str, object]) -> str:
    """A key a line; tables within are written in the line."""
    return "".join(f"{key} = {_toml_value(value)}\n" for key, value in values.items())


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
    records = folder / "records"
    records.mkdir(exist_ok=True)
    owners = {
        client.name: {"data": f"records/{write_client_data(records, client, x, y).name}"}
        for client, (x, y) in data.items()
    }
    write_parties(folder, "task.toml", owners, addresses, linger_s=linger_s, way=way)


def write_parties(
    folder: Path,
    task: str,
    owners: Mapping[str, Mapping[str, object]],
    addresses: Mapping[str, str],
    *,
    linger_s: float,
    way: Way = straight,
) -> list[Path]:
    """Write the settings of dealer, servers and owners, one file each.

    Args:
        folder: receives the files; paths in them are relative to it.
        task: the task's file.
        owners: by name, what each has besides name, addresses and state.
        addresses: of dealer, server-a and server-b.
        linger_s: how long servers whose training ended stay.
        way: what a part dials to reach another part's address.

    Returns:
        The files.
    """
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
    for name, own in owners.items():
        settings[name] = {
            "client": name,
            "server_a": way(name, a),
            "server_b": way(name, b),
            **own,
            "state": f"state/{name}",
        }
    written = []
    for name, values in settings.items():
        whole = {"task": task, "identity": f"keys/{name}", **values}
        written.append(folder / f"{name}.toml")
        written[-1].write_text(to_toml(whole), encoding="utf-8")
    return written
