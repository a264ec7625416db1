"""docs/runbooks and docs/several-tasks.md, typed to the letter beside a training that goes on."""

import json
import re
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.rig.consortium import set_up, task
from tests.rig.organisations import Organisation, organisations
from tests.rig.pages import Command, commands, typed, written
from tests.rig.waiting import until

from precad.aggregator.store import audit_ledger, compare_ledgers, read_training
from precad.aggregator.store.database import NEWEST
from precad.cli.local_deployment import task_to_toml
from precad.common.errors import Misconfiguration

ADDRESSES = {
    "north.example:7301": "--identity operator/keys",
    "south.example:7302": "--server b --identity operator/keys",
}
ALLOW = re.compile(r"precad allow (\S+) .*--version (\d+)")
PAGES = {
    "disks": (
        *("docs/runbooks/sizing.md", "docs/data-owner.md", "docs/durable-state.md"),
        *("docs/runbooks/backup.md", "docs/runbooks/upgrade.md", "docs/runbooks/lost-disk.md"),
        "docs/runbooks/incident.md",
    ),
    "keys": (
        *("docs/runbooks/certificates.md", "docs/runbooks/lost-key.md"),
        *("docs/runbooks/leaving.md", "docs/runbooks/lost-party.md"),
    ),
}  # By consortium, in the order in which they are played
SERVERS = {"server-a": "North", "server-b": "South"}


def status(west: Organisation, address: str, options: str) -> dict[str, Any]:
    said = west.type(f"precad status {address} {options} --json")
    (line,) = [line for line in said if line.startswith('{"role"')]
    found: dict[str, Any] = json.loads(line)
    return found


class Week:
    def __init__(self, all_of_them: dict[str, Organisation], folder: Path) -> None:
        self._all, self._folder = all_of_them, folder
        self._trains = True

    def state(self, server: str) -> str:
        return f"sqlite:///{self._folder / SERVERS[server] / server / 'state' / 'state.db'}"

    def _allow(self, said: str) -> None:
        """The operators of both servers type what status says that they must decide."""
        if found := ALLOW.search(said):
            for address, options in ADDRESSES.items():
                line = f"precad allow {found[1]} {address} {options} --version {found[2]}"
                self._all["West"].type(line)
                sys.stdout.write(f"West$ {line}\n")

    def rounds(self, more: int) -> None:
        seen: list[int] = []

        def done() -> bool:
            for address, options in ADDRESSES.items():
                try:
                    said = status(self._all["West"], address, options)
                except AssertionError:
                    # It doesn't answer.
                    continue
                if said["phase"] == "training":
                    seen.append(int(said["version"]))
                self._allow(said["error"])
            return bool(seen) and seen[-1] >= seen[0] + more

        until(done, lambda: f"{more} rounds more; {seen}\n{self.logs()}")

    def logs(self) -> str:
        return "\n".join(
            f"--- {name}\n" + "\n".join(each.seen[-60:]) for name, each in self._all.items()
        )

    def play(self, page: str, before: Callable[[Command], None]) -> None:
        marked = {each.line for each in commands(page) if each.needs}
        self._trains = True
        for each in commands(page):
            before(each)
            if each.line not in marked:
                self._type(each)
        assert typed(page)

    def _type(self, command: Command) -> None:
        sys.stdout.write(f"{command.page}:{command.line} {command.title}$ {command.text}\n")
        if command.text.startswith("kill ") and self._trains:
            # What happens meanwhile is what a copy lacks, and it is broken off in a round.
            self.rounds(2)
            self._trains = False
        if command.text.startswith("precad status"):
            # A person looks again while a part starts.
            until(lambda: says(self._all, command, patient=True), str(command), poll_s=0.5)
        else:
            assert says(self._all, command), command
        self._trains |= command.says == "training"


def says(all_of_them: dict[str, Organisation], command: Command, *, patient: bool = False) -> bool:
    """Whether it prints what the page says; one that fails doesn't, where somebody is patient."""
    try:
        return command.says in "\n".join(all_of_them[command.title].type(command.text))
    except AssertionError:
        if patient:
            return False
        raise


