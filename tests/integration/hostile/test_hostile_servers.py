"""A hostile server can waste a client's time, but the client notices, and nothing is
sent."""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from threading import Event

import numpy as np
import pytest
from tests.conftest import small_task
from tests.rig import clock, keys
from tests.rig.fake_server import FakeServer, opening, started

from precad.client.connection import CALL_TIMEOUT_S, Servers
from precad.client.own_account import OwnAccount
from precad.client.participant import Participant
from precad.client.participation import Participation, RoundView
from precad.client.pending_update import Pending
from precad.client.server_statements import ServerStatements
from precad.common import errors, model, ring
from precad.common.errors import (
    Misconfiguration,
    PeerUnavailable,
    PeerViolation,
    TaskMismatch,
)
from precad.common.identifiers import ClientId, Digest, Role
from precad.common.identity.mutual_tls import WIRE_VERSION
from precad.common.identity.party_certificate import Principal
from precad.common.task import Task
from precad.common.wire.messages import serves_first
from precad.protos import precad_pb2 as pb

Log = pytest.LogCaptureFixture
D, WARD = 8, ClientId("ward-1")


@dataclass(slots=True)
class Pair:
    a: FakeServer
    b: FakeServer
    task: Task
    computed: int = 0
    charged: int = 0

    def of_task(self, **changes: object) -> None:
        self.task = self.a.task = self.b.task = small_task(D, changes)

    def take_part(self) -> Participation:
        account, pending = (
            OwnAccount(self.task, 0.2, None, None),
            Pending(self.task, WARD),
        )
        with self.servers() as servers, ExitStack() as stack:
            stack.callback(lambda: setattr(self, "charged", account.participations))
            servers.check_task()
            servers.enrol(50, 0.2)
            return Participant(
                servers=servers,
                budget=account,
                pending=pending,
                compute=self.update,
                clock=clock.LeapingClock(),
                statements=ServerStatements(self.task, WARD),
            ).run()

    def servers(self, first: Role = Role.SERVER_A) -> Servers:
        ward = keys.identity(Principal.client("ward-1"))
        found = Servers(
            self.task,
            WARD,
            server_a=self.a.address,
            server_b=self.b.address,
            identity=ward,
            patience_s=5,
        )
        found.serves_first = first
        return found

    def fetch(self, first: Role = Role.SERVER_A, *, signed: bool = False) -> bytes:
        """The first model, as both servers have it at the beginning."""
        with self.servers(first) as servers:
            digest = Digest(self.a.model())
            return servers.fetch_model(0, digest, signed=signed).tobytes()

    def update(self, view: RoundView) -> ring.RingVector:
        assert view.theta.shape == (D,)
        self.computed += 1
        return np.ones(D, dtype=np.int64)

    def refuses(
        self, error: type[Exception] | tuple[type[Exception], ...], says: str
    ) -> None:
        """An owner that takes part ends with this error, and has computed and sent
        nothing."""
        with pytest.raises(error, match=says):
            self.take_part()
        assert (self.computed, self.charged, self.a.uploads, self.b.uploads) == (
            0,
            0,
            [],
            [],
        )


@pytest.fixture
def pair() -> Iterator[Pair]:
    task, versions = small_task(D), dict[int, int]()
    theta, roles = model.initial_vector(task.model), (Role.SERVER_A, Role.SERVER_B)
    a, b = (FakeServer(role, task, theta, versions=versions) for role in roles)
    with started(a, b):
        yield Pair(a, b, task)


SERVED: dict[str, tuple[Callable[[], Iterator[bytes]], str]] = {
    "too long a model": (lambda: iter([bytes(8 * D + 8)]), "longer than 64 bytes"),
    "too short a model": (lambda: iter([bytes(4 * D - 4)]), "28 bytes.*has 32, or 64"),
    "no model": (lambda: iter(()), "0 bytes"),
    "a model of NaN": (lambda: iter([np.full(D, np.nan, np.float32).tobytes()]), "NaN"),
    "an old model of NaN": (lambda: iter([np.full(D, np.nan).tobytes()]), "NaN"),
    "a model without end": (
        lambda: iter(lambda: bytes(1 << 16), None),
        "longer than 64 bytes",
    ),
    "another model": (lambda: iter([np.ones(D, np.float32).tobytes()]), "with digest"),
    "the model as float64": (lambda: iter([bytes(8 * D)]), "with digest"),
}  # What a server serves in the model's place, and what is said of it


