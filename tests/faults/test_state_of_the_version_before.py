"""A state folder that the version before wrote is brought up to date, and its training goes on.

``state_before`` holds both servers' databases of schema 0005 amid a training in
simulated time (``world.py``, seed 7, three owners, eight versions): attempt 0 was
voided, attempt 1 of version 0 lost by server B, written off and learned again, so that
version 0 may have left twice; versions 1 to 3 are done; attempt 6, of version 4, is
sent by A and countersigned by B. Nothing in it is secret, and signatures aren't in it:
whatever a server had signed is signed anew here.
"""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

from tests.faults import invariants
from tests.faults.simulated_server import MODEL
from tests.faults.world import World
from tests.rig.keys import signatures
from tests.rig.stores import rows

from precad.aggregator.store import audit_ledger, read_training
from precad.aggregator.store.summary import read_task
from precad.common.identifiers import ClientId, Role
from precad.common.identity.signatures import SignedKind, server_signed_bytes
from precad.common.task import Task

BEFORE = Path(__file__).parent / "state_before"
SEED = 7
A, B = Role.SERVER_A, Role.SERVER_B
SIGNED = {
    ("task", "roster_seal"): SignedKind.ROSTER,
    ("attempt", "their_head"): SignedKind.HEAD,
    ("attempt", "countersignature"): SignedKind.COUNTERSIGNATURE,
    ("version", "commitment"): SignedKind.COIN_COMMITMENT,
    ("version", "opening"): SignedKind.COIN_OPENING,
    ("version", "model_seal"): SignedKind.MODEL,
}


def restore(folder: Path) -> Task:
    for name, text in json.loads((BEFORE / "files.json").read_text()).items():
        (folder / name).parent.mkdir(exist_ok=True)
        binary = name.endswith(MODEL)
        (folder / name).write_bytes(bytes.fromhex(text) if binary else text.encode())
    for role, other in ((A, B), (B, A)):
        with closing(sqlite3.connect(folder / role.value / "state.db")) as database:
            database.executescript((BEFORE / f"{role.value}.sql").read_text())
            (canonical,) = database.execute("SELECT canonical FROM task").fetchone()
            task = read_task(canonical)
            pen = signatures(task.digest, other)
            for (table, column), kind in SIGNED.items():
                query = (
                    f"SELECT rowid, {column} FROM {table} WHERE {column} IS NOT NULL"
                )
                for row, kept in database.execute(query).fetchall():
                    body = bytes.fromhex(json.loads(kept)["body"])
                    signature = pen.signer.sign(server_signed_bytes(other, kind, body))
                    certificates = [each.hex() for each in signature.certificates]
                    value, text = signature.value.hex(), body.hex()
                    fresh = {
                        "body": text,
                        "signature": value,
                        "certificates": certificates,
                    }
                    update = f"UPDATE {table} SET {column} = ? WHERE rowid = ?"
                    database.execute(update, (json.dumps(fresh).encode(), row))
            newest = "SELECT model_seal FROM version ORDER BY version DESC LIMIT 1"
            (model_seal,) = database.execute(newest).fetchone()
            (folder / role.value / "model.seal").write_bytes(model_seal)
            database.commit()
    return task


def chain(folder: Path, role: Role) -> list[tuple[int, str, int, str]]:
    query = "SELECT sequence, event, attempt, hex(hash) FROM ledger ORDER BY sequence"
    return rows(folder / role.value / "state.db", query)


def test_a_training_of_the_version_before_goes_on_to_its_end_on_the_same_ledgers(
    folder: Path,
) -> None:
    task = restore(folder)
    urls = {role: f"sqlite:///{folder}/{role.value}/state.db" for role in (A, B)}
    # Readers take it as it is.
    assert read_training(urls[A]).entries > 0
    before = {role: chain(folder, role) for role in (A, B)}
    world = World(task, folder, SEED, slowest_start_s=1.0)
    charges = {role: world.charges(role) for role in (A, B)}
    for role in (A, B):
        # What the observer would have seen of the attempts so far.
        shares = {attempt: share for attempt, (*_, share) in world.rounds(role).items()}
        world.seen.shares[role] = {n: share for n, share in shares.items() if share}
    world.run()
    last = task.training.rounds
    models = {world.servers[role].session.model_store.current.digest for role in (A, B)}
    assert len(models) == 1
    for result in world.seen.results.values():
        assert result.ended == "finished"
        assert result.model is not None
        assert (result.model.version, {result.model.digest}) == (last, models)
    invariants.ledgers_agree_and_cover_every_release(world)
    invariants.owners_count_no_less_than_the_servers(world)
    for role in (A, B):
        after = chain(folder, role)
        assert after[: len(before[role])] == before[role]
        assert len(after) > len(before[role])
        assert audit_ledger(urls[role]).findings == ()
        now = world.charges(role)
        assert {attempt: now[attempt] for attempt in charges[role]} == charges[role]
        view = read_training(urls[role])
        again = {each.client: dict(each.again) for each in view.clients}
        assert again == {ClientId(f"ward-{n}"): {1: 1} if n else {} for n in range(3)}
