"""`precad health`, by gRPC's health protocol: whether a part serves, told to it and operators."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from tests.rig.commands import precad, refused
from tests.rig.loop import LoopThread

from precad.common.errors import AccessDenied
from precad.common.identifiers import Role
from precad.common.identity.credentials import Identity
from precad.common.identity.deployment_keys import create_local_keys
from precad.common.wire.calls import is_serving
from precad.common.wire.serving import add_health

WAIT_S = 60.0


@dataclass
class Part:
    """A dealer that does nothing but answer how it is."""

    keys: Path
    address: str = ""
    serves: bool = True

    def health(self, listen: str | None = None, wait: float = WAIT_S) -> Any:
        config = self.keys.parent / "settings.toml"
        config.write_text(f'listen = "{listen or self.address}"\nidentity = "keys/dealer"\n')
        return precad("health", "--config", config, "--wait", wait)


@pytest.fixture
def part(tmp_path: Path) -> Iterator[Part]:
    create_local_keys(tmp_path / "keys", ["ward-3"])
    made = Part(tmp_path / "keys")
    identity = Identity.load(made.keys / "dealer")

    def make() -> grpc.aio.Server:
        server = grpc.aio.server()
        add_health(server, identity, lambda: made.serves)
        return server

    with LoopThread() as loop:
        made.address = loop.serve(make, identity)
        yield made


def test_a_part_that_serves_ends_the_check_with_0_and_one_that_stops_with_1(part: Part) -> None:
    result = part.health()
    assert (result.exit_code, result.stdout) == (0, "dealer: serving\n")
    assert part.health(part.address.replace("127.0.0.1", "0.0.0.0")).exit_code == 0
    part.serves = False
    result = part.health()
    assert (result.exit_code, result.stdout) == (1, "dealer: not serving\n")


def test_nobody_there_ends_it_with_1(part: Part) -> None:
    result = part.health("127.0.0.1:9", wait=1.0)
    assert (result.exit_code, "dealer at 127.0.0.1:9 can't be" in result.stderr) == (1, True)


def test_settings_of_an_owner_have_no_port_to_ask(tmp_path: Path) -> None:
    config = tmp_path / "settings.toml"
    config.write_text('identity = "keys"\n')
    assert "needs listen and identity" in refused("health", "--config", config)


def test_the_operator_may_ask_and_an_owner_may_not(part: Part) -> None:
    operator, owner = (Identity.load(part.keys / name) for name in ("operator", "ward-3"))
    assert is_serving(part.address, Role.DEALER, operator, timeout_s=WAIT_S)
    with pytest.raises(AccessDenied):
        is_serving(part.address, Role.DEALER, owner, timeout_s=WAIT_S)
