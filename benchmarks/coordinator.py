"""What a round's bookkeeping costs a server by the cohort: messages, memory, time; no vector in it.

Writes results/coordinator.json beside itself. Both servers run in one process, over a
link in memory: every client uploads, nobody's update is validated, the store is SQLite
on this disk. The memory is that of both servers together.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from sqlalchemy import insert
from tests.rig.memory_link import memory_pair

from benchmarks.rounds.hardware import hardware
from precad.aggregator.attempt_states import Matched, Opened
from precad.aggregator.collect import matching
from precad.aggregator.collect.inbox import Inbox
from precad.aggregator.collect.matching import HeldList, Places, describe, match
from precad.aggregator.peer_link import PeerLink
from precad.aggregator.rpc.notices import notice_of
from precad.aggregator.server_messages import (
    Cohort,
    EnrolmentEntry,
    RosterProposal,
    Verdict,
)
from precad.aggregator.store import open_store
from precad.aggregator.store.ledger import history_after
from precad.aggregator.store.schema import enrolment
from precad.aggregator.training.session import RoundDone
from precad.common.identifiers import ClientId, Digest, Role
from precad.common.submission import (
    Signature,
    Submission,
    SubmissionContext,
    shard,
)
from precad.common.task import Task

RESULT = Path(__file__).parent / "results" / "coordinator.json"
SIZES = (1_000, 10_000, 100_000)
MODEL = Digest.of(b"model")
SERVERS = (Role.SERVER_A, Role.SERVER_B)


class Pen:
    """Signs without a key, as long as a real signature: nobody checks it here."""

    def sign(self, signed: bytes) -> Signature:
        """72 bytes and a certificate of 600."""
        return Signature((Digest.of(signed).value * 3)[:72], (bytes(600),))


def timed(seconds: dict[str, float], name: str, what: Callable[[], Any]) -> Any:
    """What it returns; how long it took is noted."""
    start = time.perf_counter()
    made = what()
    seconds[name] = round(time.perf_counter() - start, 3)
    return made


def task_of(clients: int) -> Task:
    """D = 1, and as many clients as are tried."""
    return Task.parse(
        {
            "name": "coordinator",
            "model": {"parameters": [{"name": "w", "shape": [1]}]},
            "privacy": {
                "record_clip": 1.0,
                "client_clip": 4.0,
                "noise_multiplier": 2.0,
                "record_rate": 0.2,
                "client_rate": 1.0,
            },
            "training": {"learning_rate": 1.0, "rounds": 3},
            "enrolment": {"clients": clients, "max_expected_records": 1000.0},
            "fractional_bits": 16,
        }
    )


def collected(task: Task, names: Iterable[ClientId], folder: Path) -> dict[Role, Inbox]:
    """Both servers' inboxes, with everybody's halves in them."""
    cohort = tuple(names)
    inboxes = {
        role: Inbox(role, task, _NOBODY, folder / role.value) for role in SERVERS
    }
    for inbox in inboxes.values():
        inbox.open(
            Opened(
                attempt=0,
                version=0,
                cohort=tuple(cohort),
                model=MODEL,
                counted=frozenset(),
            )
        )
    x = np.zeros(task.dimension, dtype=np.int64)
    for client in cohort:
        halves = shard(
            x,
            SubmissionContext(
                task=task.digest, version=0, attempt=0, client=client, model=MODEL
            ),
            Pen(),
        )
        for half in halves:
            inboxes[half.role]._accept(half)  # noqa: SLF001
    return inboxes


_NOBODY: Any = None


def matched_by(
    opened: Opened, task: Task, inboxes: dict[Role, Inbox]
) -> tuple[Matched, int]:
    """A's result of the early match, and the bytes that both sent for it."""
    ends = dict(zip(SERVERS, memory_pair(), strict=True))
    links = {
        role: PeerLink(
            transport=end, task=task.digest, max_message_bytes=1 << 28, timeout_s=600
        )
        for role, end in ends.items()
    }
    taken: list[int] = [0]

    def note(submissions: Iterable[Submission]) -> None:
        taken[0] += len(tuple(submissions))

    def at(role: Role) -> Matched:
        inbox, link = inboxes[role], links[role]
        if role is Role.SERVER_A:
            gone = matching.ask(
                opened, inbox, link, note, lambda: taken[0] == len(opened.cohort)
            )
            held = inbox.close()
            matching.say_over(link)
        else:
            gone = matching.offer(opened, inbox, link, lambda _: None, 600)
            held = inbox.close()
        theirs = link.exchange("held", describe(held, gone).to_bytes())
        return match(opened, role, held, HeldList.from_bytes(theirs), gone)

    with ThreadPoolExecutor(2) as threads:
        a, b = threads.map(at, SERVERS)
    assert a.submissions.keys() == b.submissions.keys() == set(opened.cohort)
    return a, sum(link.bytes_sent for link in links.values())


