"""The previous release meets this one, party by party, as real processes.

It is built from its commit (``tests/releases/trees.py``). Of each pair
``common/releases.toml`` says what must be: of one wire version both train right; of two
it is refused in a sentence that says who must upgrade, before owners enrol. Which
release is the previous one follows from the list, so that this file needs no change
when the next one is cut.
"""

import hashlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.integration.deployment.conftest import set_in
from tests.releases import trees
from tests.rig.documents import Document
from tests.rig.task_files import task_to_toml
from tests.rig.waiting import until
from tests.soak.mixed import (
    CHECKS,
    OWNERS,
    SERVERS,
    MixedDeployment,
    check_trained_right,
    mixed_task,
    parties_of,
)

from precad.aggregator.store.database import NEWEST
from precad.common.identity.mutual_tls import WIRE_VERSION

PREVIOUS = trees.previous_release()
ROUNDS = 3
UPGRADE_ROUNDS = 12
STOPPED = (0, -signal.SIGTERM)
PAIRS = [(check, party) for check in CHECKS for party in parties_of(check)]
OTHER_WIRES = (WIRE_VERSION - 1, WIRE_VERSION + 1)
TreeOf = Callable[[int | None], Path]
# Who has tried to speak with a party, or was called by it: whoever is refused elsewhere
# first calls nobody else.
SPEAKS_OF = {
    "dealer": {"dealer", *SERVERS},
    "server-a": SERVERS,
    "server-b": {*SERVERS, *OWNERS},
    OWNERS[0]: {OWNERS[0]},
}
# What tasks of this release may have that earlier ones' hadn't.
LATER_FIELDS: dict[str, Document] = {
    "least_counted": {"training.least_counted": 1},
    "client_clip": {"privacy.client_clip": {"per_record": 2.0, "most": 20.0}},
    "loss": {"training.loss": "cross-entropy"},
    "class_weights": {"training.class_weights": [0.5, 1.0]},
    "compact_release": {
        "training.compact_release": True,
        "enrolment.planned_units": 100,
    },
}


@pytest.fixture(scope="session")
def tree_of(tmp_path_factory: pytest.TempPathFactory) -> TreeOf:
    """``tree_of(None)``: the previous release's; ``tree_of(6)``: of that wire."""
    made: dict[int | None, Path] = {}

    def make(wire: int | None) -> Path:
        if wire not in made:
            folder = tmp_path_factory.mktemp("tree")
            tree = (
                trees.unpack(PREVIOUS.commit, folder)
                if wire is None
                else trees.copy_of_this(folder, wire=wire)
            )
            made[wire] = trees.compiled(tree)
        return made[wire]

    return make


def wait_for_refusals(deployment: MixedDeployment, party: str, wire: int) -> None:
    """Wait until it is said on each link of ``party``, whose wire version is ``wire``.

    Server A and owners call; server B and the dealer are called. Both say the same: who
    called in its error, who was called in its log. Nobody is in a roster by then.
    """
    calls = party in ("server-a", *OWNERS)
    caller, called = (wire, WIRE_VERSION) if calls else (WIRE_VERSION, wire)
    behind = "caller" if caller < called else "called"
    says = re.compile(
        rf"(?P<caller>server [AB]|client [\w-]+) speaks wire version {caller},"
        rf" (?P<called>[\w -]+) {called}: upgrade precad at (?P={behind})"
    )
    for name in SPEAKS_OF[party]:
        until(lambda name=name: says.search(deployment.log(name)), deployment.explain)  # type: ignore[misc]
    for server in SERVERS:
        assert not deployment.charged(server)
        assert "roster is frozen" not in deployment.log(server)
    # Where the dealer is the other one, both servers took claims while it started.
    refused = {"dealer": set[str](), OWNERS[0]: {OWNERS[0]}}.get(party, set(OWNERS))
    assert not deployment.enrolled() & refused


@pytest.mark.parametrize(("check", "party"), PAIRS)
def test_one_party_of_the_previous_release_among_those_of_this_one(
    tmp_path: Path, tree_of: TreeOf, check: str, party: str
) -> None:
    """Over all parties that is each pair of the two, both ways."""
    task = mixed_task(check, ROUNDS)
    folder = tmp_path / "deployment"
    with MixedDeployment(folder, task, {party: tree_of(None)}) as deployment:
        deployment.start_all()
        if PREVIOUS.wire != WIRE_VERSION:
            wait_for_refusals(deployment, party, PREVIOUS.wire)
            return
        ends = [*SERVERS, *OWNERS]
        assert deployment.until_ended(*ends) == dict.fromkeys(ends, 0)
        check_trained_right(deployment)


@pytest.mark.parametrize("server", SERVERS)
def test_a_server_of_the_previous_release_and_one_of_this_with_workers(
    tmp_path: Path, tree_of: TreeOf, server: str
) -> None:
    """Their pairs link up anew in each round; with another wire none gets so far."""
    if PREVIOUS.wire == WIRE_VERSION:
        task = mixed_task("proof", ROUNDS)
        folder = tmp_path / "deployment"
        with MixedDeployment(folder, task, {server: tree_of(None)}) as deployment:
            for each in SERVERS:
                set_in(deployment, each, workers=1)
            deployment.start_all()
            ends = [*SERVERS, *OWNERS]
            assert deployment.until_ended(*ends) == dict.fromkeys(ends, 0)
            check_trained_right(deployment)


