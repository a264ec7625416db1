"""Clients that fail in mid-round, and attempts that nobody could validate: others lose no round.

In simulated time (``world.py``): deadlines are waited for, and take none.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from tests.faults.conftest import quick_folder, small_task
from tests.faults.invariants import check
from tests.faults.simulated_owner import RECORDS, Calls
from tests.faults.turns import Killed, Life
from tests.faults.world import World
from tests.rig.submissions import body_of

from precad.aggregator.enrol.admission import Window
from precad.aggregator.rounds.start_attempt import OPENED_CAP
from precad.aggregator.training.session import Event, Phase, RoundDone, Session
from precad.aggregator.validate.check_with_dealer import WithDealer
from precad.client.pending_update import Pair
from precad.common.errors import PeerUnavailable, Rejection
from precad.common.identifiers import ClientId, Role
from precad.common.ring import RingVector
from precad.common.roster import Enrolment
from precad.common.share.proof_submission import AnySubmission
from precad.common.task import Task
from precad.common.wire.messages import RoundOpen, header_from_wire, header_to_wire

A, B = Role.SERVER_A, Role.SERVER_B
COLLECT_S = 60.0
Script = Callable[["Failing"], None]


class Failing(Calls):
    """A client of a round that a test steers; it doesn't come back."""

    def opened(self) -> Iterator[RoundOpen]:
        """Enrol, and watch: each attempt that opens, until the watch is let go of."""
        self.enrol()
        for notice in self.watch():
            if isinstance(notice, RoundOpen):
                yield notice

    def first(self) -> Pair:
        """A's and B's half of what this client has for the first attempt; it isn't there then."""
        return next(self.pairs())

    def pairs(self) -> Iterator[Pair]:
        """The same of each attempt."""
        for event in self.opened():
            x: RingVector = self.fetch_model(event.version, event.model).astype("i8")
            pair = self.prepare(event.version, event.attempt, event.model, x)
            self.world.seen.updates[self.client, event.attempt] = x
            yield pair

    def break_off(self, half: AnySubmission) -> None:
        """Half of an upload, and the connection is gone."""
        server = self.world.servers[half.role]
        box, body = server.session.inbox, body_of(half)
        with self._handled_by(server):
            upload = box.start(header_from_wire(header_to_wire(half), half.role))
            upload.add(body[: len(body) // 2])
            upload.abandon()
            box.refuse(upload.context.attempt, self.client, Rejection.TRUNCATED)


class Troubled(World):
    """The first clients play scripts, each once; the others are whole."""

    def __init__(self, task: Task, folder: Path, *scripts: Script, **options: Any) -> None:
        super().__init__(task, folder, seed=11, faults=0, chance=0.0, **options)
        self.scripts = dict(zip(self.clients, scripts, strict=False))
        # Of whom nothing is expected.
        self.bad = set(self.scripts)
        self.done: dict[int, RoundDone] = {}
        self.ended_s: dict[int, float] = {}

    def published(self, event: Event) -> None:
        """Server A's rounds, by version."""
        super().published(event)
        if isinstance(event, RoundDone) and self.turns.life.party == A.value:
            self.done[event.opened.version] = event
            self.ended_s[event.opened.version] = self.turns.now

    def play(self) -> None:
        """All of it, with all invariants."""
        try:
            self.run()
            check(self)
        except BaseException as error:
            error.add_note("\n".join(self.seen.trace[-40:]))
            raise

    def _over(self) -> bool:
        done = all(
            self.serving(role) and self.servers[role].session.progress.phase is Phase.DONE
            for role in (A, B)
        )
        return done and self.seen.results.keys() == set(self.clients) - self.bad

    def _start_client(self, client: ClientId) -> None:
        if client not in self.scripts:
            super()._start_client(client)
            return
        life = Life(client.name)

        def main() -> None:
            self.scripts[client](Failing(self, client, life))

        self.turns.spawn(f"{client}: main", life, main)


EVERYBODY: dict[str, Any] = {
    "privacy.client_rate": 1.0,
    "enrolment.clients": 4,
    "deadlines.enrol": 20.0,
    "deadlines.collect": COLLECT_S,
}
"""Is drawn in each of three rounds."""


@pytest.fixture
def task() -> Task:
    return small_task(3, changes=EVERYBODY)


@pytest.fixture
def folder() -> Iterator[Path]:
    with quick_folder() as path:
        yield path


def vanishes(client: Failing) -> None:
    """As soon as the round is open."""
    client.first()


def dies_in_its_upload(client: Failing) -> None:
    """With half of B's body on its way: the connection goes with the process."""
    pairs = client.pairs()
    client.break_off(next(pairs)[1])
    client.world.turns.kill(client._life)
    raise Killed


def breaks_off(client: Failing) -> None:
    """A's upload arrives; B's is cancelled midway, and never comes again."""
    for number, (at_a, at_b) in enumerate(client.pairs()):
        if number == 0:
            client._upload(at_a)
            client.break_off(at_b)


def sends_half_a_pair(client: Failing) -> None:
    """To A alone, in the first attempt; then it stays and says nothing."""
    for number, (at_a, _) in enumerate(client.pairs()):
        if number == 0:
            client._upload(at_a)


def is_silent(client: Failing) -> None:
    """It watches, and sends nothing."""
    for _ in client.opened():
        pass


def is_late(client: Failing) -> None:
    """Its uploads come when the round is over."""
    for pair in client.pairs():
        client.world.turns.sleep(COLLECT_S + 1)
        for half in pair:
            assert client._upload(half).rejection is Rejection.WRONG_ATTEMPT


def reasons(world: Troubled, version: int) -> list[str]:
    """Of the troubled clients, in order."""
    rejections = world.done[version].rejections
    return [rejections[client].value for client in world.scripts]


def test_a_vanished_and_a_dead_client_leave_the_round_to_the_others_at_once(
    task: Task, folder: Path
) -> None:
    world = Troubled(task, folder, vanishes, dies_in_its_upload)
    world.play()
    assert reasons(world, 0) == ["absent", "truncated"]
    assert reasons(world, 1) == reasons(world, 2) == ["absent", "absent"]
    for version in range(3):
        assert world.done[version].valid == set(world.clients[2:])
    # Nobody waited for those who are gone.
    assert max(world.ended_s.values()) < COLLECT_S
    # No half of an upload stays behind.
    assert list((folder / B.value / "spool").iterdir()) == []


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (breaks_off, "truncated"),
        (sends_half_a_pair, "unmatched"),
        (is_silent, "absent"),
        (is_late, "absent"),
    ],
    ids=lambda each: getattr(each, "__name__", each),
)
def test_who_is_there_and_sends_half_late_or_nothing_costs_the_others_the_deadline_alone(
    task: Task, folder: Path, script: Script, reason: str
) -> None:
    world = Troubled(task, folder, script)
    world.play()
    assert reasons(world, 0) == [reason]
    assert world.ended_s[0] >= COLLECT_S
    for done in world.done.values():
        assert done.valid == set(world.clients[1:])


