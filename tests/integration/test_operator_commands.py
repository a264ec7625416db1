"""`precad setup`, `enrol` and `health` as operators use them; what setup makes trains in soak."""

import json
import re
import stat
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc.aio
import pytest
from tests.rig.commands import precad, refused
from tests.rig.loop import LoopThread
from tests.rig.tasks import task_with

from precad.aggregator.enrol.admission import ByToken
from precad.aggregator.settings import ServerASettings, ServerBSettings
from precad.cli.local_deployment import task_to_toml
from precad.client.owner_settings import JoinSettings
from precad.common.errors import AccessDenied
from precad.common.identifiers import ClientId
from precad.common.identity.credentials import Identity
from precad.common.identity.deployment_keys import create_local_keys
from precad.common.wire.serving import add_health


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a task and two tables; the current one."""
    task = task_with({"enrolment.clients": 2, "enrolment.min_clients": 2})
    (tmp_path / "task.toml").write_text(task_to_toml(task), encoding="utf-8")
    for name in ("Ward_1.csv", "ward-2.csv"):
        (tmp_path / name).write_text("a,y\n1,0\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


SETUP = ("setup", "run", "--task", "task.toml")
BOTH = ("--data", "Ward_1.csv", "--data", "ward-2.csv")


def test_every_party_gets_settings_that_load_and_keys_of_its_own(place: Path) -> None:
    made = precad(*SETUP, *BOTH, "--model", "nets:Net")
    assert made.exit_code == 0, made.stderr
    a = ServerASettings.load(place / "run" / "server-a.toml")
    b = ServerBSettings.load(place / "run" / "server-b.toml")
    assert a.server_b == b.listen
    for name, file in (("ward-1", "Ward_1.csv"), ("ward-2", "ward-2.csv")):
        owner = JoinSettings.load(place / "run" / f"{name}.toml")
        assert (owner.client, owner.model, owner.data.resolve()) == (name, "nets:Net", place / file)
        assert (owner.server_a, owner.server_b) == (a.listen, b.listen)
        assert Identity.load(owner.identity).principal.name == name
        # A token goes into the settings.
        for private in (owner.identity / "key.pem", place / "run" / f"{name}.toml"):
            assert stat.S_IMODE(private.stat().st_mode) == 0o600
    # What it says to run next is there.
    named = re.findall(r"--config (\S+)", made.stdout)
    assert len(named) == 6
    assert all((place / each).is_file() for each in named)


@pytest.mark.parametrize(
    ("arguments", "remedy"),
    [
        (["--data", "ward-2.csv"], "the task takes 2 to 2 owners"),
        (["--data", "ward-2.csv", "--data", "ward-2.csv"], "a name of its own"),
        (["--data", "ward-2.csv", "--data", "ward-3.csv"], "there is no such file"),
    ],
)
def test_a_mistake_makes_nothing(arguments: list[str], remedy: str, place: Path) -> None:
    assert remedy in refused(*SETUP, *arguments)
    assert not (place / "run").exists()
    # Nor is a folder written to that is there.
    (place / "run").mkdir()
    assert "exists already" in refused(*SETUP, *BOTH)


ONE, TWO = ClientId("ward-1"), ClientId("ward-2")
enrol = partial(precad, "enrol")


def token(state: Path, *more: str) -> list[str]:
    """What the command prints, in words: the token, `digest` and its digest."""
    result = enrol("token", "--state", state, *more)
    assert result.exit_code == 0, result.output
    return result.stdout.split()


def redeemed(state: Path, made: str) -> None:
    """It is the first client's, and nobody else's."""
    ByToken(state).redeem(made, ONE)
    with pytest.raises(AccessDenied):
        ByToken(state).redeem(made, TWO)


def test_a_token_works_at_both_servers_of_which_one_needs_its_digest_alone(tmp_path: Path) -> None:
    """Which a pipe gets too: on stderr it was lost in one."""
    a, b, c, d = (tmp_path / name for name in "abcd")
    made, word, digest = token(a, "--state", str(b))
    assert (word, [*ByToken(a).owners()]) == ("digest", [digest])
    answer = json.loads(" ".join(token(c, "--digest", digest, "--json")))
    assert answer == {"tokens": [], "digests": [digest]}
    assert token(d, "--digest", digest)[1] == digest
    for server in (a, b, c, d):
        redeemed(server, made)


def test_a_token_made_for_a_client_is_that_clients_at_both_servers(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    made, _, digest = token(a, "--client", "ward-1")
    token(b, "--client", "ward-1", "--digest", digest)
    for server in (a, b):
        assert [*ByToken(server).owners().values()] == ["ward-1"]
        with pytest.raises(AccessDenied):
            ByToken(server).redeem(made, TWO)
        redeemed(server, made)
    # Each named client gets one of its own, and of many no two are alike.
    token(tmp_path / "named", "--client", "ward-1", "--client", "ward-2")
    assert {*ByToken(tmp_path / "named").owners().values()} == {"ward-1", "ward-2"}
    many = json.loads(" ".join(token(tmp_path, "--count", "5", "--json")))["tokens"]
    assert len({*many}) == len(ByToken(tmp_path).owners()) == 5


def test_show_names_users_and_no_token(tmp_path: Path) -> None:
    made = enrol("token", "--state", tmp_path, "--count", "2").stdout.splitlines()
    used, unused = (line.split(" ")[0] for line in made)
    ByToken(tmp_path).redeem(used, ONE)
    text = enrol("show", "--state", tmp_path).stdout
    listing = json.loads(enrol("show", "--state", tmp_path, "--json").stdout)
    assert sorted(str(each["client"]) for each in listing[str(tmp_path)]) == ["None", "ward-1"]
    for words, there in (("ward-1", True), ("unused", True), (used, False), (unused, False)):
        assert (words in text) is there


@pytest.mark.parametrize(
    "arguments",
    [
        "--digest xyz",
        "--digest 00",
        f"--digest {'0' * 64} --count 2",
        "--client ward-1 --count 2",
        f"--client ward-1 --client ward-2 --digest {'0' * 64}",
        "--client WARD-1",
    ],
)
def test_a_wrong_value_is_a_usage_error(tmp_path: Path, arguments: str) -> None:
    result = enrol("token", "--state", tmp_path, *arguments.split())
    assert (result.exit_code, "Traceback" in result.output) == (2, False)
    assert ByToken(tmp_path).owners() == {}


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
