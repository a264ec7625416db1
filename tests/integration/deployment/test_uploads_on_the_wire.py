"""Uploads that are wrong in their bytes, their binding or their number, against real servers.

Halves of uploads, which are waited for: ``tests/faults/test_clients_that_fail.py``.
"""

import secrets
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import grpc
import numpy as np
import pytest
from tests.rig.light_client import LightClient
from tests.rig.submissions import body_of, with_body

from precad.client.connection import Receipt
from precad.common.errors import RejectedSubmission, Rejection
from precad.common.identifiers import Digest, Role
from precad.common.identity.credentials import Identity
from precad.common.identity.mutual_tls import open_channel
from precad.common.ring import RingVector
from precad.common.secret import Secret
from precad.common.share.submission import Submission
from precad.common.task import Task
from precad.common.wire.owner_notices import RoundOpen
from precad.common.wire.submission_messages import upload_pieces
from precad.protos import precad_pb2 as pb
from precad.protos.precad_pb2_grpc import AggregationStub

if TYPE_CHECKING:
    from tests.integration.deployment.conftest import Running

COUNTED = "counted"
LEAVING = {"other_task", "other_round", "without_header", "as_another", "silent"}
"""Of ``Cast``: who sends nothing for this round."""
Pair = tuple[Submission, Submission]
Receipts = tuple[Receipt, Receipt]
Act = Callable[[LightClient, RoundOpen], object]


class Cast:
    """Ways to misbehave in one round; what the servers answered is kept by name."""

    def __init__(self, running: "Running") -> None:
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
        model = event.model
        return client.servers.prepare(event.version, event.attempt, model, self.one(value))

    def send(self, name: str, client: LightClient, pair: Pair) -> None:
        self.receipts[name] = client.servers.submit(pair)

    def reasons(self, name: str) -> tuple[Rejection | None, Rejection | None]:
        a, b = self.receipts[name]
        return a.rejection, b.rejection

    # Each of these is what one client does in the round.

    def long_body(self, client: LightClient, event: RoundOpen) -> None:
        a, b = self.pair(client, event)
        self.send("long", client, (a, with_body(b, body_of(b) + bytes(8))))

    def other_body(self, client: LightClient, event: RoundOpen) -> None:
        a, b = self.pair(client, event)
        self.send("body", client, (a, with_body(b, secrets.token_bytes(len(body_of(b))))))

    def other_header(self, client: LightClient, event: RoundOpen) -> None:
        """Seeds that open nothing: no header of this client was good, until it mends it."""
        a, b = (replace(item, seed=Secret.random()) for item in self.pair(client, event))
        self.send("header", client, (a, b))
        self.send("mended", client, self.pair(client, event))

    def other_seed(self, client: LightClient, event: RoundOpen) -> None:
        a, b = self.pair(client, event)
        self.send("seed", client, (replace(a, seed=Secret.random()), b))

    def other_task(self, client: LightClient, event: RoundOpen) -> None:
        other = Task.parse(self.running.task.model_dump() | {"name": "another"})
        with self.running.stranger(client.servers.client.name, task=other) as servers:
            model = event.model
            pair = servers.prepare(event.version, event.attempt, model, self.one())
            self.receipts["task"] = servers.submit(pair)

    def other_round(self, client: LightClient, event: RoundOpen) -> None:
        model = event.model
        later = client.servers.prepare(event.version, event.attempt + 1, model, self.one())
        self.send("round", client, later)

    def other_model(self, client: LightClient, event: RoundOpen) -> None:
        model = Digest(secrets.token_bytes(32))
        other = client.servers.prepare(event.version, event.attempt, model, self.one())
        self.send("model", client, other)

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

    def same_again(self, client: LightClient, event: RoundOpen) -> None:
        """The same bytes three times, as after a broken link."""
        pair = self.pair(client, event)
        for name in ("once", "twice", "thrice"):
            self.send(name, client, pair)

    def ended_early(self, client: LightClient, event: RoundOpen) -> None:
        """B's upload ends before the body does; then all of it comes."""
        a, b = self.pair(client, event)
        header, *_ = upload_pieces(b)
        first = pb.SubmissionPiece(body=body_of(b)[:100])
        reply = self.stub(client).Submit(iter([header, first]))
        assert (reply.rejection, "100 of" in reply.detail) == ("truncated", True)
        self.send("whole", client, (a, b))

    def without_header(self, client: LightClient, event: RoundOpen) -> None:
        del event
        pieces = [pb.SubmissionPiece(body=b"x" * 64)]
        reply = self.stub(client).Submit(iter(pieces))
        assert (reply.rejection, "header" in reply.detail) == ("malformed", True)
        reply = self.stub(client).Submit(iter(()))
        assert (reply.rejection, reply.detail) == ("truncated", "the upload is empty")

    def as_another(self, client: LightClient, event: RoundOpen) -> None:
        """A submission in another client's name, with the own certificate."""
        victim = self.running.clients[-1].servers
        model = event.model
        pair = victim.prepare(event.version, event.attempt, model, self.one(2**32))
        for item in pair:
            with pytest.raises(grpc.RpcError) as caught:
                self.stub(client, item.role).Submit(upload_pieces(item))
            assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
            assert victim.client.name in str(caught.value.details())

    def silent(self, client: LightClient, event: RoundOpen) -> None:
        """Nothing at all."""

    def stub(self, client: LightClient, role: Role = Role.SERVER_B) -> AggregationStub:
        """The bare service, with this client's certificate."""
        deployment, name = self.running.deployment, client.servers.client.name
        identity = Identity.load(deployment.folder / "keys" / name)
        channel = open_channel(deployment.addresses[role.value], identity, role)
        self._channels.append(channel)
        return AggregationStub(channel)


