"""Clients that fail in mid-round, attempts that nobody validates: no round is lost."""

import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from unittest.mock import Mock

import pytest
from tests.faults import simulated_server
from tests.faults.conftest import small_task
from tests.faults.invariants import checked
from tests.faults.simulated_owner import RECORDS, Calls
from tests.faults.turns import Killed, Life
from tests.faults.world import World
from tests.rig.documents import Document

from precad.aggregator.attempt_states import Opened
from precad.aggregator.enrol.admission import Window
from precad.aggregator.rounds.aggregator import Aggregator
from precad.aggregator.rounds.start_attempt import OPENED_CAP
from precad.aggregator.rpc.operation_service import OperationService
from precad.aggregator.training.session import Event, RoundDone
from precad.aggregator.validate.validation import Validator
from precad.client.pending_update import Pair
from precad.common.errors import PeerUnavailable, Rejection
from precad.common.identifiers import ClientId, Role
from precad.common.ring import RingVector
from precad.common.task import Task
from precad.common.wire.messages import RoundOpen
from precad.norm_check.proof_submission import AnySubmission

A, B = Role.SERVER_A, Role.SERVER_B
COLLECT_S = 60.0
Script = Callable[["Failing"], None]


class Failing(Calls):
    def opened(self) -> Iterator[RoundOpen]:
        self.enrol()
        for notice in self.watch():
            if isinstance(notice, RoundOpen):
                yield notice

    def pairs(self) -> Iterator[Pair]:
        for event in self.opened():
            x: RingVector = self.fetch_model(event.version, event.model).astype("i8")
            pair = self.prepare(
                version=event.version, attempt=event.attempt, model=event.model, x=x
            )
            self.world.seen.updates[self.client, event.attempt] = x
            yield pair


class Troubled(World):
    def __init__(
        self, task: Task, folder: Path, *scripts: Script, orders: Sequence[str] = ()
    ) -> None:
        super().__init__(task, folder, seed=11, orders=orders)
        self.scripts = dict(zip(self.clients, scripts, strict=False))
        # Of whom nothing is expected.
        self.bad = set(self.scripts)
        self.done: dict[int, RoundDone] = {}
        self.ended_s: dict[int, float] = {}

    def published(self, event: Event) -> None:
        super().published(event)
        if isinstance(event, RoundDone) and self.turns.life.party == A.value:
            self.done[event.opened.version] = event
            self.ended_s[event.opened.version] = self.turns.now

    def _over(self) -> bool:
        there = set(self.clients) - self.bad
        return self.servers_are_done() and self.seen.results.keys() == there

    def _start_client(self, client: ClientId) -> None:
        if client in self.scripts:
            life = Life(client.name)
            failing = partial(self.scripts[client], Failing(self, client, life))
            self.turns.spawn(f"{client}: main", life, failing)
        else:
            super()._start_client(client)

    def reasons(self, version: int) -> list[str]:
        rejections = self.done[version].rejections
        return [rejections[client].value for client in self.scripts]


# Everybody is drawn in each of three rounds.
EVERYBODY: Document = {"privacy.client_rate": 1.0, "enrolment.clients": 4}
EVERYBODY |= {"deadlines.enrol": 20.0, "deadlines.collect": COLLECT_S}


@pytest.fixture
def task() -> Task:
    return small_task(3, changes=EVERYBODY)


def vanishes(client: Failing) -> None:
    next(client.pairs())


def dies_in_its_upload(client: Failing) -> None:
    """With half of B's body on its way: the connection goes with the process."""
    pairs = client.pairs()
    client._upload(next(pairs)[1], whole=False)
    client.world.turns.kill(client._life)
    raise Killed


def breaks_off(client: Failing) -> None:
    sends_half_a_pair(client, then=lambda at_b: client._upload(at_b, whole=False))


def sends_half_a_pair(
    client: Failing, then: Callable[[AnySubmission], object] = id
) -> None:
    """To A alone, in the first attempt; then it stays and says nothing."""
    for number, (at_a, at_b) in enumerate(client.pairs()):
        if number == 0:
            client._upload(at_a)
            then(at_b)


def is_silent(client: Failing) -> None:
    for _ in client.opened():
        pass


def is_late(client: Failing) -> None:
    for pair in client.pairs():
        client.world.turns.sleep(COLLECT_S + 1)
        for half in pair:
            assert client._upload(half).rejection is Rejection.WRONG_ATTEMPT


