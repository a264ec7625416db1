"""A deployment on one machine: free addresses, and each party's settings as TOML."""

import json
import math
import re
import secrets
import socket
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path

from precad.common import Task, write_file

_GIVEN: set[str] = set()
"""Addresses that ``free_addresses`` has returned in this process."""


def free_addresses(count: int) -> list[str]:
    """Return so many addresses on loopback whose ports are free now.

    The ports lie below the range that Linux takes outgoing connections' ports from
    (32768 on): none of those gets one of these before a part listens on it.
    """
    addresses: list[str] = []
    # Each is held until all are found, so that none is found twice. Of an earlier call
    # the parts may not listen yet.
    with ExitStack() as held:
        while len(addresses) < count:
            candidate = held.enter_context(socket.socket())
            with suppress(OSError):
                candidate.bind(("127.0.0.1", 10_000 + secrets.randbelow(22_000)))
                address = f"127.0.0.1:{candidate.getsockname()[1]}"
                if address not in _GIVEN:
                    addresses.append(address)
    _GIVEN.update(addresses)
    return addresses


def to_toml(values: Mapping[str, object]) -> str:
    """Return strings, numbers, booleans, lists and tables as a TOML document.

    The tables come last, each under its heading. What is None is left out.
    """
    tables = {key: value for key, value in values.items() if isinstance(value, dict)}
    text = _lines({key: value for key, value in values.items() if key not in tables})
    for key, table in tables.items():
        text += f"\n[{_toml_key(key)}]\n{_lines(table)}"
    return text


def _lines(values: Mapping[str, object]) -> str:
    """Return a line for each key; a table among the values stands in its key's line."""
    return "".join(
        f"{_toml_key(key)} = {toml_value(value)}\n"
        for key, value in values.items()
        if value is not None
    )


def _toml_key(key: str) -> str:
    """Return a key as TOML, in quotes where it needs them.

    A blank, a dot or a letter beyond ASCII would mean another key, or none.
    """
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else toml_value(key)


def toml_value(value: object) -> str:
    """Return a value as TOML; a list of tables has a line for each."""
    match value:
        case dict():
            pairs = [
                f"{_toml_key(key)} = {toml_value(entry)}"
                for key, entry in value.items()
            ]
            return f"{{ {', '.join(pairs)} }}"
        case [dict(), *_]:
            return "[\n" + "".join(f"  {toml_value(row)},\n" for row in value) + "]"
        case list() | tuple():
            return f"[{', '.join(map(toml_value, value))}]"
        case float() if not math.isfinite(value):
            return str(value)
    # JSON's strings, numbers and booleans are TOML's too, but for one control
    # character.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def write_parties(
    folder: Path,
    task: str,
    owners: Mapping[str, Mapping[str, object]],
    addresses: Mapping[str, str],
    *,
    linger_s: float,
) -> None:
    """Write each party's settings file: servers, owners and, if there is one, dealer.

    Paths in them are relative to ``folder``. ``addresses`` are of server-a, server-b
    and, where the task has one, the dealer. ``owners`` has, by name, what each one's
    settings have besides name, addresses and state. Servers whose training ended stay
    for ``linger_s`` seconds.
    """
    server_a = addresses["server-a"]
    server_b = addresses["server-b"]
    dealer = addresses.get("dealer")
    both_servers = {"dealer": dealer, "linger": linger_s}
    settings: dict[str, dict[str, object]] = {
        "server-a": {"listen": server_a, "server_b": server_b, **both_servers},
        "server-b": {"listen": server_b, **both_servers},
    }
    for name, own_settings in owners.items():
        settings[name] = {
            "client": name,
            "server_a": server_a,
            "server_b": server_b,
            **own_settings,
        }
    for name, values in settings.items():
        values["state"] = f"state/{name}"
    if dealer is not None:
        settings["dealer"] = {"listen": dealer, "ends_with_training": True}
    for name, of_party in settings.items():
        whole = {"task": task, "identity": f"keys/{name}", **of_party}
        # An owner's token goes there, or a database's password.
        write_file(folder / f"{name}.toml", to_toml(whole).encode())


def servers_of(task: Task) -> tuple[str, ...]:
    """Return the parts that serve a task, in the order in which they are started."""
    servers = ("server-b", "server-a")
    return ("dealer", *servers) if task.has_dealer else servers
