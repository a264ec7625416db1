"""`precad health`, by gRPC's health protocol: whether a part serves.

Whom it is told: hostile/test_access_table.py.
"""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc.aio
import pytest
from tests.rig.commands import precad, refused
from tests.rig.loop import LoopThread

from precad.common.identity.credentials import Identity
from precad.common.identity.deployment_keys import create_local_keys
from precad.common.wire.serving import add_health

WAIT_S = 60.0


@pytest.fixture
def part(tmp_path: Path) -> Iterator[SimpleNamespace]:
    """A dealer that does nothing but answer how it is."""
    create_local_keys(tmp_path / "keys", [])
    identity = Identity.load(tmp_path / "keys" / "dealer")
    made = SimpleNamespace(serves=True)

    def make() -> grpc.aio.Server:
        server = grpc.aio.server()
        add_health(server, identity, lambda: made.serves)
        return server

    def health(listen: str | None = None, wait: float = WAIT_S) -> Any:
        config = tmp_path / "settings.toml"
        config.write_text(f'listen = "{listen or made.address}"\nidentity = "keys/dealer"\n')
        return precad("health", "--config", config, "--wait", wait)

    with LoopThread() as loop:
        made.address, made.health = loop.serve(make, identity), health
        yield made


def test_a_part_that_serves_ends_the_check_with_0_and_any_other_with_1(part: Any) -> None:
    result = part.health()
    assert (result.exit_code, result.stdout) == (0, "dealer: serving\n")
    assert part.health(part.address.replace("127.0.0.1", "0.0.0.0")).exit_code == 0
    part.serves = False
    result = part.health()
    assert (result.exit_code, result.stdout) == (1, "dealer: not serving\n")
    result = part.health("127.0.0.1:9", wait=1.0)
    assert (result.exit_code, "dealer at 127.0.0.1:9 can't be" in result.stderr) == (1, True)


def test_settings_of_an_owner_have_no_port_to_ask(tmp_path: Path) -> None:
    config = tmp_path / "settings.toml"
    config.write_text('identity = "keys"\n')
    assert "needs listen and identity" in refused("health", "--config", config)
