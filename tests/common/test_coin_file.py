"""The coin keys on disk: one for all tasks, until a task's operators want new coins for it."""

import asyncio
import re
import stat
from pathlib import Path

import pytest
from tests.conftest import TaskMaker

from precad.aggregator.rpc.process import open_session
from precad.aggregator.settings import ServerBSettings
from precad.cli.local_deployment import to_toml
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


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def test_tasks_share_the_key_that_is_made_at_first(identity: Path, journal: Path) -> None:
    first = read_coin_key(identity, journal, WARDS).reveal()
    assert len(first) == 32
    assert read_coin_key(identity, journal, CLINICS).reveal() == first
    assert names(identity) == [COIN_FILE]
    assert names(journal) == []


def test_new_coins_for_one_task_leave_the_others_theirs(identity: Path, journal: Path) -> None:
    """Also where both have one journal's folder, one after the other."""
    first = read_coin_key(identity, journal, CLINICS).reveal()
    fresh = Secret.random()
    replace_coin_key(journal, WARDS, fresh)
    assert read_coin_key(identity, journal, WARDS).reveal() == fresh.reveal()
    assert read_coin_key(identity, journal, CLINICS).reveal() == first
    for path in (*identity.iterdir(), *journal.iterdir()):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_key_from_where_it_was_kept_at_first_goes_on(identity: Path, journal: Path) -> None:
    """An upgrade falls back to no coins that the other server may know."""
    fresh = Secret.random()
    replace_coin_key(identity, WARDS, fresh)
    assert read_coin_key(identity, journal, WARDS).reveal() == fresh.reveal()
    # A renewed identity folder has it no more.
    (identity / f"coin-{WARDS}.key").unlink()
    assert read_coin_key(identity, journal, WARDS).reveal() == fresh.reveal()
    newer = Secret.random()
    replace_coin_key(journal, WARDS, newer)
    replace_coin_key(identity, WARDS, fresh)
    assert read_coin_key(identity, journal, WARDS).reveal() == newer.reveal()


def test_what_is_no_key_is_refused_with_its_field_and_file(identity: Path, journal: Path) -> None:
    (identity / COIN_FILE).write_bytes(b"short")
    with pytest.raises(Misconfiguration, match=rf"identity = .*{COIN_FILE}"):
        read_coin_key(identity, journal, WARDS)
    replace_coin_key(journal, WARDS, Secret(b"short"))
    with pytest.raises(Misconfiguration, match=f"journal = .*coin-{WARDS}.key"):
        read_coin_key(identity, journal, WARDS)


def test_a_key_that_can_t_be_kept_says_where_and_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(StorageFailure, match="settings' journal, then start this server again"):
        replace_coin_key(tmp_path / "full", WARDS, Secret.random())


def test_a_server_keeps_new_coins_where_a_container_keeps_things(
    tmp_path: Path, make_task: TaskMaker
) -> None:
    """Its identity is read-only there, or in memory and gone with the pod."""
    create_local_keys(tmp_path, [])
    task = make_task()
    (tmp_path / "task.toml").write_text(to_toml(task.model_dump(mode="json", exclude_none=True)))
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

    issued = {path.name: path.read_bytes() for path in settings.identity.iterdir()}
    first = asyncio.run(opening(renewed=False))
    fresh = asyncio.run(opening(renewed=True))
    assert fresh != first
    assert {path.name: path.read_bytes() for path in settings.identity.iterdir()} == issued
    assert asyncio.run(opening(renewed=False)) == fresh


CHECKOUT = Path(__file__).parents[2]


@pytest.mark.parametrize("server", ["a", "b"])
@pytest.mark.parametrize("kept", ["compose", "kit", "kubernetes"])
def test_what_keeps_a_server_in_a_container_keeps_its_journal(server: str, kept: str) -> None:
    """And gives it its keys without a way to change them, or a copy that nobody keeps."""
    settings = (CHECKOUT / "deploy" / "compose" / f"server-{server}.toml").read_text()
    assert '\njournal = "journal"\n' in settings
    assert '\nidentity = "keys"\n' in settings
    if kept == "compose":
        text = (CHECKOUT / "docker-compose.yml").read_text()
        part = text[text.index(f"\n  server_{server}:") :].partition("\n\n")[0]
        volumes, volume = text[text.index("\nvolumes:") :], f"server-{server}-journal"
    elif kept == "kit":
        text = (CHECKOUT / "cli" / "machines" / f"server-{server}.yml").read_text()
        part, volumes, volume = text, text[text.index("\nvolumes:") :], "journal"
    else:
        text = (CHECKOUT / "deploy" / kept / f"server-{server}.yml").read_text()
        claims = text[text.index("volumeClaimTemplates:") :]
        assert "- {name: journal, mountPath: /precad/journal}" in text
        assert "metadata: {name: journal}" in claims
        assert "metadata: {name: keys}" not in claims
        return
    assert re.search(rf"^ +- {volume}:/precad/journal$", part, re.MULTILINE)
    assert re.search(r"^ +- \S+:/precad/keys:ro$", part, re.MULTILINE)
    assert f"\n  {volume}:\n" in f"{volumes}\n"