@pytest.mark.parametrize(
    ("scripts", "reasons"),
    [
        ([vanishes, dies_in_its_upload], ["absent", "truncated"]),
        ([breaks_off], ["truncated"]),
        ([sends_half_a_pair], ["unmatched"]),
        ([is_silent], ["absent"]),
        ([is_late], ["absent"]),
    ],
    ids=lambda each: getattr(each[0], "__name__", " "),
)
def test_who_is_gone_costs_the_others_nothing_and_who_is_there_the_deadline_alone(
    task: Task, folder: Path, scripts: list[Script], reasons: list[str]
) -> None:
    world = checked(Troubled(task, folder, *scripts))
    absent, others = ["absent"] * len(scripts), frozenset(world.clients[len(scripts) :])
    assert [world.reasons(version) for version in range(3)] == [reasons, absent, absent]
    assert {done.valid for done in world.done.values()} == {others}
    # Nobody waited for those who are gone.
    waited = max(world.ended_s.values()) if vanishes in scripts else world.ended_s[0]
    assert (waited < COLLECT_S) == (vanishes in scripts)
    # No half of an upload stays behind.
    assert list((folder / B.value / "spool").iterdir()) == []


def test_no_round_is_played_while_all_owners_are_away_for_less_than_a_collection(
    task: Task, folder: Path
) -> None:
    """Ctrl-C to all owners of one machine cost all the rounds that were left."""

    def is_away(away_s: float, client: Failing) -> None:
        for pair in client.pairs():
            if pair[0].context.version == 1:
                break
            for half in pair:
                client._upload(half)
        client.world.turns.sleep(away_s)
        for pair in client.pairs():
            for half in pair:
                client._upload(half)

    # They are back one after the other.
    scripts = [partial(is_away, COLLECT_S / 2 + number / 4) for number in range(4)]
    world = Troubled(task, folder, *scripts)
    world.run()
    assert {done.valid for done in world.done.values()} == {frozenset(world.clients)}
    assert max(world.ended_s.values()) < COLLECT_S


@pytest.mark.parametrize("half_a_pair", [False, True])
def test_clients_that_take_turns_to_be_missing_hold_up_no_more_rounds_than_one(
    folder: Path, *, half_a_pair: bool
) -> None:
    """Five each miss one version in five, at both servers or at B alone; each by itself may.

    By its own absences each is waited for, so that all eight rounds would take the
    whole of ``deadlines.collect``.
    """
    rounds, crooks = 8, 5

    def misses(turn: int, client: Failing) -> None:
        for at_a, at_b in client.pairs():
            there = at_a.context.version % crooks != turn
            if there or half_a_pair:
                client._upload(at_a)
            if there:
                client._upload(at_b)

    changes = EVERYBODY | {"enrolment.clients": 2 * crooks + 1}
    scripts = [partial(misses, turn) for turn in range(crooks)]
    world = Troubled(small_task(rounds, changes=changes), folder, *scripts)
    world.turns.limit_s = 2 * rounds * COLLECT_S
    # What they send is good, but they keep no account: no invariant is asked for.
    world.run()
    ends = [world.ended_s[version] for version in range(rounds)]
    long = [end - began >= COLLECT_S for began, end in pairwise([0.0, *ends])]
    assert (long[:3], sum(long)) == ([True] * 3, 4)
    # Three, and one of five; nobody who comes is left out.
    honest = set(world.clients[crooks:])
    assert all(done.valid >= honest for done in world.done.values())


def sleeps(silent: Collection[int], client: Failing) -> None:
    for pair in client.pairs():
        if pair[0].context.version not in silent:
            for half in pair:
                client._upload(half)


def long_rounds(world: Troubled) -> set[int]:
    """The versions that lasted as long as a collection may."""
    ends = [0.0, *(world.ended_s[version] for version in sorted(world.ended_s))]
    return {
        version
        for version, (began, end) in enumerate(pairwise(ends))
        if end - began >= COLLECT_S
    }


@pytest.mark.parametrize("sleepers", [1, 5])
def test_a_sleeping_owner_costs_two_collections_however_many_sleep_and_counts_once_awake(
    folder: Path, sleepers: int
) -> None:
    """They sleep from the start, wake up in version 4, and sleep again from version 5 on."""
    rounds = 9
    changes = EVERYBODY | {"enrolment.clients": sleepers + 4}
    script = partial(sleeps, {0, 1, 2, 3, 5, 6, 7, 8})
    world = Troubled(small_task(rounds, changes=changes), folder, *[script] * sleepers)
    world.turns.limit_s = 2 * rounds * COLLECT_S
    world.run()
    assert {0, 1} <= long_rounds(world) <= {0, 1, 5, 6}
    everybody, honest = set(world.clients), set(world.clients[sleepers:])
    counted = [set(world.done[version].valid) for version in range(rounds)]
    assert counted == [everybody if v == 4 else honest for v in range(rounds)]