@pytest.mark.parametrize("at_b", [None, RECORDS + 1])
def test_who_enrols_at_one_server_or_otherwise_at_the_other_is_left_out_also_after_a_restart(
    task: Task, folder: Path, at_b: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    def enrols(client: Failing) -> None:
        for role, records in ((A, RECORDS), (B, at_b)):
            if records is not None:
                claim = Enrolment(client.client, records, task.privacy.record_rate)
                client._until_answered(role, lambda server: server.session.register.enrol(claim))  # noqa: B023

    caplog.set_level(logging.INFO, "precad")
    # The second line: after the roster is frozen, in a round.
    orders = [
        "server-a crash after: store.enrolment.freeze",
        "server-a crash before: store.versions.count_opened",
    ]
    world = Troubled(task, folder, enrols, orders=orders)
    world.play()
    assert f"are left out: {world.clients[0]}" in caplog.text
    for done in world.done.values():
        assert done.opened.cohort == tuple(world.clients[1:])
        assert done.valid == set(world.clients[1:])


class WithALateOne(Troubled):
    """The last client starts when the quorum would be there, if one at server A alone counted."""

    def _start_client(self, client: ClientId) -> None:
        def main() -> None:
            self.turns.sleep(10.0)
            World._start_client(self, client)

        if client == self.clients[-1]:
            self.turns.spawn(f"{client}: late", Life(client.name), main)
        else:
            super()._start_client(client)


def test_who_enrols_at_one_server_alone_is_none_of_the_quorum(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would close enrolment before the others have come, who are too few then."""

    def at_a_alone(client: Failing) -> None:
        claim = Enrolment(client.client, RECORDS, client.world.task.privacy.record_rate)
        client._until_answered(A, lambda server: server.session.register.enrol(claim))

    monkeypatch.setattr(Session, "enrolling", Window(3600.0, 3))
    task = small_task(3, changes=EVERYBODY | {"enrolment.min_clients": 3})
    world = WithALateOne(task, folder, at_a_alone)
    world.play()
    assert {done.valid for done in world.done.values()} == {frozenset(world.clients[1:])}


class Unmanned(WithDealer):
    """As pairs of workers that aren't there, or that are lost with what they have."""

    def __init__(self, lost_at: str, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._lost_at = lost_at

    def ready(self) -> None:
        """Both servers find it out."""
        if self._lost_at == "ready":
            raise PeerUnavailable("no pair of workers was there")
        super().ready()

    def decide(self) -> Any:
        """After both have counted the attempt as opened."""
        raise PeerUnavailable("a pair of workers is lost")


@contextmanager
def unmanned(lost_at: str, server: Any, opened: Any) -> Iterator[Unmanned]:
    with ExitStack() as conversations:
        yield Unmanned(lost_at, server, opened.attempt, opened.counted, count(), conversations)


@pytest.mark.parametrize(("lost_at", "asked"), [("ready", False), ("decide", True)])
def test_attempts_that_no_worker_was_there_for_opened_nothing(
    task: Task, folder: Path, lost_at: str, *, asked: bool
) -> None:
    """More of them than may be opened need no word of the operators; opened ones do."""
    world = Troubled(task, folder)
    without = OPENED_CAP + 2

    def validation(aggregator: Any, opened: Any) -> Any:
        if opened.attempt < without:
            world.seen.faults.append(f"attempt {opened.attempt}: no worker is there")
            return unmanned(lost_at, aggregator.for_validation, opened)
        return aggregator.in_process(opened)

    world.validation = validation
    world.play()
    assert world.done[0].opened.attempt == without
    assert bool(world.seen.words) == asked
