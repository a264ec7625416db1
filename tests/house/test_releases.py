"""The list of releases: what it says of the newest is what the code does, and a source
tree's version is what it decides."""

import inspect
import json
import os
import re
import runpy
import shutil
import subprocess
import tomllib
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from tests.rig.pages import ROOT

from precad.aggregator.settings import ServerASettings, ServerBSettings
from precad.aggregator.store.database import MIGRATIONS, NEWEST
from precad.aggregator.store.journal_file import _Line
from precad.cli import kit, report_page
from precad.client import account_file, pending_update
from precad.client.owner_settings import JoinSettings
from precad.common import model, ring
from precad.common.identity.mutual_tls import WIRE_VERSION
from precad.common.releases import this_build
from precad.common.task import Task
from precad.dealer.process import DealerSettings
from precad.simulation import result

LISTED = tomllib.loads((ROOT / "common" / "releases.toml").read_text("utf-8"))
RELEASES = LISTED["release"]
DECIDE = runpy.run_path(str(ROOT / "deploy" / "build_version.py"))["build_of"]
Told = dict[str, Any]

# Formats that nothing in their files numbers: by number, what a reader of that number
# must find. Whoever adds, renames or removes a name here adds a number.
UNNUMBERED = {
    "journal": {1: {"task", "version", "attempt", "clients", "voided"}},
    "kit": {1: {"keys", "task.toml", "settings.toml", "NEXT.txt"}},
}
REQUIRED_SETTINGS: dict[int, dict[type[BaseModel], set[str]]] = {
    1: {
        ServerASettings: {"task", "identity", "listen", "state", "server_b"},
        ServerBSettings: {"task", "identity", "listen", "state"},
        DealerSettings: {"task", "identity", "listen"},
        JoinSettings: {
            *("task", "identity", "client", "state", "data"),
            *("server_a", "server_b"),
        },
    }
}


def test_what_is_listed_of_the_newest_release_or_of_the_next_is_what_the_code_does() -> (
    None
):
    """Whoever changes a format lists it, in [next]."""
    now = LISTED.get("next", RELEASES[0])
    formats = now["formats"]
    assert now["wire"] == WIRE_VERSION
    assert now["schema"] == NEWEST
    task_digest = re.search(r'b"([^"\\]+)\\0', inspect.getsource(Task.digest.func))  # type: ignore[attr-defined]
    assert task_digest
    assert formats == {
        "task-digest": task_digest[1],
        "signed": ring.DOMAIN.decode(),
        "model": model.FORMAT,
        "account": " ".join(
            kind
            for kind, form in account_file._FORM_OF_KIND.items()
            if form is account_file.AccountCharge
        ),
        "pending-update": pending_update._MAGIC.decode().rstrip("\0"),
        "report": report_page.FORMAT,
        "simulation": result.FORMAT,
        **{name: formats[name] for name in (*UNNUMBERED, "settings")},
    }


def test_formats_without_a_number_in_the_file_are_as_their_listed_number_says() -> None:
    formats = LISTED.get("next", RELEASES[0])["formats"]
    assert set(_Line.model_fields) == UNNUMBERED["journal"][formats["journal"]]
    names = {kit.IDENTITY, kit.TASK, kit.SETTINGS, kit.NEXT}
    assert names == UNNUMBERED["kit"][formats["kit"]]
    for settings, required in REQUIRED_SETTINGS[formats["settings"]].items():
        fields = settings.model_fields.items()
        assert {name for name, field in fields if field.is_required()} == required, (
            f"{settings.__name__}: files of earlier releases can't be read"
        )


def test_releases_go_down_and_each_has_what_a_reader_asks() -> None:
    numbers = [tuple(map(int, each["version"].split("."))) for each in RELEASES]
    dates = [each["date"] for each in RELEASES]
    schemas = [each["schema"] for each in RELEASES]
    wires = [each["wire"] for each in RELEASES]
    assert all(newer > older for newer, older in pairwise(numbers))
    for column in (dates, schemas, wires):
        assert column == sorted(column, reverse=True)
    migrations = {path.name[1:5] for path in MIGRATIONS.glob("versions/r*.py")}
    assert set(schemas) <= migrations
    # The newest one's commit can't hold its own name.
    for each in RELEASES[1:]:
        assert re.fullmatch(r"[0-9a-f]{40}", each["commit"])


# What a tree calls itself


