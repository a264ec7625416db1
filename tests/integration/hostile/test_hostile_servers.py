"""A hostile server can waste a client's time, but the client notices, and nothing is sent."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from tests.rig.clock import LeapingClock
from tests.rig.keys import identity

from precad.client.connection import Servers
from precad.client.own_account import OwnAccount
from precad.client.participant import Participation, RoundView, take_part
from precad.client.pending import Pending
from precad.common.clock import CLOCK, Clock
from precad.common.errors import Misconfiguration, PeerUnavailable, PeerViolation, TaskMismatch
from precad.common.identifiers import ClientId, Digest, Role
from precad.common.identity.credentials import Identity
from precad.common.identity.port import add_port
from precad.common.identity.principal import Principal
from precad.common.identity.sign import CertificateSigner
from precad.common.model import initial_vector, model_digest, to_bytes
from precad.common.ring import RingVector
from precad.common.task import Task
from precad.common.wire.statement import sign_body
from precad.protos import precad_pb2 as pb
from precad.protos.precad_pb2_grpc import AggregationServicer, add_AggregationServicer_to_server

D = 8
OPEN, FINISHED = "open", "finished"


@dataclass(slots=True)
class FakeServer(AggregationServicer):
    """Says whatever a test wants, and keeps what it is sent."""

    role: Role
    task: Task
    theta: Any
    rounds: int = 3
    digest: Digest | None = None
    """Of the model; right unless given."""
    announced: bytes | None = None
    described: Task | None = None
    pieces: Callable[[], Iterator[bytes]] | None = None
    receipt: pb.Receipt = field(default_factory=pb.Receipt)
    charges: int = 0
    """m of the open version, as this server signs it."""
    notices: list[pb.Notice] | None = None
    uploads: list[bytes] = field(default_factory=list)
    address: str = ""

    def model(self) -> bytes:
        own = model_digest(self.task.digest, 0, self.task.model.parameters, self.theta)
        return (self.digest or own).value

    def Describe(self, request: Any, context: Any) -> pb.DescribeReply:  # noqa: N802
        del request, context
        task = self.described or self.task
        return pb.DescribeReply(
            role=self.role.value, task_digest=task.digest.value, canonical_task=task.canonical
        )

    def Enrol(self, request: Any, context: Any) -> pb.EnrolReply:  # noqa: N802
        del request, context
        return pb.EnrolReply(enrolled=1)

    def Watch(self, request: Any, context: Any) -> Iterator[pb.Notice]:  # noqa: N802
        if request.task_digest != (self.described or self.task).digest.value:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, "task digest differs")
        if self.notices is not None:
            yield from self.notices
        for number in range(self.rounds):
            yield opening(number, self.announced or self.model())
        over = pb.TrainingOver(version=0, model_digest=self.announced or self.model())
        yield pb.Notice(finished=over)

    def ModelDigest(self, request: Any, context: Any) -> pb.ModelDigestReply:  # noqa: N802
        del request, context
        return pb.ModelDigestReply(model_digest=self.model())

    def FetchModel(self, request: Any, context: Any) -> Iterator[pb.ModelPiece]:  # noqa: N802
        del request, context
        for data in self.pieces() if self.pieces else iter([to_bytes(self.theta)]):
            yield pb.ModelPiece(data=data)

    def Opening(self, request: Any, context: Any) -> pb.Signed:  # noqa: N802
        del context
        body = pb.OpeningBody(
            task_digest=self.task.digest.value,
            client=request.client,
            version=0,
            attempt=request.attempt,
            charges=self.charges,
            model_digest=self.model(),
        )
        return sign_body(CertificateSigner(self.identity), self.role, body)

    def Statement(self, request: Any, context: Any) -> pb.Signed:  # noqa: N802
        del context
        body = pb.StatementBody(
            task_digest=self.task.digest.value,
            client=request.client,
            version=0,
            attempt=-1,
            model_digest=self.model(),
        )
        return sign_body(CertificateSigner(self.identity), self.role, body)

    @property
    def identity(self) -> Identity:
        return identity(Principal.service(self.role))

    def Submit(self, request_iterator: Any, context: Any) -> pb.Receipt:  # noqa: N802
        del context
        self.uploads.append(b"".join(piece.share for piece in request_iterator))
        return self.receipt


def opening(number: int, model: bytes, version: int = 0, collect_s: float = 5.0) -> pb.Notice:
    return pb.Notice(
        open=pb.RoundOpen(
            attempt=number,
            model_digest=model,
            selected=True,
            collect_seconds=collect_s,
            version=version,
        )
    )


@dataclass(slots=True)
class Pair:
    """Both fakes, and a client."""

    a: FakeServer
    b: FakeServer
    task: Task
    computed: int = 0

    def budget(self, limit: float | None = None, path: Path | None = None) -> OwnAccount:
        return OwnAccount(self.task, 0.2, limit, path)

    def pending(self) -> Pending:
        return Pending(self.task, ClientId("ward-1"))

    def take_part(self, budget: OwnAccount, clock: Clock = CLOCK) -> Participation:
        with self.servers() as servers:
            servers.check_task()
            servers.enrol(50, 0.2)
            return take_part(servers, budget, self.pending(), self.update, clock=clock)

    def servers(self) -> Servers:
        ward = identity(Principal.client("ward-1"))
        return Servers(
            self.task, ClientId("ward-1"), self.a.address, self.b.address, ward, patience_s=5
        )

    def update(self, view: RoundView) -> RingVector:
        assert view.theta.shape == (D,)
        self.computed += 1
        return np.ones(D, dtype=np.int64)

    def nothing_was_sent(self, budget: OwnAccount) -> bool:
        return not self.a.uploads and not self.b.uploads and budget.participations == 0


@pytest.fixture
def pair(make_task: Any) -> Iterator[Pair]:
    task = make_task(D)
    theta = initial_vector(task.model)
    fakes = [FakeServer(role, task, theta) for role in (Role.SERVER_A, Role.SERVER_B)]
    servers = []
    for fake in fakes:
        server = grpc.server(ThreadPoolExecutor(4))
        add_AggregationServicer_to_server(fake, server)
        own = identity(Principal.service(fake.role))
        fake.address = f"127.0.0.1:{add_port(server, '127.0.0.1:0', own)}"
        server.start()
        servers.append(server)
    yield Pair(fakes[0], fakes[1], task)
    for server in servers:
        server.stop(None).wait()


def test_honest_fakes_finish(pair: Pair) -> None:
    result = pair.take_part(pair.budget())
    assert (result.ended, result.submitted) == (FINISHED, 3)
    assert len(pair.a.uploads) == len(pair.b.uploads) == 3
    assert {len(share) for share in pair.a.uploads} == {32}
    assert {len(share) for share in pair.b.uploads} == {8 * D}


def test_a_model_digest_that_differs_between_a_and_b(pair: Pair) -> None:
    pair.b.digest = Digest(b"\5" * 32)
    budget = pair.budget()
    with pytest.raises(PeerViolation, match=r"server B has 0505.*nothing is sent"):
        pair.take_part(budget)
    assert pair.computed == 0
    assert pair.nothing_was_sent(budget)


def test_a_model_that_only_a_has(pair: Pair) -> None:
    """A sends a model of its own, with its right digest, to one client."""
    pair.a.theta = pair.a.theta + 1e-9
    budget = pair.budget()
    with pytest.raises(PeerViolation, match="nothing is sent"):
        pair.take_part(budget)
    assert pair.nothing_was_sent(budget)


def test_a_model_that_is_not_the_announced_one(pair: Pair) -> None:
    pair.a.announced = b"\6" * 32
    budget = pair.budget()
    with pytest.raises(PeerViolation, match="announced 0606"):
        pair.take_part(budget)
    assert pair.nothing_was_sent(budget)


def test_an_older_model_under_a_newer_version(pair: Pair) -> None:
    """The digest is of the version too: θ_0 can't be passed off as θ_1."""
    pair.a.notices = [opening(0, pair.a.model(), version=1)]
    budget = pair.budget()
    with pytest.raises(PeerViolation, match="model 1 has digest"):
        pair.take_part(budget)
    assert pair.nothing_was_sent(budget)


