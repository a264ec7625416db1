"""Record what a release leaves on disks, and what it says of it.

    PYTHONPATH=src:. python -m tests.releases.record 0.1.0

The release's tree is taken from git into a temporary folder; a version that isn't
committed yet is this working tree. By its own commands alone it sets up and plays a
training of two owners under each check of norms, and makes kits and a simulation.
Everything is made with keys that are thrown away. Kept under ``tests/releases/VERSION``:
databases as SQL, journals, models, tasks, settings, accounts, kits, the simulation, and
``said.json``: what the release's own commands said of them. No key, no certificate, no
record of an owner.
"""

import base64
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from tests.releases import trees

HERE = Path(__file__).parent
CHECKS = ("crypten", "proof")
SERVERS = ("server-a", "server-b")
OWNERS = ("ward-0", "ward-1")
# One process has the release's modules once for all commands.
ASKS = """
import json, sys
from click.testing import CliRunner
from precad.cli.main import app

said = []
for words in json.load(sys.stdin):
    done = CliRunner().invoke(app, words)
    if done.exit_code != 0:
        sys.exit(f"precad {' '.join(words)}: {done.output}")
    said.append(done.stdout)
json.dump(said, sys.stdout)
"""
TASK = """name = "ward-study"
validation = "{check}"
fractional_bits = 20

[model]
architecture = "logistic"
parameters = [{{ name = "1.weight", shape = [2, 4] }}, {{ name = "1.bias", shape = [2] }}]

[data]
target = {{ name = "died", kind = "categorical", levels = ["no", "yes"] }}
columns = [
  {{ name = "age", centre = 60, scale = 20, fill = 60 }},
  {{ name = "ward", kind = "categorical", levels = ["A", "B"], fill_level = "B" }},
]

[privacy]
record_clip = 1.0
client_clip = 20.0
noise_multiplier = 2.0
record_rate = 0.2
client_rate = 1.0

[training]
learning_rate = 0.5
rounds = 3

[enrolment]
clients = 2
max_expected_records = 10.0

[deadlines]
enrol = 600.0
collect = 300.0
work = 0.0
peer = 120.0
outage = 600.0
"""
CONSORTIUM = """task = "task.toml"
server_a = "north.example:7301"
server_b = "south.example:7302"
{dealer}owners = {{ data = "records.csv" }}
"""
DEALER = 'dealer = "west.example:7303"\n'