@contextmanager
def week(folder: Path) -> Iterator[Week]:
    with organisations(folder) as (all_of_them, _):
        set_up(all_of_them)
        made = Week(all_of_them, folder)
        made.rounds(2)
        yield made


def charged(week: Week, server: str) -> dict[str, int]:
    view = read_training(week.state(server))
    return {each.client.name: each.participations for each in view.clients}


def older_schema(url: str) -> None:
    """The tables as the version before left them: its one step back, by hand."""
    assert NEWEST == "0006", "another schema has come: turn its step back here"
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as database, database:
        database.execute("DROP TABLE participation")
        database.execute("DROP INDEX attempts_of_a_version")
        database.execute("ALTER TABLE shown DROP COLUMN known")
        database.execute("ALTER TABLE task DROP COLUMN opened")
        database.execute("UPDATE alembic_version SET version_num = '0005'")
    with pytest.raises(Misconfiguration, match="start the server once"):
        audit_ledger(url)


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("consortium", PAGES)
def test_every_runbook_does_what_it_says(consortium: str, tmp_path: Path) -> None:
    with week(tmp_path) as training:

        def before(command: Command) -> None:
            if command.text.startswith("pip install --upgrade"):
                older_schema(training.state("server-a"))

        for page in PAGES[consortium]:
            counts = {server: charged(training, server) for server in SERVERS}
            training.play(page, before)
            if page == "docs/runbooks/lost-party.md":
                # Its last command ends the training for good.
                break
            training.rounds(2)
            for server, known in counts.items():
                now = charged(training, server)
                # Nothing that was charged is forgotten, whatever was lost.
                assert all(now[client] >= count for client, count in known.items()), (page, now)
        assert "Traceback" not in (logs := training.logs()), logs
    for server in SERVERS:
        assert audit_ledger(training.state(server)).findings == ()
    # But for the attempt that was under way when everybody was killed.
    assert len(compare_ledgers(*(training.state(server) for server in SERVERS))) <= 1


@pytest.mark.timeout(900)
def test_a_further_task_begins_by_the_page_alone_and_the_first_goes_on(tmp_path: Path) -> None:
    page, rounds = "docs/several-tasks.md", 3
    with organisations(tmp_path) as (all_of_them, _):
        west = all_of_them["West"]

        def version() -> int:
            said = status(west, "north.example:7301", "--identity operator/keys")
            return int(said["version"])

        set_up(all_of_them)
        values = task().model_dump(mode="json", exclude_none=True)
        values |= {"name": "clinics", "training": values["training"] | {"rounds": rounds}}
        west.write("clinics.toml", task_to_toml(type(task()).parse(values)))
        [(who, name, text)] = written(page)
        all_of_them[who].write(name, text)
        until(lambda: version() >= 1)
        keys = {path: path.read_bytes() for path in tmp_path.glob("*/*/keys/*")}
        for command in typed(page):
            # A part that was started anew takes a while to link up.
            until(partial(says, all_of_them, command), str(command))
        before = version()
        until(lambda: version() > before)
        facts = status(west, "north.example:7311", "--identity operator/keys")
        assert (facts["version"], facts["enrolled"]) == (rounds, 3)
        # Nothing of the first task's was moved, made anew or lost.
        assert {path: path.read_bytes() for path in tmp_path.glob("*/*/keys/*")} == keys
        kept = ("state/state.db", "state/clinics/state.db", "journal/clinics")
        assert all((tmp_path / "North" / "server-a" / name).exists() for name in kept)
        # One account for what the records spend in both.
        lines = all_of_them["North"].type("precad ledger mine north-ward/state --json")
        account = json.loads("\n".join(lines[lines.index("{") : lines.index("}") + 1]))
        assert [each["versions"] for each in account["tasks"]][1] == rounds
        assert account["epsilon"] > max(each["epsilon"] for each in account["tasks"])