@pytest.mark.parametrize(
    "pieces",
    [
        lambda: iter([bytes(8 * D + 8)]),
        lambda: iter([bytes(8 * D - 8)]),
        lambda: iter(()),
        lambda: iter([np.full(D, np.nan).tobytes()]),
        lambda: iter(lambda: bytes(1 << 16), None),
    ],
    ids=["longer", "shorter", "empty", "NaN", "endless"],
)
def test_a_model_that_is_none(pair: Pair, pieces: Callable[[], Iterator[bytes]]) -> None:
    pair.a.pieces = pieces
    budget = pair.budget()
    with pytest.raises((PeerViolation, Misconfiguration)):
        pair.take_part(budget)
    assert pair.nothing_was_sent(budget)


@pytest.mark.parametrize("who", ["a", "b"])
def test_another_task_at_one_server(pair: Pair, make_task: Any, who: str) -> None:
    other = make_task(D, {"privacy.noise_multiplier": 1.0})
    getattr(pair, who).described = other
    budget = pair.budget()
    with pytest.raises(TaskMismatch, match=str(other.digest)):
        pair.take_part(budget)
    assert pair.nothing_was_sent(budget)


def test_a_task_that_changes_during_the_training(pair: Pair, make_task: Any) -> None:
    budget = pair.budget()
    with pair.servers() as servers:
        servers.check_task()
        pair.a.described = make_task(D, {"privacy.noise_multiplier": 1.0})
        with pytest.raises(PeerViolation, match="task digest differs"):
            take_part(servers, budget, pair.pending(), pair.update)
    assert pair.nothing_was_sent(budget)