@pytest.mark.parametrize("wire", OTHER_WIRES)
@pytest.mark.parametrize(("check", "party"), PAIRS)
def test_a_party_of_another_wire_version_is_refused_before_it_enrols(
    tmp_path: Path, tree_of: TreeOf, check: str, party: str, wire: int
) -> None:
    task = mixed_task(check, ROUNDS)
    folder = tmp_path / "deployment"
    with MixedDeployment(folder, task, {party: tree_of(wire)}) as deployment:
        deployment.start_all()
        wait_for_refusals(deployment, party, wire)


def by(tree: Path, *words: object, cwd: Path) -> "subprocess.CompletedProcess[str]":
    """A `precad` command of a tree."""
    return subprocess.run(
        [sys.executable, "-m", "precad", *map(str, words)],
        env={**os.environ, "PYTHONPATH": str(tree / "src")},
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("field", LATER_FIELDS)
def test_a_task_of_this_release_is_the_same_to_the_previous_one_or_refused_by_name(
    tmp_path: Path, tree_of: TreeOf, field: str
) -> None:
    task = mixed_task("crypten", ROUNDS, LATER_FIELDS[field])
    path = tmp_path / "task.toml"
    path.write_text(task_to_toml(task), encoding="utf-8")
    ended = by(tree_of(None), "task", "check", path, cwd=tmp_path)
    if ended.returncode == 0:
        assert str(task.digest) in ended.stdout
    else:
        assert ended.returncode == 2
        (line,) = ended.stderr.strip().splitlines()
        assert field in line


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("check", CHECKS)
def test_an_upgrade_in_steps_loses_no_round_and_doubles_no_charge(
    tmp_path: Path, tree_of: TreeOf, check: str
) -> None:
    """B first, then A, the dealer, the owners one by one, each amid the training.

    Inside one wire version every step goes on. To another one the first part that is
    upgraded says who must follow, and the training goes on once all parts have.
    """
    task = mixed_task(check, UPGRADE_ROUNDS)
    folder = tmp_path / "deployment"
    dealer = ("dealer",) if check == "crypten" else ()
    order = ("server-b", "server-a", *dealer, *OWNERS)
    old = dict.fromkeys(order, tree_of(None))
    in_steps = PREVIOUS.wire == WIRE_VERSION
    with MixedDeployment(folder, task, old) as deployment:

        def goes_on() -> None:
            before = deployment.done()
            until(lambda: deployment.done() > before, deployment.explain)

        deployment.start_all()
        goes_on()
        for name in order:
            assert deployment.restart(name, None) in STOPPED
            if in_steps:
                goes_on()
        if in_steps and PREVIOUS.schema == NEWEST:
            # And back: with the same tables nothing has been taken along.
            assert deployment.restart("server-a", tree_of(None)) in STOPPED
            goes_on()
        ends = [*SERVERS, *OWNERS]
        assert deployment.until_ended(*ends) == dict.fromkeys(ends, 0)
        check_trained_right(deployment)


def bytes_below(folder: Path) -> dict[str, str]:
    """The digest of each file; a lock's content is of whoever holds it."""
    return {
        str(path): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file() and path.suffix != ".lock"
    }


@pytest.mark.parametrize(
    ("server", "older"), [("server-a", "the previous one"), ("server-b", "this one")]
)
def test_an_older_release_refuses_a_newer_one_s_database_and_changes_nothing(
    tmp_path: Path, tree_of: TreeOf, server: str, older: str
) -> None:
    """The previous release, and this one, which is a coming one's previous."""
    schema = NEWEST if older == "this one" else PREVIOUS.schema
    task = mixed_task("proof", ROUNDS)
    folder = tmp_path / "deployment"
    newer = {server: tree_of(WIRE_VERSION + 1)}
    with MixedDeployment(folder, task, newer) as deployment:
        deployment.start(server)
        serves = f"{server} serves task mixed"
        until(lambda: serves in deployment.log(server), deployment.explain)
        deployment.processes[server].terminate()
        until(lambda: deployment.ended(server), deployment.explain)
        state = deployment.database(server).parent
        before = kept_below(state)
        deployment.trees[server] = None if older == "this one" else tree_of(None)
        deployment.start(server)
        assert deployment.until_ended(server) == {server: 2}
        says = (
            "a newer precad wrote this database; this one knows schemas up to"
            f" {schema}. Install that version, or the newest\n"
        )
        assert deployment.log(server).count(says) == 1
        assert kept_below(state) == before


def kept_below(state: Path) -> dict[str, str]:
    """All that a state has, without what SQLite makes anew at each opening.

    A server that is ended in its first second may leave an empty log and its index,
    which the next one that opens the database removes.
    """
    empty = hashlib.sha256(b"").hexdigest()
    return {
        name: digest
        for name, digest in bytes_below(state).items()
        if not name.endswith("-shm") and not (name.endswith("-wal") and digest == empty)
    }


def test_the_previous_release_refuses_an_account_with_a_newer_release_s_charges(
    tmp_path: Path, tree_of: TreeOf
) -> None:
    """It forgets nothing that was spent, and changes nothing."""
    charge = f"charge9 {'ab' * 32} ward-00 0"
    checksum = hashlib.sha256(charge.encode()).hexdigest()[:8]
    account = tmp_path / "participations.log"
    account.write_text(f"{charge} {checksum}\n")
    before = account.read_bytes()
    ended = by(tree_of(None), "ledger", "mine", tmp_path, cwd=tmp_path)
    assert ended.returncode == 2
    (line,) = ended.stderr.strip().splitlines()
    assert "can't be read at" in line
    assert account.read_bytes() == before
