"""docs/ceremony.md, docs/runbooks and docs/several-tasks.md, typed to the letter by
organisations.

The ceremony sets a consortium up, trains, and lets no key lie in two places: in three
network namespaces where root can make them, on three addresses of one loopback, and as
the page says it for two organisations' servers without a dealer. The runbooks are typed
beside a training that goes on.
"""

import hashlib
import json
import os
import re
import sqlite3
import sys
import tarfile
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
from tests.rig.consortium import PARTIES, set_up, write_records
from tests.rig.documents import Document
from tests.rig.organisations import NAMES, Organisation, organisations
from tests.rig.pages import Command, commands, typed, written
from tests.rig.waiting import until

from precad.aggregator.store import audit_ledger, compare_ledgers, read_training
from precad.aggregator.store.database import NEWEST
from precad.common.identity.credentials import Identity

CEREMONY, KEY = "docs/ceremony.md", b"PRIVATE KEY-----"


def check_no_key_travels(folder: Path) -> int:
    """Each private key's bytes lie in one folder, and none in the post.

    Returns how many.
    """
    places: dict[str, set[str]] = {}
    for where, _, names in os.walk(folder):
        for path in (Path(where, name) for name in names):
            data = path.read_bytes() if path.is_file() else b""
            if path.name == "coin.key" or KEY in data:
                places.setdefault(hashlib.sha256(data).hexdigest(), set()).add(where)
    assert {digest: found for digest, found in places.items() if len(found) > 1} == {}
    assert not any(
        w.startswith(str(folder / "post")) for found in places.values() for w in found
    )
    return len(places)


def without_dealer(text: str) -> str:
    """As the page says it: no line that names the dealer, and the other check of
    norms."""
    kept = "".join(
        line for line in text.splitlines(keepends=True) if "dealer" not in line
    )
    return kept.replace("precad task new", "precad task new --validation proof")


def play(all_of_them: dict[str, Organisation], folder: Path, *, dealer: bool) -> int:
    for name, file, text in written(CEREMONY):
        all_of_them[name].write(file, text if dealer else without_dealer(text))
    count = 0
    for each in typed(CEREMONY):
        if text := each.text if dealer else without_dealer(each.text):
            all_of_them[each.title].type(text)
            check_no_key_travels(folder)
            count += 1
    return count


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("form", "dealer"), [("namespaces", True), ("loopback", True), ("loopback", False)]
)
def test_three_organisations_train_by_the_page(
    tmp_path: Path, form: str, *, dealer: bool
) -> None:
    """On three addresses of one loopback too, which is all that some machines allow."""
    with organisations(tmp_path, apart=form == "namespaces") as (all_of_them, network):
        where = (
            "network namespaces"
            if network.separate
            else "three addresses of one loopback"
        )
        sys.stdout.write(f"{where}\n")
        records_of_all(all_of_them)
        assert play(all_of_them, tmp_path, dealer=dealer) >= 50 - 5 * (not dealer)
        folders = [tmp_path / name / f"{name.lower()}-ward" / "state" for name in NAMES]
        models = [folder / "model.safetensors" for folder in folders]
        until(lambda: all(m.is_file() for m in models), "every owner's model")
        assert len({m.read_bytes() for m in models}) == 1
        said = "\n".join(all_of_them["West"].seen)
    # A signing key a party, the root's, and each server's half of the coin.
    assert check_no_key_travels(tmp_path) == 6 + dealer + 1 + 2
    for name, parties in PARTIES.items():
        for party in (each for each in parties if dealer or each.name != "dealer"):
            assert (
                Identity.load(tmp_path / name / party.name / "keys").principal == party
            )
    kits = sorted((tmp_path / "post").glob("*-kit.tar.gz"))
    assert len(kits) == 5 + dealer
    for kit in kits:
        with tarfile.open(kit) as opened:
            files = filter(None, map(opened.extractfile, opened.getmembers()))
            assert not any(KEY in file.read() for file in files), kit
        assert hashlib.sha256(kit.read_bytes()).hexdigest() in said


# A training that goes on

ADDRESSES = {
    "north.example:7301": "--identity operator/keys",
    "south.example:7302": "--server b --identity operator/keys",
}
ALLOW = re.compile(r"precad allow (\S+) .*--version (\d+)")
PAGES = {
    "disks": (
        *("docs/runbooks/sizing.md", "docs/data-owner.md", "docs/durable-state.md"),
        *(
            "docs/runbooks/backup.md",
            "docs/runbooks/upgrade.md",
            "docs/runbooks/lost-disk.md",
        ),
        "docs/runbooks/incident.md",
    ),
    "keys": (
        *("docs/runbooks/certificates.md", "docs/runbooks/lost-key.md"),
        *("docs/runbooks/leaving.md", "docs/runbooks/lost-party.md"),
    ),
}  # By consortium, in the order in which they are played
SERVERS = {"server-a": "North", "server-b": "South"}