class Commands:
    """A release's own `precad`, which runs in ``folder``."""

    def __init__(self, tree: Path, folder: Path) -> None:
        self.folder = folder
        self._environment = {
            **os.environ,
            "PYTHONPATH": str(tree / "src"),
            "OMP_NUM_THREADS": "1",
        }

    def command(self, *words: object) -> list[str]:
        return [sys.executable, "-m", "precad", *map(str, words)]

    def said(self, *commands: Sequence[object]) -> list[str]:
        """What each command prints; all of them must end well."""
        words = [list(map(str, each)) for each in commands]
        ended = subprocess.run(
            [sys.executable, "-c", ASKS],
            cwd=self.folder,
            env=self._environment,
            input=json.dumps(words),
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        said: list[str] = json.loads(ended.stdout)
        return said

    def join(self) -> None:
        """Have the owners take part, to the end."""
        configs = [f"--config=run/{owner}.toml" for owner in OWNERS]
        command = self.command("join", *configs)
        subprocess.run(command, cwd=self.folder, env=self._environment, check=True)

    @contextmanager
    def serving(self, *parts: str) -> Iterator[None]:
        """Servers and dealer, each a process, until the block ends."""
        running = []
        try:
            for part in parts:
                words = ("serve", part.removeprefix("server-"))
                command = self.command(*words, "--config", f"run/{part}.toml")
                with (self.folder / f"{part}.txt").open("wb") as log:
                    running.append(
                        subprocess.Popen(
                            command,
                            cwd=self.folder,
                            env=self._environment,
                            stdout=log,
                            stderr=subprocess.STDOUT,
                        )
                    )
            yield
        finally:
            for process in running:
                process.terminate()
            for process in running:
                process.wait()


def write_records(folder: Path) -> None:
    """Made-up records of two owners, the same ones each time."""
    for number, owner in enumerate(OWNERS):
        rows = ["age,ward,died"]
        for row in range(20):
            ward = "AB"[row % 2]
            died = "no" if row % 3 else "yes"
            rows.append(f"{40 + 2 * row + number},{ward},{died}")
        (folder / f"{owner}.csv").write_text("\n".join(rows) + "\n")


def play(release: Commands, check: str) -> dict[str, object]:
    """Train under a check of norms; return what the commands say of what is left."""
    folder = release.folder
    (folder / "task.toml").write_text(TASK.format(check=check))
    write_records(folder)
    data = [f"--data={owner}.csv" for owner in OWNERS]
    release.said(("setup", "run", "--task", "task.toml", *data))
    dealer = ("dealer",) if check == "crypten" else ()
    with release.serving(*dealer, "server-b", "server-a"):
        release.join()
    states = [f"run/state/{server}" for server in SERVERS]
    simulated = ("--rounds=2", "--seed=1", "--save=simulated.json")
    checked, _, _, *documents = release.said(
        ("task", "check", "task.toml"),
        ("report", *states, "--format=json", "--out=report.json"),
        ("simulate", "task.toml", *data, *simulated),
        *(("ledger", "verify", state, "--json") for state in states),
        *(("ledger", "show", state, "--json") for state in states),
        *(("ledger", "mine", f"run/state/{owner}", "--json") for owner in OWNERS),
    )
    verified, shown, accounts = batched(map(json.loads, documents))
    return {
        "task": checked,
        "verify": dict(zip(SERVERS, verified, strict=True)),
        "show": dict(zip(SERVERS, shown, strict=True)),
        "mine": dict(zip(OWNERS, accounts, strict=True)),
    }


def batched(documents: Iterable[object]) -> list[tuple[object, object]]:
    """Two and two of them."""
    each = iter(documents)
    return list(zip(each, each, strict=True))


def keep(release: Commands, kept: Path) -> None:
    """Copy what is kept of a training; keys and records stay behind."""
    run = release.folder / "run"
    shutil.copy(release.folder / "task.toml", kept)
    shutil.copy(release.folder / "report.json", kept)
    shutil.copy(release.folder / "simulated.json", kept)
    for settings in run.glob("*.toml"):
        shutil.copy(settings, kept)
    for server in SERVERS:
        database = run / "state" / server / "state.db"
        with closing(sqlite3.connect(database)) as connection:
            without_certificates(connection)
            dump = "\n".join(connection.iterdump()) + "\n"
        (kept / f"{server}.sql").write_text(dump)
        model = (run / "state" / server / "model.safetensors").read_bytes()
        (kept / f"{server}-model.txt").write_text(base64.b64encode(model).decode())
        journal = run / "state" / f"{server}-journal" / "journal.jsonl"
        shutil.copy(journal, kept / f"{server}-journal.txt")
    for owner in OWNERS:
        shutil.copy(run / "state" / owner / "participations.log", kept / f"{owner}.log")


def without_certificates(database: sqlite3.Connection) -> None:
    """Take certificates out of what was signed; a zero byte stands for them all."""
    tables = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
    for (table,) in tables.fetchall():
        columns = database.execute(f"PRAGMA table_info({table})").fetchall()
        for _, column, *_ in columns:
            query = f"SELECT rowid, {column} FROM {table} WHERE {column} IS NOT NULL"
            for row, value in database.execute(query).fetchall():
                if isinstance(value, bytes) and b'"certificates"' in value:
                    signed = json.loads(value) | {"certificates": ["00"]}
                    update = f"UPDATE {table} SET {column} = ? WHERE rowid = ?"
                    database.execute(update, (json.dumps(signed).encode(), row))


def make_kits(release: Commands, kept: Path, check: str) -> None:
    """A kit for every party, without the authority's certificate."""
    dealer = DEALER if check == "crypten" else ""
    consortium = CONSORTIUM.format(dealer=dealer)
    (release.folder / "consortium.toml").write_text(consortium)
    parties: list[Sequence[str]] = [("server-a",), ("server-b",), ("operator",)]
    parties += [("client", "ward-0")]
    if dealer:
        parties.append(("dealer",))
    root = ("keys", "init", "root", "--root-only")
    release.said(root, *(("kit", *party) for party in parties))
    for *_, name in parties:
        with tarfile.open(release.folder / f"{name}-kit.tar.gz") as archive:
            for member in archive:
                if member.isfile() and not member.name.endswith(".pem"):
                    file = archive.extractfile(member)
                    assert file is not None
                    path = kept / "kits" / member.name
                    # A kit's own suffixes, such as .service, aren't text's.
                    if path.suffix not in {".toml", ".txt"}:
                        path = path.with_name(f"{path.name}.txt")
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(file.read())


def tree_of(version: str, folder: Path) -> Path:
    """The tree of a release; of one that isn't committed, the working tree."""
    for release in trees.listed():
        if release.version == version:
            return trees.compiled(trees.unpack(release.commit, folder))
    sys.stderr.write(f"{version} isn't committed: this working tree is recorded\n")
    return trees.ROOT


def main(version: str) -> None:
    """Write the fixture of a release anew."""
    with tempfile.TemporaryDirectory() as name:
        tree = tree_of(version, Path(name, "tree"))
        drafts = Path(name, "kept")
        for check in CHECKS:
            kept = drafts / check
            kept.mkdir(parents=True)
            work = Path(name, check)
            work.mkdir()
            release = Commands(tree, work)
            sys.stderr.write(f"{version}: a training under {check}\n")
            said = play(release, check)
            keep(release, kept)
            make_kits(release, kept, check)
            document = json.dumps(said, indent=1, sort_keys=True)
            (kept / "said.json").write_text(document + "\n")
        shutil.rmtree(HERE / version, ignore_errors=True)
        shutil.copytree(drafts, HERE / version)


if __name__ == "__main__":
    main(sys.argv[1])
