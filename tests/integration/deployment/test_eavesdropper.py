"""Who watches the wires of real owners: which versions each of them is drawn for."""

import sqlite3
from collections import defaultdict
from contextlib import ExitStack, closing

import numpy as np
import pytest
from examples.demo.local_processes import LINGER_S
from tests.integration.deployment.conftest import Deploy
from tests.rig import connections, tasks, waiting

from precad.common import identifiers, ring

FEATURES, RECORDS, ROUNDS, CLIENTS = 2000, 12, 5, 3
CALL_BYTES = (
    4500  # Of a call for a statement, which shows the last one and the last opening
)
CHANGES = {"privacy.client_rate": 0.5, "training.rounds": ROUNDS, "deadlines.work": 1.0}


class Wire(connections.Proxy):
    sent = 0

    def passed(self, forward: bool, size: int) -> None:  # noqa: FBT001 -- as `Proxy` calls it
        self.sent += size if forward else 0


@pytest.mark.parametrize("cover", [True, False], ids=["covered", "uncovered"])
def test_traffic_names_the_drawn_only_without_cover(
    deploy: Deploy, *, cover: bool
) -> None:
    """Without `cover_uploads` it names them all, which is why the accounts take no rate then."""
    random = np.random.default_rng(3)
    data = {}
    for n in range(CLIENTS):
        x = random.normal(size=(RECORDS, FEATURES)).astype(np.float32)
        data[identifiers.ClientId(f"ward-{n}")] = x, random.integers(0, 2, RECORDS)
    dialled: dict[str, list[Wire]] = defaultdict(list)
    with ExitStack() as stack:

        def way(who: str, address: str) -> str:
            if who.startswith("server-"):
                return address
            # An owner's settings name server A, and then B.
            dialled[who].append(Wire(address))
            stack.callback(dialled[who][-1].close)
            return dialled[who][-1].address

        changes = tasks.logistic(FEATURES) | CHANGES | {"privacy.cover_uploads": cover}
        deployment = deploy(changes, CLIENTS, data, way=way, linger_s=LINGER_S)
        deployment.start_servers()
        deployment.start_clients()
        reports = deployment.operator(identifiers.Role.SERVER_A).reports()
        totals = [[to_b.sent for _, to_b in dialled.values()] for _ in reports]
        deployment.wait(dialled, waiting.DEADLINE_S)
    charged: dict[int, set[str]] = defaultdict(set)
    with closing(
        sqlite3.connect(deployment.folder / "state/server-a/state.db")
    ) as database:
        query = "SELECT version, client FROM charge JOIN attempt USING (attempt)"
        for version, client in database.execute(query):
            charged[version].add(client)
    truth = [
        [name in charged[version] for name in dialled] for version in range(ROUNDS)
    ]
    assert {True, False} == {drawn for version in truth for drawn in version}
    # Bytes that each owner sent to server B, by version.
    traffic = np.diff(np.array(totals), axis=0, prepend=0)
    named = traffic > ring.WORD_BYTES * deployment.task.dimension / 2
    if not cover:
        assert named.tolist() == truth
        return
    assert named.all(), "an owner that wasn't drawn sent nothing"
    # All owners send the same in all, and in each version but for a statement that is
    # fetched right before or right after a model is there.
    assert np.ptp(traffic.sum(axis=0)) <= 2 * CALL_BYTES
    assert np.ptp(traffic) <= 3 * CALL_BYTES