def status(west: Organisation, address: str, options: str) -> Document:
    said = west.type(f"precad status {address} {options} --json")
    (line,) = [line for line in said if line.startswith('{"role"')]
    found: Document = json.loads(line)
    return found


class Week:
    def __init__(self, all_of_them: dict[str, Organisation], folder: Path) -> None:
        self._all, self._folder = all_of_them, folder
        self._trains = True

    def state(self, server: str) -> str:
        folder = self._folder / SERVERS[server] / server
        return f"sqlite:///{folder / 'state' / 'state.db'}"

    def _allow(self, said: str) -> None:
        """The operators of both servers type what status says that they must decide."""
        if found := ALLOW.search(said):
            for address, options in ADDRESSES.items():
                line = (
                    f"precad allow {found[1]} {address} {options} --version {found[2]}"
                )
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
        seen = {name: "\n".join(each.seen[-60:]) for name, each in self._all.items()}
        return "\n".join(f"--- {name}\n{lines}" for name, lines in seen.items())

    def play(self, page: str, before: Callable[[Command], None]) -> None:
        self._trains = True
        for each in commands(page):
            before(each)
            if not each.needs:
                self._type(each)
        assert typed(page)

    def _type(self, command: Command) -> None:
        sys.stdout.write(
            f"{command.page}:{command.line} {command.title}$ {command.text}\n"
        )
        if command.text.startswith("kill ") and self._trains:
            # What happens meanwhile is what a copy lacks, and it is broken off in a
            # round.
            self.rounds(2)
            self._trains = False
        if command.text.startswith("precad status"):
            # A person looks again while a part starts.
            until(
                lambda: says(self._all, command, patient=True), str(command), poll_s=0.5
            )
        else:
            assert says(self._all, command), command
        self._trains |= command.says == "training"


def says(
    all_of_them: dict[str, Organisation], command: Command, *, patient: bool = False
) -> bool:
    """Whether it prints what the page says; one that fails doesn't, where somebody is
    patient."""
    try:
        return command.says in "\n".join(all_of_them[command.title].type(command.text))
    except AssertionError:
        if patient:
            return False
        raise


def charged(week: Week, server: str) -> dict[str, int]:
    view = read_training(week.state(server))
    return {each.client.name: each.participations for each in view.clients}


def older_schema(url: str) -> None:
    """The tables as the version before left them: its one step back, by hand."""
    assert NEWEST == "0007", "another schema has come: turn its step back here"
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as database, database:
        database.execute("ALTER TABLE charge DROP COLUMN submission")
        database.execute("ALTER TABLE rejection DROP COLUMN submission")
        database.execute("UPDATE alembic_version SET version_num = '0006'")
    # Readers take it as it is.
    assert audit_ledger(url).findings == ()


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("consortium", PAGES)
def test_every_runbook_does_what_it_says(consortium: str, tmp_path: Path) -> None:
    with organisations(tmp_path) as (all_of_them, _):
        set_up(all_of_them)
        training = Week(all_of_them, tmp_path)
        training.rounds(2)

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
                assert all(now[client] >= count for client, count in known.items()), (
                    page,
                    now,
                )
        assert "Traceback" not in (logs := training.logs()), logs
    for server in SERVERS:
        assert audit_ledger(training.state(server)).findings == ()
    # But for the attempt that was under way when everybody was killed.
    assert len(compare_ledgers(*(training.state(server) for server in SERVERS))) <= 1


ROUNDS = re.compile(r"--rounds \d+")


def begin_by_the_page(all_of_them: dict[str, Organisation]) -> None:
    """The ceremony as its page has it, but for a first task that lasts, and owners who
    don't keep West's shell."""
    for name, file, text in written(CEREMONY):
        all_of_them[name].write(file, text)
    records_of_all(all_of_them)
    for each in typed(CEREMONY):
        text = ROUNDS.sub("--rounds 5000", each.text)
        ends = each.text.startswith("precad join") and "&" not in each.text
        all_of_them[each.title].type(f"{text} &" if ends else text)
        if ends:
            return


def records_of_all(all_of_them: dict[str, Organisation]) -> None:
    for seed, each in enumerate(all_of_them.values()):
        path = each.folder / "records.csv"
        write_records(path, seed, 400, ("no", "yes"), (62, 14), (132, 20))


