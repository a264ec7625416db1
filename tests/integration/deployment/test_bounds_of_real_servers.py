"""Owners of 60 to 50,000 records at servers in processes of their own, over TLS.

Each is held to the bound that its enrolled size gives it, under both checks.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from tests.integration.deployment.conftest import deployments
from tests.rig.light_client import LightClient, joined
from tests.rig.tasks import logistic

from precad.common.errors import Rejection
from precad.common.identifiers import ClientId, Role
from precad.common.ring import RingVector
from precad.common.roster import Enrolment
from precad.norm_check.submission_messages import upload_pieces

SIZES = (60, 400, 1_500, 50_000)
COLLECT_S = 600.0  # Rounds end when all have submitted: none waits for it
RECORD_RATE = 0.2
TOO_LONG = Rejection.NORM_EXCEEDED.value


@contextmanager
def owners(folder: Path, validation: str) -> Iterator[list[LightClient]]:
    """Light clients of those sizes, whose servers and dealer run."""
    changes = {
        "validation": validation,
        "privacy.record_clip": 0.04,
        "privacy.client_clip": {"per_record": 2.0, "most": 31.0},
        "privacy.record_rate": RECORD_RATE,
        "enrolment.max_expected_records": RECORD_RATE * max(SIZES),
        "fractional_bits": 20,
        "training.rounds": 1000,
        "deadlines.collect": COLLECT_S,
        **logistic(127),
    }
    with deployments(folder) as make:
        deployment = make(changes, len(SIZES))
        deployment.start_servers()
        with joined(deployment, records=SIZES) as clients:
            yield clients


def verdicts(
    clients: list[LightClient], after: int, sent: list[RingVector]
) -> list[str]:
    """What each is told of what it sent: nothing where it counted, else why not."""
    event = clients[0].opened(after=after, timeout_s=COLLECT_S)
    for client, x in zip(clients, sent, strict=True):
        client.opened(after=after, timeout_s=COLLECT_S)
        client.submit(event, x)
    return [client.over(event.attempt, COLLECT_S).rejection for client in clients]


@pytest.mark.parametrize("check", ["crypten", "proof"])
def test_every_owner_is_held_to_its_own_bound(check: str, tmp_path: Path) -> None:
    with owners(tmp_path, check) as clients:
        task = clients[0].servers.task
        most = task.mechanism.bound
        own = [
            task.mechanism.bound_of(Enrolment(ClientId("any"), size, RECORD_RATE))
            for size in SIZES
        ]
        # 2·.04 for each of 12, 80 and 300 records, and C.
        assert own == [int(0.96 * 2**20), int(6.4 * 2**20), 24 * 2**20, 31 * 2**20]

        def vector(length: int, more: int = 0) -> RingVector:
            """Of the squared norm length² + more²."""
            x = np.zeros(task.dimension, np.int64)
            x[-1] = -length
            x[7] = more
            return x

        event = clients[0].opened(timeout_s=COLLECT_S)
        sizes = {
            role: set[tuple[int, ...]]() for role in (Role.SERVER_A, Role.SERVER_B)
        }
        for client, bound in zip(clients, own, strict=True):
            pair = client.prepare(client.opened(timeout_s=COLLECT_S), vector(bound))
            # One of both holds the body; which one differs by owner under proofs.
            bodies = sorted(
                tuple(len(piece.body) for piece in upload_pieces(part)) for part in pair
            )
            sizes[Role.SERVER_A].add(bodies[0])
            sizes[Role.SERVER_B].add(bodies[1])
        assert all(len(alike) == 1 for alike in sizes.values())

        exact = [vector(bound) for bound in own]
        assert verdicts(clients, event.attempt - 1, exact) == [""] * 4
        beyond = {
            "one more in the square": [vector(bound, 1) for bound in own],
            "half of the way to C": [vector((bound + most) // 2) for bound in own],
            "C": [vector(most) for _ in own],
        }
        for number, (how, sent) in enumerate(beyond.items()):
            # The largest has C itself, and sends what it may beside the others.
            expected = [TOO_LONG] * 3 + [""]
            sent[3] = exact[3]
            assert verdicts(clients, event.attempt + number, sent) == expected, how
