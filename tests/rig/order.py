"""In which order tests begin: an order in which all processes have work until the end.

A plugin of pytest, which tests/conftest.py takes for all tests. pytest-xdist deals
tests out in pieces, one a process, in the order in which they were collected; a process
that is done takes the second half of what another has left. Tests that begin last are
the last of a piece, and one that takes long there keeps one process busy alone. So such
files stand at the heads of the pieces. And tests that wait for other processes or for
time to pass leave a core free: they are one after the other in few pieces, beside tests
that compute in the others, and not in all pieces at once.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import pytest

AWAITING = (
    "faults/test_lost_database.py",
    "integration/deployment/test_stops_and_returns.py",
    "integration/hostile/test_upload_times.py",
    "integration/test_command_line.py",
    "integration/deployment/test_data_owner.py",
    "faults/test_real_processes.py",
    "integration/workers/test_servers_with_workers.py",
    "integration/deployment/test_bounds_of_real_servers.py",
    "integration/deployment/test_compact_releases.py",
    "integration/hostile/test_neighbours_look_alike.py",
    "integration/deployment/test_one_submission.py",
    "integration/deployment/test_loaded_modules.py",
    "integration/deployment/test_rounds_of_real_servers.py",
    "integration/deployment/test_planned_accounts.py",
    "integration/deployment/test_eavesdropper.py",
    "integration/deployment/test_first_mistakes.py",
    "integration/deployment/test_no_client_in_charge.py",
    "integration/deployment/test_squares_over_grpc.py",
    "integration/deployment/test_whole_owners_join.py",
    "integration/deployment/test_units_join.py",
)
"""Files whose tests wait for processes or for time, the longest first."""
COMPUTING = (
    "e2e/test_package.py",
    "faults/test_random_schedules.py",
    "faults/test_cheating_servers.py",
    "faults/test_crash_points.py",
    "faults/test_clients_that_fail.py",
    "faults/test_who_is_drawn.py",
    "integration/store/test_durability.py",
    "integration/unmasked/test_curious_server.py",
    "integration/test_simulate_command.py",
)
"""Files of tests that compute for seconds each, the longest first."""
PIECES_A_WAITING_ONE = 3
"""One piece of so many begins with tests that wait."""

Item = TypeVar("Item")


def in_pieces(files: Mapping[str, Sequence[Item]], pieces: int) -> list[Item]:
    """Put the tests of all files, by path below tests, in the order to begin in.

    Files stay whole, so that fixtures of a module are made once. Pieces are as long as
    pytest-xdist makes them: each is what is left, divided by how many are left.
    """
    of_waiting = max(1, pieces // PIECES_A_WAITING_ONE)
    heads: list[list[Item]] = [[] for _ in range(pieces)]
    for number, file in enumerate(AWAITING):
        heads[number % of_waiting] += files.get(file, ())
    others_heads = heads[of_waiting:] or heads
    for number, file in enumerate(COMPUTING):
        others_heads[number % len(others_heads)] += files.get(file, ())
    others = [
        item
        for file, own in files.items()
        if file not in AWAITING + COMPUTING
        for item in own
    ]
    ordered: list[Item] = []
    left = sum(map(len, files.values()))
    for number, head in enumerate(heads):
        size = left // (pieces - number)
        left -= size
        taken = max(0, size - len(head))
        ordered += [*head, *others[:taken]]
        others = others[taken:]
    return ordered + others


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Only under pytest-xdist: alone, a process takes as long in any order."""
    worker: dict[str, Any] | None = getattr(config, "workerinput", None)
    if worker is None:
        return
    files: dict[str, list[pytest.Item]] = {}
    for item in items:
        file = item.nodeid.partition("::")[0].removeprefix("tests/")
        files.setdefault(file, []).append(item)
    items[:] = in_pieces(files, worker["workercount"])
