"""The coin keys on disk: one for all tasks, until a task's operators want new coins for it."""

import asyncio
import re
import stat
from pathlib import Path

import pytest
from tests.rig.tasks import task_with

from precad.aggregator.rpc.process import open_session
from precad.aggregator.settings import ServerBSettings
from precad.cli.local_deployment import task_to_toml
from precad.common.errors import Misconfiguration, StorageFailure
from precad.common.identifiers import Digest, Role, Secret
from precad.common.identity.credentials import COIN_FILE, read_coin_key, replace_coin_key
from precad.common.identity.deployment_keys import create_local_keys

WARDS, CLINICS = Digest.of(b"wards"), Digest.of(b"clinics")


@pytest.fixture
def identity(tmp_path: Path) -> Path:
    (tmp_path / "keys").mkdir()
    return tmp_path / "keys"


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    (tmp_path / "journal").mkdir()
    return tmp_path / "journal"


def test_tasks_share_the_first_key_until_one_has_new_coins(identity: Path, journal: Path) -> None:
    """Also where both have one journal's folder, one after the other."""
    first, fresh = read_coin_key(identity, journal, WARDS), Secret.random()
    assert len(first) == 32
    assert read_coin_key(identity, journal, CLINICS) == first
    assert [path.name for path in (*identity.iterdir(), *journal.iterdir())] == [COIN_FILE]
    replace_coin_key(journal, WARDS, fresh)
    assert read_coin_key(identity, journal, WARDS) == fresh
    assert read_coin_key(identity, journal, CLINICS) == first
    for path in (*identity.iterdir(), *journal.iterdir()):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_key_from_where_it_was_kept_at_first_goes_on(identity: Path, journal: Path) -> None:
    """An upgrade falls back to no coins that the other server may know."""
    fresh, newer = Secret.random(), Secret.random()
    replace_coin_key(identity, WARDS, fresh)
    assert read_coin_key(identity, journal, WARDS) == fresh
    # A renewed identity folder has it no more.
    (identity / f"coin-{WARDS}.key").unlink()
    assert read_coin_key(identity, journal, WARDS) == fresh
    replace_coin_key(journal, WARDS, newer)
    replace_coin_key(identity, WARDS, fresh)
    assert read_coin_key(identity, journal, WARDS) == newer


def test_what_is_no_key_is_refused_with_its_field_and_file(identity: Path, journal: Path) -> None:
    (identity / COIN_FILE).write_bytes(b"short")
    with pytest.raises(Misconfiguration, match=rf"identity = .*{COIN_FILE}"):
        read_coin_key(identity, journal, WARDS)
    replace_coin_key(journal, WARDS, Secret(b"short"))
    with pytest.raises(Misconfiguration, match=f"journal = .*coin-{WARDS}.key"):
        read_coin_key(identity, journal, WARDS)
    # One that can't be kept says where, and what to do.
    with pytest.raises(StorageFailure, match="settings' journal, then start this server again"):
        replace_coin_key(journal / "full", WARDS, Secret.random())


def test_a_server_keeps_new_coins_where_a_container_keeps_things(tmp_path: Path) -> None:
    """Its identity is read-only there, or in memory and gone with the pod."""
    create_local_keys(tmp_path, [])
    task = task_with({})
    (tmp_path / "task.toml").write_text(task_to_toml(task))
    settings = ServerBSettings(
        task=tmp_path / "task.toml",
        identity=tmp_path / "server-b",
        state=tmp_path / "state",
        journal=tmp_path / "journal",
        listen="127.0.0.1:0",
        dealer="localhost:1",
    )

    async def opening(*, renewed: bool) -> str:
        session = open_session(Role.SERVER_B, settings)
        try:
            if renewed:
                session.coin_key.renew()
            return session.coin_key.opening(task.digest, 0).coin
        finally:
            session.store.close()

    def identity() -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in settings.identity.iterdir()}

    issued = identity()
    first, fresh, again = (asyncio.run(opening(renewed=each)) for each in (False, True, False))
    assert first != fresh == again
    assert identity() == issued


CHECKOUT = Path(__file__).parents[2]


@pytest.mark.parametrize("server", ["a", "b"])
def test_what_keeps_a_server_in_a_container_keeps_its_journal(server: str) -> None:
    """And gives it its keys without a way to change them, or a copy that nobody keeps."""

    def text(*place: str) -> str:
        return CHECKOUT.joinpath(*place).read_text()

    settings = text("deploy", "compose", f"server-{server}.toml")
    assert '\njournal = "journal"\n' in settings
    assert '\nidentity = "keys"\n' in settings
    compose, kit = text("docker-compose.yml"), text("cli", "machines", f"server-{server}.yml")
    service = compose[compose.index(f"\n  server_{server}:") :].partition("\n\n")[0]
    journal = f"server-{server}-journal"
    for part, whole, volume in ((service, compose, journal), (kit, kit, "journal")):
        assert re.search(rf"^ +- {volume}:/precad/journal$", part, re.MULTILINE)
        assert re.search(r"^ +- \S+:/precad/keys:ro$", part, re.MULTILINE)
        assert f"\n  {volume}:\n" in whole[whole.index("\nvolumes:") :] + "\n"
    kubernetes = text("deploy", "kubernetes", f"server-{server}.yml")
    claims = kubernetes[kubernetes.index("volumeClaimTemplates:") :]
    assert "- {name: journal, mountPath: /precad/journal}" in kubernetes
    assert "metadata: {name: journal}" in claims
    assert "metadata: {name: keys}" not in claims
