"""Trees of releases: what a clone without history says, and what other versions are."""

import subprocess
from pathlib import Path

import pytest
from tests.releases import trees

from precad.common.identity.mutual_tls import WIRE_VERSION


def test_a_clone_without_history_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is skipped there."""

    def git(*words: str) -> None:
        who = ("-c", "user.name=a", "-c", "user.email=a@b.example")
        command = ["git", *who, "-c", "commit.gpgsign=false", *words]
        subprocess.run(command, cwd=tmp_path, check=True)

    git("init", "--quiet", "origin")
    for _ in range(2):
        git("-C", "origin", "commit", "--quiet", "--allow-empty", "--message", "a")
    git("clone", "--quiet", "--depth=1", f"file://{tmp_path}/origin", "clone")
    monkeypatch.setattr(trees, "ROOT", tmp_path / "clone")
    with pytest.raises(LookupError, match="git fetch --unshallow"):
        trees.unpack("ab" * 20, tmp_path / "tree")
    with pytest.raises(LookupError, match="git fetch --unshallow"):
        trees._commit_that_added("9.9.9")


def test_a_tree_of_another_wire_version_has_that_one_and_a_newer_one_newer_tables(
    tmp_path: Path,
) -> None:
    for wire in (WIRE_VERSION - 1, WIRE_VERSION + 1):
        package = trees.copy_of_this(tmp_path / str(wire), wire=wire) / "src" / "precad"
        code = (package / "common" / "identity" / "mutual_tls.py").read_text("utf-8")
        assert f"\nWIRE_VERSION = {wire}\n" in code
        later = list(package.glob("aggregator/store/migrations/versions/*_later.py"))
        assert len(later) == (wire > WIRE_VERSION)