def rejected(running: "Running") -> Counter[str]:
    """How often server A has rejected submissions so far, by reason."""
    return Counter(dict(running.deployment.operator(Role.SERVER_A).status().rejected))


@pytest.fixture
def cast(running: "Running") -> Iterator[Cast]:
    made = Cast(running)
    yield made
    made.close()


def test_wrong_uploads_are_rejected_with_their_reason_and_touch_nobody_else(
    running: "Running", cast: Cast
) -> None:
    acts = [
        (cast.long_body, "malformed"),
        (cast.other_body, "malformed"),
        (cast.other_seed, "malformed"),
        # Not about this task or round: nothing came, as far as this round goes.
        (cast.other_task, "absent"),
        (cast.other_round, "absent"),
        (cast.other_model, "wrong-model"),
        (cast.two_vectors, "unmatched"),
        (cast.other_header, COUNTED),
        (cast.second_thoughts, COUNTED),
        (cast.bad_first, "norm-exceeded"),
        (cast.same_again, COUNTED),
        (cast.ended_early, COUNTED),
        (cast.without_header, "absent"),
        (cast.as_another, "absent"),
        (cast.silent, "absent"),
    ]
    # Who sends nothing is waited for, unless it goes.
    gone = [n for n, (act, _) in enumerate(acts) if act.__name__ in LEAVING]
    before = rejected(running)
    played = running.play(
        {n: act for n, (act, _) in enumerate(acts)}, cast.one(running.task.bound), leave=gone
    )
    names = {client.servers.client.name: n for n, client in enumerate(running.clients)}
    outcomes = {names[name]: reason for name, reason in played.outcome.items()}
    # Also the one whose name was taken in vain.
    expected = dict.fromkeys(range(len(running.clients)), COUNTED)
    expected |= {n: reason for n, (_, reason) in enumerate(acts)}
    assert outcomes == {n: reason for n, reason in expected.items() if n not in gone}
    reasons = Counter(reason for _, reason in acts if reason != COUNTED)
    assert rejected(running) - before == reasons

    assert cast.reasons("long") == (None, Rejection.MALFORMED)
    assert cast.reasons("body") == (None, Rejection.MALFORMED)
    assert cast.reasons("seed") == (Rejection.MALFORMED, None)
    assert cast.reasons("task") == (Rejection.WRONG_TASK,) * 2
    assert cast.reasons("round") == (Rejection.WRONG_ATTEMPT,) * 2
    assert cast.reasons("model") == (Rejection.WRONG_MODEL,) * 2
    assert cast.reasons("unmatched") == (None, None)
    assert cast.reasons("first") == (None, None)
    assert cast.reasons("second") == (Rejection.DUPLICATE,) * 2
    assert cast.reasons("forged") == (None, None)
    assert cast.reasons("honest") == (Rejection.DUPLICATE,) * 2
    for receipt in cast.receipts["header"]:
        assert "don't open the commitment" in receipt.detail
    for receipt in cast.receipts["task"]:
        assert str(running.task.digest) in receipt.detail
    for receipt in cast.receipts["model"]:
        assert str(played.event.model) in receipt.detail
    open_, after = played.event.attempt, played.event.attempt + 1
    for receipt in cast.receipts["round"]:
        assert f"for attempt {after}, attempt {open_} is open" in receipt.detail
    for again in ("once", "twice", "thrice", "whole", "mended"):
        assert cast.reasons(again) == (None, None)


@pytest.mark.parametrize(
    "x",
    [np.full(256, np.nan), np.full(256, 0.5)]
    + [np.zeros(shape, np.int64) for shape in [(255,), (257,), (1, 256), ()]],
    ids=lambda x: f"{x.dtype}{list(x.shape)}",
)
def test_what_is_no_ring_vector_of_the_task_never_leaves_the_client(
    running: "Running", x: RingVector
) -> None:
    with pytest.raises(RejectedSubmission, match=r"this task's is int64\[256\]"):
        running.clients[0].servers.prepare(0, 0, running.task.digest, x)