@pytest.mark.timeout(900)
def test_a_further_task_begins_by_the_page_alone_and_the_first_goes_on(
    tmp_path: Path,
) -> None:
    page = "docs/several-tasks.md"
    with organisations(tmp_path) as (all_of_them, _):
        west = all_of_them["West"]

        def version() -> int:
            said = status(west, "north.example:7301", "--identity operator/keys")
            return int(said["version"])

        begin_by_the_page(all_of_them)
        [(who, name, text)] = written(page)
        all_of_them[who].write(name, text)
        until(lambda: version() >= 1)
        # Its owners have read theirs.
        for name, parties in PARTIES.items():
            for party in parties:
                for folder in (".", party.name):
                    path = all_of_them[name].folder / folder / "records.csv"
                    if path.exists():
                        write_records(
                            path, party.name, 400, ("no", "yes"), (60, 20), (130, 25)
                        )
        keys = {path: path.read_bytes() for path in tmp_path.glob("*/*/keys/*")}
        for command in typed(page):
            # A part that was started anew takes a while to link up.
            until(partial(says, all_of_them, command), str(command))
        before = version()
        until(lambda: version() > before)
        facts = status(west, "north.example:7311", "--identity operator/keys")
        [rounds] = [
            int(found[1])
            for each in typed(page)
            if (found := re.search(r"--rounds (\d+)", each.text))
        ]
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
        # Whoever goes by the kit's next steps types what the page has.
        typed_there = {each.text.removesuffix(" &") for each in typed(page)}
        for path in tmp_path.glob("*/*/clinics/NEXT.txt"):
            steps = {each.text for each in commands(str(path))}
            needed = {each for each in steps if not each.startswith("docker")}
            assert needed, path
            looks = {each for each in needed if each.startswith("precad task check")}
            assert needed - looks <= typed_there, path


class ByKit:
    """A party that goes by the NEXT.txt of its kit, step by step."""

    def __init__(self, organisation: Organisation, party: str) -> None:
        self.organisation, self.party = organisation, party
        self.folder = organisation.folder / party
        organisation.type(f"cp post/{party}-kit.tar.gz .")
        organisation.type(f"tar -xzf {party}-kit.tar.gz")
        # The page's own commands, in its order: those in a line of their own, and those
        # within a sentence.
        text = (self.folder / "NEXT.txt").read_text(encoding="utf-8")
        found = re.findall(
            r"^    (precad .*)$|`((?:precad|sha256sum) [^`]*)`",
            text,
            re.MULTILINE,
        )
        self.steps = [own or within for own, within in found]

    def type(self, *beginnings: str) -> str:
        """All steps that begin like that."""
        said = []
        for step in [each for each in self.steps if each.startswith(beginnings)]:
            ends = step.startswith(("precad serve", "precad join"))
            said += self.organisation.type(f"{step} &" if ends else step)
            self.steps.remove(step)
        return "\n".join(said)


@pytest.mark.timeout(900)
def test_three_organisations_train_by_what_their_kits_say(tmp_path: Path) -> None:
    """After West's part of the page: nothing but the NEXT.txt of each kit is typed."""
    with organisations(tmp_path) as (all_of_them, _):
        for name, file, text in written(CEREMONY):
            all_of_them[name].write(file, text)
        west = all_of_them["West"]
        for command in typed(CEREMONY):
            if command.text.startswith(("precad task new", "precad keys init")) or (
                command.text.startswith("precad kit")
            ):
                west.type(command.text)
        west.type("precad kit operator --out post")
        records_of_all(all_of_them)
        parties = [
            ByKit(all_of_them[name], party.name)
            for name, of_name in PARTIES.items()
            for party in of_name
        ]
        for each in parties:
            each.type("sha256sum", "precad keys show", "precad keys request")
        for each in parties:
            # What is sent back, and what comes.
            sent = f"post/{each.party}-request.pem"
            each.organisation.type(f"cp {each.party}/keys/request.pem {sent}")
            role = f"client {each.party}" if "ward" in each.party else each.party
            made = f"post/{each.party}-certificate"
            west.type(f"precad keys issue root {role} --request {sent} --out {made}")
            each.organisation.type(f"cp -r {made} .")
            assert "complete" in each.type("precad keys accept")
        servers = {each.party: each for each in parties if "ward" not in each.party}
        for name in ("dealer", "server-b", "server-a"):
            servers[name].type("precad serve")
        wards = [each for each in parties if "ward" in each.party]
        for each in wards:
            each.organisation.type(f"cp records.csv {each.party}/")
            each.organisation.type(
                f"echo 'epsilon_limit = 8.0' >> {each.party}/settings.toml"
            )
            each.type("precad doctor")
        for each in wards:
            each.type("precad join")
        models = [each.folder / "state" / "model.safetensors" for each in wards]
        until(lambda: all(m.is_file() for m in models), "every owner's model")
        assert len({m.read_bytes() for m in models}) == 1
        # Containers are tests/containers.sh's; every other step was typed.
        assert [step for each in parties for step in each.steps] == []