def measured(clients: int, folder: Path) -> dict[str, Any]:
    """One size."""
    task = task_of(clients)
    names = [ClientId(f"client-{number:06d}") for number in range(clients)]
    opened = Opened(
        attempt=0, version=0, cohort=tuple(names), model=MODEL, counted=frozenset(names)
    )
    seconds: dict[str, float] = {}
    inboxes = collected(task, names, folder)
    matched, sent = timed(seconds, "match", lambda: matched_by(opened, task, inboxes))
    store = open_store(
        f"sqlite:///{folder / 'state.db'}", task, Role.SERVER_A, folder / "journal"
    )
    # Enrolled one by one, each durably; that isn't the round's.
    rows = [
        {"client": n, "records": 10, "record_rate": 0.2, "in_roster": True}
        for n in names
    ]
    with store.transaction.write() as connection:
        connection.execute(insert(enrolment), rows)
    store.attempts.begin(0, 0, clients, MODEL)

    def prepare() -> None:
        store.attempts.prepare(0, tuple(matched.submissions), MODEL, {}, bytes(8))

    timed(seconds, "prepare", prepare)
    timed(
        seconds,
        "history",
        lambda: history_after(store.ledger.history(0), store.ledger.facts(0)),
    )
    timed(seconds, "participations", store.ledger.participations)
    timed(seconds, "charges", lambda: store.ledger.charges_in(0))
    one = lambda: [store.ledger.charges_in(0).get(name, 0) for name in names[:1000]]  # noqa: E731
    timed(seconds, "a thousand owners' own charges", one)
    done = RoundDone(
        opened=opened,
        valid=frozenset(names),
        rejections={},
        model=MODEL,
        most_participations=1,
    )
    timed(seconds, "notices", lambda: [notice_of(done, name) for name in names])
    store.close()
    texts = tuple(name.name for name in names)
    places = Places(names).steps(names)
    entries = tuple(
        EnrolmentEntry(client=t, records=10, record_rate=0.2) for t in texts
    )
    return {
        "clients": clients,
        "bytes": {
            "roster, once": len(RosterProposal(entries=entries).to_bytes()),
            "cohort": len(
                Cohort(attempt=0, clients=places, model=str(MODEL)).to_bytes()
            ),
            "answer": len(Verdict(clients=places).to_bytes()),
            "all turns of the match, both directions": sent,
            "a last list of everybody, if nobody matched before": len(
                describe(matched.submissions).to_bytes()
            ),
            "database": (folder / "state.db").stat().st_size,
        },
        "seconds": seconds,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
    }


def main() -> None:
    """Measure each size in a process of its own, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--clients", type=int, help="this size alone, in this process; not kept"
    )
    if (clients := parser.parse_args().clients) is not None:
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(measured(clients, Path(folder))))
        return
    rows = []
    for clients in SIZES:
        command = [sys.executable, __file__, "--clients", str(clients)]
        run = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        rows.append(json.loads(run.stdout))
        print(run.stdout, end="")
    result = {"hardware": hardware(), "rows": rows}
    RESULT.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