class Tree:
    """A repository with the list and what decides on it, and nothing else."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "common").mkdir(parents=True)
        self.git("init", "--quiet")
        self.release("1.0.0", "0.9.0")

    def release(self, *versions: str) -> None:
        entries = [f'[[release]]\nversion = "{each}"\n' for each in versions]
        (self.folder / "common" / "releases.toml").write_text("\n".join(entries))

    def git(self, *words: str) -> str:
        who = ("-c", "user.name=a", "-c", "user.email=a@b.example")
        command = ["git", *who, "-c", "commit.gpgsign=false", *words]
        ended = subprocess.run(
            command, cwd=self.folder, capture_output=True, text=True, check=True
        )
        return ended.stdout.strip()

    def commit(self) -> str:
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--message", "a")
        return self.git("rev-parse", "HEAD")

    @property
    def build(self) -> Told:
        told: Told = DECIDE(self.folder)
        return told


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tree:
    monkeypatch.delenv("PRECAD_BUILD", raising=False)
    return Tree(tmp_path / "tree")


def test_the_commit_that_lists_a_release_is_it_and_later_ones_are_on_the_way_to_the_next(
    tree: Tree,
) -> None:
    first = tree.commit()
    assert tree.build == {"version": "1.0.0", "commit": first}
    tree.commit()
    third = tree.commit()
    on_the_way = {"version": f"1.1.0.dev2+g{third[:8]}", "commit": third}
    assert tree.build == on_the_way
    # A list that isn't committed makes no release.
    tree.release("1.1.0", "1.0.0", "0.9.0")
    assert tree.build["version"] == f"1.1.0.dev0+g{third[:8]}.dirty"
    fourth = tree.commit()
    assert tree.build == {"version": "1.1.0", "commit": fourth}


def test_a_release_may_name_an_earlier_commit(tree: Tree) -> None:
    """As one does that was made before there was a list."""
    earlier = tree.commit()
    tree.release("1.1.0")
    with (tree.folder / "common" / "releases.toml").open("a") as file:
        file.write(f'commit = "{earlier}"\n')
    head = tree.commit()
    assert tree.build["version"] == f"1.2.0.dev1+g{head[:8]}"


def test_a_changed_tree_is_no_release(tree: Tree) -> None:
    commit = tree.commit()
    with (tree.folder / "common" / "releases.toml").open("a") as file:
        file.write("# changed\n")
    assert tree.build["version"] == f"1.1.0.dev0+g{commit[:8]}.dirty"


def test_a_clone_without_history_is_no_release(tree: Tree, tmp_path: Path) -> None:
    """Its one commit seems to add every line, the release's too."""
    tree.commit()
    head = tree.commit()
    clone = tmp_path / "clone"
    origin = f"file://{tree.folder}"
    tree.git("clone", "--quiet", "--depth", "1", origin, str(clone))
    expected = {"version": f"1.1.0.dev0+g{head[:8]}", "commit": head}
    assert DECIDE(clone) == expected


def test_without_git_a_tree_says_so_and_a_source_distribution_what_was_decided(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.rmtree(tree.folder / ".git")
    assert tree.build == {"version": "1.1.0.dev0", "commit": "unknown"}
    package = tree.folder / "src" / "precad" / "common"
    package.mkdir(parents=True)
    decided = {"version": "1.0.0", "commit": "ab" * 20}
    (package / "build.json").write_text(json.dumps(decided))
    assert tree.build == decided
    monkeypatch.setenv("PRECAD_BUILD", f"2.0.0 {'cd' * 20}")
    assert tree.build == {"version": "2.0.0", "commit": "cd" * 20}
    monkeypatch.setenv("PRECAD_BUILD", "2.0.0")
    with pytest.raises(SystemExit, match=r"PRECAD_BUILD=2.0.0: give a version and a"):
        DECIDE(tree.folder)


def test_a_hook_s_repository_is_not_taken_for_the_tree_s(
    tree: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = tree.commit()
    other = Tree(tmp_path / "other")
    other.commit()
    monkeypatch.setenv("GIT_DIR", str(other.folder / ".git"))
    assert tree.build["commit"] == commit


def test_what_runs_from_a_checkout_names_its_present_commit() -> None:
    """However long ago it was installed; an unpacked source distribution names its
    own."""
    commit = DECIDE(ROOT)["commit"]
    if (ROOT / ".git").exists():
        command = ["git", "-C", str(ROOT), "rev-parse", "HEAD"]
        env = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
        commit = subprocess.check_output(command, env=env, text=True).strip()
    assert this_build().commit == commit