def test_servers_in_each_others_place(pair: Pair) -> None:
    pair.a.role, pair.b.role = pair.b.role, pair.a.role
    with pytest.raises(PeerViolation, match="is server-b, not server-a"):
        pair.take_part(pair.budget())


def limit_for(pair: Pair, rounds: int) -> float:
    """An ε between what ``rounds`` rounds cost and what one more would."""
    budget = pair.budget()
    return (budget._epsilon_of(rounds) + budget._epsilon_of(rounds + 1)) / 2


def test_rounds_beyond_the_owners_limit_get_nothing(pair: Pair, tmp_path: Path) -> None:
    pair.a.rounds = 9
    limit = limit_for(pair, 2)
    budget = pair.budget(limit, tmp_path / "own.log")
    result = pair.take_part(budget)
    assert (result.ended, result.submitted) == ("budget", 2)
    assert result.epsilon <= limit
    assert len(pair.a.uploads) == len(pair.b.uploads) == 2
    # The count survives: a new process of the owner's sends nothing more.
    again = pair.take_part(pair.budget(limit, tmp_path / "own.log"))
    assert (again.ended, again.submitted) == ("budget", 0)
    assert len(pair.a.uploads) == 2


def test_a_limit_below_one_round_is_refused_before_any_connection(pair: Pair) -> None:
    with pytest.raises(Misconfiguration, match="a single round of this task costs"):
        pair.budget(limit_for(pair, 1) / 100)


def test_one_round_announced_often_is_answered_once(pair: Pair) -> None:
    pair.a.notices = [opening(7, pair.a.model())] * 5
    pair.a.rounds = 0
    budget = pair.budget()
    assert pair.take_part(budget).submitted == 1
    assert budget.participations == len(pair.a.uploads) == 1


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), -5.0, 0.0, 1e300])
def test_a_deadline_that_is_none_is_the_tasks(pair: Pair, seconds: float) -> None:
    pair.a.notices = [opening(7, pair.a.model(), collect_s=seconds)]
    pair.a.rounds = 0
    assert pair.take_part(pair.budget()).submitted == 1


def test_a_rejection_for_no_reason_that_there_is(pair: Pair) -> None:
    pair.b.receipt = pb.Receipt(rejection="because", detail="x" * 100_000)
    with pytest.raises(PeerViolation, match="because"):
        pair.take_part(pair.budget())
    over = pb.RoundOver(attempt=1, rejection="y" * 100_000)
    pair.a.notices = [pb.Notice(over=over)]
    with pytest.raises(PeerViolation) as caught:
        pair.take_part(pair.budget())
    assert len(str(caught.value)) <= 2000


def test_a_pause_is_waited_out_until_the_tasks_deadline_and_no_longer(pair: Pair) -> None:
    pair.a.notices = [pb.Notice(paused=pb.TrainingPaused())]
    clock = LeapingClock()
    with pytest.raises(PeerUnavailable, match="paused the training"):
        pair.take_part(pair.budget(), clock)
    assert clock.now() - clock.start == pytest.approx(pair.task.deadlines.outage)
    assert len(clock.slept) > 3


def test_a_final_model_that_the_servers_disagree_about(pair: Pair) -> None:
    pair.a.rounds = 0
    pair.b.digest = Digest(b"\5" * 32)
    with pytest.raises(PeerViolation, match="nothing is sent"):
        pair.take_part(pair.budget())
