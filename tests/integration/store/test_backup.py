"""A copy of a server's state, taken beside the server, and what isn't in it."""

from pathlib import Path

import pytest
from tests.rig.commands import precad
from tests.rig.stores import Opener, prepared, tamper

from precad.aggregator.store import audit_ledger
from precad.aggregator.store.audit import back_up
from precad.common.errors import Misconfiguration


@pytest.fixture
def state(tmp_path: Path, opener: Opener) -> Path:
    """The folder of a server that runs: its database is open and locked."""
    folder = tmp_path / "state"
    for name in ("model.seal", "model.safetensors", "tokens/0", "spool/body"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(name.encode())
    prepared(opener(f"sqlite:///{folder / 'state.db'}"))
    return folder


def test_the_copy_is_what_the_server_had_and_no_more(
    state: Path, tmp_path: Path, opener: Opener
) -> None:
    copy = tmp_path / "copy"
    audit = back_up(state, copy)
    assert (audit.findings, audit.entries) == ((), 1)
    assert audit.head == audit_ledger(f"sqlite:///{state / 'state.db'}").head
    kept = sorted(str(path.relative_to(copy)) for path in copy.rglob("*") if path.is_file())
    assert kept == ["model.safetensors", "model.seal", "state.db", "tokens/0"]
    assert [path.stat().st_mode & 0o777 for path in (copy, copy / "state.db")] == [0o700, 0o600]
    # A server opens it.
    assert len(opener(f"sqlite:///{copy / 'state.db'}").ledger.participations()) == 2


def test_a_copy_is_never_written_over(state: Path, tmp_path: Path) -> None:
    (tmp_path / "copy").mkdir()
    with pytest.raises(Misconfiguration, match="name a new folder"):
        back_up(state, tmp_path / "copy")
    assert list((tmp_path / "copy").iterdir()) == []


def test_a_folder_without_a_database_is_refused_with_what_to_do(tmp_path: Path) -> None:
    for state in (tmp_path, Path("postgresql://precad:planted@db/precad")):
        with pytest.raises(Misconfiguration, match="pg_dump") as refused:
            back_up(state, tmp_path / "copy")
        assert "planted" not in str(refused.value)
    assert not (tmp_path / "copy").exists()


def test_the_command_says_the_head_and_fails_where_the_ledger_is_broken(
    state: Path, tmp_path: Path
) -> None:
    head = audit_ledger(f"sqlite:///{state / 'state.db'}").head
    said = precad("backup", state, tmp_path / "one")
    assert (said.exit_code, said.stdout) == (0, f"sound: 1 entries, head {head}\n")
    tamper(f"sqlite:///{tmp_path / 'one/state.db'}", "UPDATE charge SET record_rate = 0.01")
    broken = precad("backup", tmp_path / "one", tmp_path / "two")
    assert (broken.exit_code, "BROKEN" in broken.stdout) == (1, True)
