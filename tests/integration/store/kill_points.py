"""Kill a process at one point after another of a write, and tell what was left each time.

Run as a program by ``test_durability``: ``kill_points.py TASK prepare=URL learn=URL …``, each in a
database of its own. Every point gets a round and a process of its own; one line of JSON on stdout
tells what a new process finds.
"""

import itertools
import json
import os
import signal
import sys
from typing import Any

from sqlalchemy import event
from tests.rig.stores import MODEL, VALID_SET, A, B, C, charge, prepared

from precad.aggregator.store import Store, audit_ledger, open_store
from precad.aggregator.store.summary import read_task
from precad.common.errors import Rejection
from precad.common.identifiers import Role
from precad.common.task import Task

SURVIVED = 42


def arm(store: Store, point: int) -> None:
    """Kill this process when it comes to its ``point``-th point from now on."""
    left = itertools.count(-point)

    def pass_point(*_what: Any) -> None:
        if next(left) == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def commit_and_pass(connection: Any) -> None:
        commit(connection)
        pass_point()

    engine = store.transaction.engine
    commit = engine.dialect.do_commit
    # After one statement is before the next, or before the commit.
    event.listen(engine, "before_cursor_execute", pass_point)
    event.listen(engine, "commit", pass_point)
    setattr(engine.dialect, "do_commit", commit_and_pass)  # noqa: B010 -- mypy refuses the other


def write(url: str, task: Task, operation: str, point: int) -> None:
    """One round, whose number and model are ``point``, killed at that point."""
    store, share = open_store(url, task, Role.SERVER_A), bytes([point]) * 4096
    attempts, versions = store.attempts, store.versions
    if operation == "confirm":
        prepared(store, point, point, share)
        attempts.finish(point, MODEL)
    else:
        attempts.begin(point, point, 3, MODEL)
    arm(store, point)
    match operation:
        case "confirm":
            versions.confirm(point + 1)
            attempts.drop_shares(versions.confirmed())
        case "prepare":
            attempts.prepare(point, [A, B], VALID_SET, {C: Rejection.ABSENT}, share)
        case "learn":
            attempts.learn([charge(point, point, A, B)])
        case _:
            attempts.void(point, point)


def left_behind(url: str, task: Task, operation: str, point: int) -> dict[str, Any]:
    store = open_store(url, task, Role.SERVER_A)
    record, audit = store.attempts.pending(), audit_ledger(url)
    found = {
        "operation": operation,
        "state": store.attempts.states()[point].value,
        "charged": sum(store.ledger.participations().values()),
        "rejected": sum(store.attempts.rejections().values()),
        "share": record is not None and record.noisy_share == bytes([point]) * 4096,
        "kept": store.attempts.noisy_share(point) is not None,
        "confirmed": store.versions.confirmed() == point + 1,
        "entries": audit.entries,
        "findings": [finding.what for finding in audit.findings],
    }
    store.attempts.abandon_open()
    # So that the next point's may be the one that is pending.
    store.attempts.finish(point, MODEL)
    store.close()
    return found


def main(url: str, task: Task, operation: str) -> None:
    """All points, until a process gets through."""
    for point in itertools.count():
        child = os.fork()
        if child == 0:
            write(url, task, operation, point)
            os._exit(SURVIVED)
        _, status = os.waitpid(child, 0)
        survived = os.waitstatus_to_exitcode(status) == SURVIVED
        if not survived and not os.WIFSIGNALED(status):
            sys.exit("the process failed in another way")
        found = left_behind(url, task, operation, point) | {"survived": survived}
        # Flushed at once: a child must not inherit lines and write them too.
        sys.stdout.write(json.dumps(found) + "\n")
        sys.stdout.flush()
        if survived:
            return


if __name__ == "__main__":
    for order in sys.argv[2:]:
        name, _, database = order.partition("=")
        main(database, read_task(sys.argv[1].encode()), name)