def test_owners_that_fall_asleep_one_after_the_other_cost_two_collections_each(
    folder: Path,
) -> None:
    rounds = 9
    changes = EVERYBODY | {"enrolment.clients": 6}
    scripts = [partial(sleeps, range(start, rounds)) for start in (0, 1, 4)]
    world = Troubled(small_task(rounds, changes=changes), folder, *scripts)
    world.turns.limit_s = 2 * rounds * COLLECT_S
    world.run()
    assert {0, 1} <= long_rounds(world) <= {0, 1, 2, 4, 5}


class AskedForStatus(Troubled):
    """Asks server A for its status after each round, as operators do."""

    warned = ""

    def published(self, event: Event) -> None:
        super().published(event)
        if isinstance(event, RoundDone) and self.turns.life.party == A.value:
            status = OperationService(self.servers[A].session)._status()
            self.warned = "\n".join(status.warnings)


@pytest.mark.parametrize("validation", ["crypten", "proof"])
def test_a_server_that_starts_again_still_knows_who_sleeps(
    folder: Path, validation: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Both decide it from their own databases, alike, under either check."""
    caplog.set_level(logging.INFO, "precad")
    orders = [
        f"{role.value} crash before: store.versions.count_opened"
        for role in (A, B, A, B, A)
    ]

    def comes_back(client: Failing) -> None:
        while True:
            with suppress(PeerUnavailable):
                is_silent(client)
            client.world.turns.sleep(1.0)

    task = small_task(6, validation, changes=EVERYBODY)
    world = AskedForStatus(task, folder, comes_back, comes_back, orders=orders)
    world.turns.limit_s = 12 * COLLECT_S
    world = checked(world)
    assert not world.orders.open
    assert long_rounds(world) <= {0, 1}
    asleep = frozenset(world.clients[:2])
    for version in range(2, 6):
        assert world.done[version].opened.asleep == asleep
    names = ", ".join(sorted(client.name for client in asleep))
    assert caplog.text.count(f"2 not waited for ({names})") >= 8
    assert f"for until they upload again: {names}" in world.warned


@pytest.mark.parametrize("at_b", [None, RECORDS + 1])
def test_who_enrols_at_one_server_or_otherwise_at_the_other_is_left_out_also_after_a_restart(
    task: Task, folder: Path, at_b: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    def enrols(client: Failing) -> None:
        for role, records in ((A, RECORDS), (B, at_b)):
            if records is not None:
                client.enrol_at(role, records)

    caplog.set_level(logging.INFO, "precad")
    # The second line: after the roster is frozen, in a round.
    orders = [
        "server-a crash after: store.enrolment.freeze",
        "server-a crash before: store.versions.count_opened",
    ]
    world = checked(Troubled(task, folder, enrols, orders=orders))
    assert f"are left out ({world.clients[0]})" in caplog.text
    for done in world.done.values():
        assert done.opened.cohort == tuple(world.clients[1:])
        assert done.valid == set(world.clients[1:])


def test_who_enrols_at_one_server_alone_is_none_of_the_quorum(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would close enrolment before the others have come, who are too few then."""
    task = small_task(3, changes=EVERYBODY | {"enrolment.min_clients": 3})
    world = Troubled(task, folder, lambda client: client.enrol_at(A))
    start = world._start_client

    def late(client: ClientId) -> None:
        """The last one starts when the quorum would be there, if A's alone counted."""
        after_s = 10.0 if client == world.clients[-1] else 0.0
        world.turns.at(after_s, partial(start, client))

    monkeypatch.setattr(world, "_start_client", late)
    monkeypatch.setattr(simulated_server, "window_of", lambda _: Window(3600.0, 3))
    checked(world)
    assert {done.valid for done in world.done.values()} == {
        frozenset(world.clients[1:])
    }


@pytest.mark.parametrize(("lost_at", "asked"), [("ready", False), ("decide", True)])
def test_attempts_that_no_worker_was_there_for_opened_nothing(
    task: Task, folder: Path, lost_at: str, *, asked: bool
) -> None:
    """More of them than may be opened need no word of the operators; opened ones do."""
    world = Troubled(task, folder)
    without = OPENED_CAP + 2

    @contextmanager
    def validation(aggregator: Aggregator, opened: Opened) -> Iterator[Validator]:
        with aggregator.in_process(opened) as validator:
            if opened.attempt < without:
                world.seen.faults.append(
                    f"attempt {opened.attempt}: no worker is there"
                )
                lost = Mock(side_effect=PeerUnavailable("a pair of workers is lost"))
                setattr(validator, lost_at, lost)
            yield validator

    world.validation = validation
    checked(world)
    assert world.done[0].opened.attempt == without
    assert bool(world.seen.words) == asked
