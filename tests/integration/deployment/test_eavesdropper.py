"""Who watches the wires of real owners: which versions each of them is drawn for.

On the first version an eavesdropper named 8 of 8 drawn rounds from the traffic alone, although
statements took the rate q for hidden. With `cover_uploads` it sees the same in every version; and
without it the same eavesdropper names them all, which is why the accounts take no rate then.
"""

import sqlite3
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path

import numpy as np
import pytest
from tests.rig.proxy import Proxy
from tests.rig.tasks import logistic
from tests.rig.waiting import DEADLINE_S, until
from tests.rig.warm import forked

from precad.cli.local_deployment import LocalDeployment
from precad.common.errors import PeerUnavailable
from precad.common.identifiers import ClientId, Role
from precad.common.ring import WORD_BYTES
from precad.common.task import Task

FEATURES, CLASSES, RECORDS, ROUNDS, CLIENTS = 2000, 2, 12, 5, 3
RATE = 0.5
CALL_BYTES = 4500
"""Of one call for a statement, which shows the last one and the last opening; padded."""
Traffic = dict[ClientId, list[int]]
"""Bytes that each owner sent to server B, by version."""


class Wire(Proxy):
    def __init__(self, target: str) -> None:
        super().__init__(target)
        self.sent = 0

    def passed(self, forward: bool, size: int) -> None:  # noqa: FBT001 -- as `Proxy` calls it
        if forward:
            self.sent += size


def watched(folder: Path, task: Task) -> tuple[Traffic, dict[int, set[str]]]:
    """A training: what went over the owners' wires to B, and whom the ledger charged."""
    random = np.random.default_rng(3)
    data = {
        ClientId(f"ward-{n}"): (
            random.normal(size=(RECORDS, FEATURES)).astype(np.float32),
            random.integers(0, CLASSES, RECORDS),
        )
        for n in range(CLIENTS)
    }
    dialled: dict[str, list[Wire]] = defaultdict(list)

    def way(who: str, address: str) -> str:
        if who.startswith("server-"):
            return address
        # An owner's settings name server A, and then B.
        dialled[who].append(Wire(address))
        return dialled[who][-1].address

    traffic: Traffic = defaultdict(list)
    with ExitStack() as stack:
        deployment = stack.enter_context(LocalDeployment(folder, task, data, way=way, popen=forked))
        for each in dialled.values():
            for wire in each:
                stack.callback(wire.close)
        wires = {who: to_b for who, (_, to_b) in dialled.items()}
        deployment.start_servers()
        deployment.start_clients()
        reached(deployment, 0)
        before = {name: wire.sent for name, wire in wires.items()}
        for version in range(1, ROUNDS + 1):
            reached(deployment, version)
            for name, wire in wires.items():
                traffic[ClientId(name)].append(wire.sent - before[name])
                before[name] = wire.sent
        deployment.wait(tuple(client.name for client in data), DEADLINE_S)
    charged: dict[int, set[str]] = defaultdict(set)
    with closing(sqlite3.connect(folder / "state" / "server-a" / "state.db")) as database:
        query = "SELECT version, client FROM charge JOIN attempt USING (attempt)"
        for version, client in database.execute(query):
            charged[version].add(client)
    return traffic, charged


def reached(deployment: LocalDeployment, version: int) -> None:
    def has() -> bool:
        try:
            return deployment.operator(Role.SERVER_A).status(timeout_s=60.0).version >= version
        except PeerUnavailable:
            deployment.check_alive()
            return False

    until(has, lambda: deployment.log_tail("server-a", 20), poll_s=0.05)


@pytest.fixture
def task(make_task: Callable[..., Task]) -> Callable[[bool], Task]:
    def made(cover: bool) -> Task:  # noqa: FBT001 -- one thing varies
        return make_task(
            8,
            {
                **logistic(FEATURES),
                "privacy.client_rate": RATE,
                "privacy.cover_uploads": cover,
                "training.rounds": ROUNDS,
                "enrolment.clients": CLIENTS,
                "deadlines.work": 1.0,
                "deadlines.collect": 300.0,
            },
        )

    return made


@pytest.mark.parametrize("cover", [True, False], ids=["covered", "uncovered"])
def test_traffic_names_the_drawn_versions_only_where_uploads_are_not_covered(
    tmp_path: Path, task: Callable[[bool], Task], *, cover: bool
) -> None:
    made = task(cover)
    traffic, charged = watched(tmp_path, made)
    body = WORD_BYTES * made.dimension
    truth = {
        (client, version): client.name in charged[version]
        for client in traffic
        for version in range(ROUNDS)
    }
    assert {True, False} == set(truth.values())
    seen = {(client, version): traffic[client][version] for client, version in truth}
    named = {key: size > body / 2 for key, size in seen.items()}
    if not cover:
        assert named == truth
        return
    assert all(named.values()), "an owner that wasn't drawn sent nothing"
    # All owners send the same in all, and in each version but for a statement that is fetched right
    # before or right after a model is there.
    totals = [sum(sizes) for sizes in traffic.values()]
    assert max(totals) - min(totals) <= 2 * CALL_BYTES
    assert max(seen.values()) - min(seen.values()) <= 3 * CALL_BYTES