def at(who: str, **values: object) -> Callable[[Pair], None]:
    """Spoil one server; functions get the pair."""

    def spoil(pair: Pair) -> None:
        for name, value in values.items():
            setattr(getattr(pair, who), name, value(pair) if callable(value) else value)

    return spoil


OTHER = small_task(D, {"privacy.noise_multiplier": 1.0})
NEWER = WIRE_VERSION + 1
SPEAKS = f"speaks wire version {{}}, this side {WIRE_VERSION}: upgrade precad"
WRONG: dict[str, tuple[Callable[[Pair], object], str]] = {
    "the first wire version": (
        at("a", wire_version=0),
        f"{SPEAKS.format(1)} at server A",
    ),
    "a newer wire version": (
        at("b", wire_version=NEWER),
        f"{SPEAKS.format(NEWER)} on this side",
    ),
    "a digest that differs between A and B": (
        at("b", digest=Digest(b"\5" * 32)),
        r"server-b signed for attempt 0 of version 0 from model 0505.*nothing is sent",
    ),
    # With its right digest, to one client.
    "a model that only A has": (
        at("a", theta=lambda pair: pair.a.theta + 1),
        "nothing is sent",
    ),
    "a final model that they disagree about": (
        lambda pair: (
            at("a", rounds=0)(pair),
            at("b", digest=Digest(b"\5" * 32))(pair),
        ),
        "nothing is sent",
    ),
    "not the announced model": (
        at("a", announced=b"\6" * 32),
        "from 0606.* is open; nothing is",
    ),
    # The digest is of the version too: θ_0 can't be passed off as θ_1.
    "an older model under a newer version": (
        at("a", rounds=0, notices=lambda pair: [opening(0, pair.a.model(), version=1)]),
        "of version 1 from .* of version 1 from .* is open; nothing is sent",
    ),
    "another task at server A": (at("a", described=OTHER), str(OTHER.digest)),
    "another task at server B": (at("b", described=OTHER), str(OTHER.digest)),
    "servers in each other's place": (
        lambda pair: (
            at("a", role=Role.SERVER_B)(pair),
            at("b", role=Role.SERVER_A)(pair),
        ),
        "is server-b, not server-a",
    ),
}


@pytest.mark.parametrize("kind", [*WRONG, *SERVED])
def test_what_both_servers_do_not_stand_for_is_not_trained(
    pair: Pair, kind: str
) -> None:
    """Nor what neither of them serves."""
    spoil, says = WRONG.get(kind, (lambda _: None, "nothing is sent"))
    spoil(pair)
    if kind in SERVED:
        pair.a.pieces = pair.b.pieces = SERVED[kind][0]
    task = kind.startswith("another task")
    pair.refuses(TaskMismatch if task else (PeerViolation, Misconfiguration), says)


@pytest.mark.parametrize("first", ["a", "b"])
@pytest.mark.parametrize("kind", SERVED)
def test_a_server_that_serves_something_else_is_passed_over_with_a_warning(
    pair: Pair, kind: str, first: str, caplog: Log
) -> None:
    served, says = SERVED[kind]
    bad = getattr(pair, first)
    pair.a.serves_first, bad.pieces = bad.role, served
    result = pair.take_part()
    assert (result.ended, result.submitted) == ("finished", 3)
    assert result.model is not None
    assert result.model.theta.tobytes() == pair.a.theta.tobytes()
    warned = [each.getMessage() for each in caplog.records]
    assert any(re.search(rf"{bad.role.title} served.*{says}", each) for each in warned)


@pytest.mark.parametrize("first", ["a", "b"])
def test_one_server_gives_the_model_and_the_other_its_digest(
    pair: Pair, first: str
) -> None:
    serving, other = (pair.a, pair.b) if first == "a" else (pair.b, pair.a)
    pair.a.serves_first = serving.role
    pair.take_part()
    rpcs = ("FetchModel", "ModelDigest")
    asked = [
        [Counter(rpc for rpc, _ in each.calls)[n] for n in rpcs]
        for each in (serving, other)
    ]
    # Three rounds, whose model both have signed before it is fetched, and the final
    # one.
    assert asked == [[4, 0], [0, 1]]
    assert Counter(rpc for rpc, _ in other.calls)["Opening"] == 3


