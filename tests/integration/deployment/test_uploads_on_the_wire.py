"""Uploads that come twice, in pieces, or unlike at the two servers, against real servers.

Wrong bytes and bindings: ``tests/integration/hostile/test_hostile_clients.py``. Halves of uploads,
which are waited for: ``tests/faults/test_clients_that_fail.py``.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import grpc
import numpy as np
import pytest
from tests.integration.deployment.conftest import Running
from tests.rig.light_client import LightClient
from tests.rig.submissions import body_of

from precad.client.connection import Receipt
from precad.client.pending_update import Pair
from precad.common.errors import RejectedSubmission, Rejection
from precad.common.identifiers import Role, Secret
from precad.common.identity.credentials import Identity
from precad.common.identity.mutual_tls import open_channel
from precad.common.ring import RingVector
from precad.common.wire.messages import RoundOpen, upload_pieces
from precad.protos import precad_pb2 as pb
from precad.protos.precad_pb2_grpc import AggregationStub

COUNTED = "counted"
Receipts = tuple[Receipt, Receipt]


class Cast:
    """Ways to misbehave in one round; what the servers answered is kept by name."""

    def __init__(self, running: Running) -> None:
        self.running = running
        self.receipts: dict[str, Receipts] = {}
        self._channels: list[grpc.Channel] = []

    def close(self) -> None:
        for channel in self._channels:
            channel.close()

    def one(self, value: int = 1) -> RingVector:
        x = np.zeros(self.running.task.dimension, dtype=np.int64)
        x[3] = value
        return x

    def pair(self, client: LightClient, event: RoundOpen, value: int = 1) -> Pair:
        return client.prepare(event, self.one(value))

    def send(self, name: str, client: LightClient, pair: Pair) -> None:
        self.receipts[name] = client.servers.submit(pair)

    def reasons(self, name: str) -> tuple[Rejection | None, Rejection | None]:
        a, b = self.receipts[name]
        return a.rejection, b.rejection

    # Each of these is what one client does in the round.

    def other_header(self, client: LightClient, event: RoundOpen) -> None:
        """Seeds that open nothing: no header of this client was good, until it mends it."""
        a, b = (replace(item, seed=Secret.random()) for item in self.pair(client, event))
        self.send("header", client, (a, b))
        self.send("mended", client, self.pair(client, event))

    def two_vectors(self, client: LightClient, event: RoundOpen) -> None:
        """One vector's submission to A, another's to B."""
        first, second = self.pair(client, event), self.pair(client, event, 2)
        self.send("unmatched", client, (first[0], second[1]))

    def second_thoughts(self, client: LightClient, event: RoundOpen) -> None:
        """A submission, then a different one."""
        self.send("first", client, self.pair(client, event))
        self.send("second", client, self.pair(client, event, self.running.task.bound + 1))

    def bad_first(self, client: LightClient, event: RoundOpen) -> None:
        """A forged submission, then an honest one: too late."""
        self.send("forged", client, self.pair(client, event, 2**32))
        self.send("honest", client, self.pair(client, event))

    def ended_early(self, client: LightClient, event: RoundOpen) -> None:
        """B's upload ends before the body does; then all of it comes."""
        a, b = self.pair(client, event)
        header, *_ = upload_pieces(b)
        first = pb.SubmissionPiece(body=body_of(b)[:100])
        reply = self.stub(client).Submit(iter([header, first]))
        assert (reply.rejection, "100 of" in reply.detail) == ("truncated", True)
        self.send("whole", client, (a, b))

    def stub(self, client: LightClient) -> AggregationStub:
        """Server B's bare service, with this client's certificate."""
        deployment, name = self.running.deployment, client.servers.client.name
        identity = Identity.load(deployment.folder / "keys" / name)
        channel = open_channel(deployment.addresses["server-b"], identity, Role.SERVER_B)
        self._channels.append(channel)
        return AggregationStub(channel)


def rejected(running: Running) -> Counter[str]:
    return Counter(dict(running.deployment.operator(Role.SERVER_A).status().rejected))


@pytest.fixture
def cast(running: Running) -> Iterator[Cast]:
    made = Cast(running)
    yield made
    made.close()


def test_what_comes_twice_or_in_pieces_or_unlike_ends_with_its_reason_and_touches_nobody_else(
    running: Running, cast: Cast
) -> None:
    acts = [
        (cast.two_vectors, "unmatched"),
        (cast.other_header, COUNTED),
        (cast.second_thoughts, COUNTED),
        (cast.bad_first, "norm-exceeded"),
        (cast.ended_early, COUNTED),
    ]
    before = rejected(running)
    played = running.play({n: act for n, (act, _) in enumerate(acts)}, cast.one(running.task.bound))
    expected = dict.fromkeys((c.servers.client.name for c in running.clients), COUNTED)
    expected |= {running.clients[n].servers.client.name: how for n, (_, how) in enumerate(acts)}
    assert played.outcome == expected
    assert rejected(running) - before == Counter(("unmatched", "norm-exceeded"))
    for name in ("unmatched", "first", "forged", "whole", "mended"):
        assert cast.reasons(name) == (None, None)
    assert cast.reasons("second") == cast.reasons("honest") == (Rejection.DUPLICATE,) * 2
    for receipt in cast.receipts["header"]:
        assert "don't open the commitment" in receipt.detail


@pytest.mark.parametrize(
    "x",
    [np.full(256, np.nan), *(np.zeros(shape, np.int64) for shape in [(255,), (257,), (1, 256)])],
    ids=lambda x: f"{x.dtype}{list(x.shape)}",
)
def test_what_is_no_ring_vector_of_the_task_never_leaves_the_client(
    running: Running, x: RingVector
) -> None:
    with pytest.raises(RejectedSubmission, match=r"this task's is int64\[256\]"):
        running.clients[0].servers.prepare(0, 0, running.task.digest, x)
