"""docs/runbooks, typed to the letter by three organisations whose training goes on meanwhile."""

import json
import re
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.rig.consortium import set_up
from tests.rig.organisations import Organisation, organisations
from tests.rig.pages import Command, commands, typed
from tests.rig.waiting import until

from precad.aggregator.store import audit_ledger, compare_ledgers, read_training
from precad.aggregator.store.database import NEWEST
from precad.common.errors import Misconfiguration

ADDRESSES = {
    "north.example:7301": "--identity operator/keys",
    "south.example:7302": "--server b --identity operator/keys",
}
ALLOW = re.compile(r"precad allow (\S+) .*--version (\d+)")
PAGES = {
    "disks": (
        "docs/runbooks/sizing.md",
        "docs/data-owner.md",
        "docs/durable-state.md",
        "docs/runbooks/backup.md",
        "docs/runbooks/upgrade.md",
        "docs/runbooks/lost-disk.md",
        "docs/runbooks/incident.md",
    ),
    "keys": (
        "docs/runbooks/certificates.md",
        "docs/runbooks/lost-key.md",
        "docs/runbooks/leaving.md",
        "docs/runbooks/lost-party.md",
    ),
}
"""By consortium, in the order in which they are played."""
SERVERS = {"server-a": "North", "server-b": "South"}


class Week:
    """The three at their shells, and what is looked at beside them."""

    def __init__(self, all_of_them: dict[str, Organisation], folder: Path) -> None:
        self._all, self._folder = all_of_them, folder
        self._trains = True

    def state(self, server: str) -> str:
        return f"sqlite:///{self._folder / SERVERS[server] / server / 'state' / 'state.db'}"

    def _status(self, address: str) -> dict[str, Any]:
        """What a server says of itself; nothing while it doesn't answer."""
        try:
            line = f"precad status {address} {ADDRESSES[address]} --json"
            said = self._all["West"].type(line)
        except AssertionError:
            return {}
        (document,) = [line for line in said if line.startswith('{"role"')]
        found: dict[str, Any] = json.loads(document)
        return found

    def _allow(self, said: str) -> None:
        """The operators of both servers type what status says that they must decide."""
        if found := ALLOW.search(said):
            for address, options in ADDRESSES.items():
                line = f"precad allow {found[1]} {address} {options} --version {found[2]}"
                self._all["West"].type(line)
                sys.stdout.write(f"West$ {line}\n")

    def rounds(self, more: int) -> None:
        """Wait until so many further rounds are done."""
        seen: list[int] = []

        def done() -> bool:
            for address in ADDRESSES:
                status = self._status(address)
                if status.get("phase") == "training":
                    seen.append(int(status["version"]))
                self._allow(status.get("error", ""))
            return bool(seen) and seen[-1] >= seen[0] + more

        until(done, lambda: f"{more} rounds more; {seen}\n{self.logs()}")

    def logs(self) -> str:
        return "\n".join(
            f"--- {name}\n" + "\n".join(each.seen[-60:]) for name, each in self._all.items()
        )

    def play(self, page: str, before: Callable[[Command], None]) -> int:
        marked = {each.line for each in commands(page) if each.needs}
        self._trains = True
        for each in commands(page):
            before(each)
            if each.line not in marked:
                self._type(each)
        return len(typed(page))

    def _type(self, command: Command) -> None:
        sys.stdout.write(f"{command.page}:{command.line} {command.title}$ {command.text}\n")
        if command.text.startswith("kill ") and self._trains:
            # What happens meanwhile is what a copy lacks, and it is broken off in a round.
            self.rounds(2)
            self._trains = False
        said: list[str] = []

        def says() -> bool:
            said[:] = self._all[command.title].type(command.text)
            return command.says in "\n".join(said)

        def says_in_the_end() -> bool:
            try:
                return says()
            except AssertionError as error:
                said[:] = [str(error)]
                return False

        if command.text.startswith("precad status"):
            # A person looks again while a part starts.
            until(says_in_the_end, lambda: f"{command}: {said}", poll_s=0.5)
        else:
            assert says(), (command, said)
        self._trains |= command.says == "training"


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
            assert training.play(page, before) >= 1
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