@pytest.mark.parametrize("amid", [False, True])
def test_a_server_that_falls_silent_is_passed_over(
    pair: Pair, *, amid: bool, caplog: Log
) -> None:
    pair.of_task(**{"deadlines.peer": 0.2})
    over = Event()

    def silent() -> Iterator[bytes]:
        if amid:
            yield bytes(4)
        over.wait()

    pair.b.pieces = silent
    try:
        assert pair.fetch(Role.SERVER_B) == pair.a.theta.tobytes()
    finally:
        over.set()
    assert (
        "server B served nothing for 0.2 s; fetching model 0 from server A"
        in caplog.text
    )


def test_a_long_model_on_a_slow_line_is_waited_for(pair: Pair) -> None:
    """What counts is that some of it comes, not how much.

    And it has the task's time: a thousand
    owners who fetch at once take longer than a call of one message may.
    """
    pair.of_task(**{"deadlines.peer": 60.0, "deadlines.collect": 1000.0})
    pair.a.pieces = lambda: iter(
        [bytes([each]) for each in model.to_bytes(pair.a.theta)]
    )
    assert pair.fetch() == pair.a.theta.tobytes()
    assert "FetchModel" not in dict(pair.b.calls)
    (fetch_s,) = pair.a.fetch_s
    assert CALL_TIMEOUT_S < fetch_s <= 1000.0


def test_a_server_that_is_gone_is_passed_over_where_both_signed_the_digest(
    pair: Pair,
) -> None:
    """And may come back where the other one serves something else.

    A digest that both have signed is checked, and not asked for.
    """
    assert pair.fetch(signed=True) == pair.a.theta.tobytes()
    pair.b.address = "localhost:1"
    assert pair.fetch(Role.SERVER_B, signed=True) == pair.a.theta.tobytes()
    pair.a.theta = pair.a.theta + 1
    for first in (Role.SERVER_A, Role.SERVER_B):
        with (
            pair.servers(first) as servers,
            pytest.raises(PeerUnavailable, match="server B"),
        ):
            servers.fetch_model(0, Digest(pair.b.model()), signed=True)
    assert "ModelDigest" not in dict(pair.a.calls + pair.b.calls)


def test_what_is_no_vector_of_the_task_never_leaves_the_client(pair: Pair) -> None:
    shapes = (np.zeros(shape, np.int64) for shape in [(D - 1,), (D + 1,), (1, D)])
    with pair.servers() as servers:
        for x in (np.full(D, np.nan), *shapes):
            with pytest.raises(
                errors.RejectedSubmission, match=r"this task's is int64\[8\]"
            ):
                servers.prepare(version=0, attempt=0, model=pair.task.digest, x=x)


def test_a_task_that_changes_in_the_training(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        Servers, "enrol", lambda *_: setattr(pair.a, "described", OTHER)
    )
    pair.refuses(PeerViolation, "task digest differs")


def test_a_round_is_answered_once_and_its_model_served_by_a_server(pair: Pair) -> None:
    """However often it is announced."""
    for named in ("", "server-c", "dealer"):
        with pytest.raises(PeerViolation, match="serves models"):
            serves_first(pb.Notice(serves_first=named))
    pair.a.notices = [opening(7, pair.a.model())] * 5
    pair.a.rounds = 0
    assert pair.take_part().submitted == pair.charged == len(pair.a.uploads) == 1


def test_a_receipts_words_stay_on_one_line(pair: Pair, caplog: Log) -> None:
    words = "\x1b[2K\r\u202eno\n2026-11-26 09:00:00 INFO finished; \u03b5 = .001"
    pair.a.receipt = pb.Receipt(rejection="malformed", detail=words)
    pair.take_part()
    messages = [record.getMessage() for record in caplog.records]
    assert any("finished; \u03b5 = .001" in each for each in messages)
    assert all(map(str.isprintable, messages))
