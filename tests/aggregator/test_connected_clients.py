"""Who is connected takes its part and no more, and nobody waits for who dawdles or is
gone."""

import asyncio
import contextlib
import itertools
import math
from collections import Counter
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Sequence,
)
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TypeVar, cast
from unittest.mock import Mock

import numpy as np
import pytest
from tests.rig.clock import LeapingClock, LeapingLoop, passing
from tests.rig.tasks import task_with

from precad.aggregator import server_process
from precad.aggregator.rpc import limits
from precad.aggregator.server_process import LATE, leaves_at, stay
from precad.aggregator.training import connected_clients
from precad.aggregator.training.connected_clients import (
    ConnectedClients,
    LongStream,
    OpenWatches,
)
from precad.aggregator.training.model_store import ModelStore
from precad.common.clock import Clock
from precad.common.errors import (
    AccessDenied,
    RejectedSubmission,
    Rejection,
    TooManyCalls,
)
from precad.common.identifiers import ClientId
from precad.common.identity.party_certificate import Principal
from precad.common.wire import guarded_port

ONE, OTHER = ClientId("one"), ClientId("other")


async def some(number: int, silent: asyncio.Event) -> AsyncGenerator[int]:
    """So many items, then silence, which ends when this is closed."""
    try:
        for item in range(number):
            yield item
        silent.set()
        await asyncio.Event().wait()
    finally:
        silent.clear()


async def watched(items: AsyncIterator[int]) -> AsyncIterator[int]:
    book = OpenWatches(lambda _client: None, Counter())
    with book.open("ipv4:127.0.0.1:1", ONE, b"1", lambda: None) as watch:
        async for item in watch.follow(items):
            yield item


@pytest.mark.parametrize(
    "wrap", [watched, LongStream(_still_allowed=lambda: None).follow]
)
def test_a_caller_that_leaves_ends_its_stream_and_leaves_it_at_rest(
    wrap: Callable[[AsyncIterator[int]], AsyncIterator[int]],
) -> None:
    """gRPC cancels the handler; closing a stream that still ran was an error in the
    log."""
    silent = asyncio.Event()

    async def handler() -> None:
        async with contextlib.aclosing(some(3, silent)) as items:
            async for _ in wrap(items):
                pass

    async def play() -> None:
        task = asyncio.create_task(handler())
        await silent.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (asyncio.all_tasks(), silent.is_set()) == (
            {asyncio.current_task()},
            False,
        )

    asyncio.run(play())


def test_a_stream_ends_once_its_caller_does_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connected_clients, "LOOK_S", 0.01)
    still_allowed = Mock(side_effect=[None, None, AccessDenied("revoked")])

    async def follow() -> None:
        items = some(2, asyncio.Event())
        assert [
            item
            async for item in LongStream(_still_allowed=still_allowed).follow(items)
        ] == []

    with pytest.raises(AccessDenied, match="revoked"):
        asyncio.run(follow())
    assert still_allowed.call_count == 3


def test_a_model_stays_until_the_last_owner_has_had_its_time() -> None:
    clock, both = LeapingClock(0.0), [ONE, OTHER]
    clients = ConnectedClients(1.0, clock)
    assert clients.last_heard(both) is None
    assert leaves_at(1000.0, None, 0.0) == 1000.0
    clock.sleep(5.0)
    clients.heard_from(ONE)
    # After a training that all took part in it stays for the stated time.
    for stated in (30.0, 0.0, math.inf):
        assert leaves_at(1000.0, clients.last_heard([ONE]), stated) == 1000.0 + stated
    # One that was never heard from is waited for longer, but not without an end.
    assert leaves_at(2.0, clients.last_heard(both), 30.0) == 2.0 + LATE * 30.0
    clock.sleep(195.0)
    clients.heard_from(OTHER)
    assert leaves_at(2.0, clients.last_heard(both), 30.0) == 230.0
    # Nobody keeps a server up by asking again and again.
    clock.sleep(25.0)
    clients.heard_from(ONE)
    assert leaves_at(2.0, clients.last_heard(both), 30.0) == 230.0


def test_while_nobody_is_there_everybody_may_come_back() -> None:
    clock = LeapingClock(0.0)
    clients = ConnectedClients(5.0, clock)

    def gone() -> list[bool]:
        return [clients.gone(client) for client in (ONE, OTHER)]

    with clients.watch(ONE):
        with clients.watch(OTHER), clients.watch(OTHER):
            pass
        clock.sleep(6.0)
        # Whoever is there waits for nobody who has left.
        assert gone() == [False, True]
    clock.sleep(600.0)
    assert gone() == [False, False]
    # The first who is back waits for the others as after a broken connection.
    with clients.watch(ONE):
        clock.sleep(4.0)
        assert gone() == [False, False]
        clock.sleep(2.0)
        assert gone() == [False, True]
        # Nor does it hold them up by leaving and coming again while one is there.
        with clients.watch(OTHER):
            pass
        clock.sleep(6.0)
        with clients.watch(ONE):
            assert gone() == [False, True]
    # Who isn't allowed any more is gone all the same.
    clients.dismiss(OTHER)
    assert gone() == [False, True]


def test_who_has_the_final_model_is_waited_for_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor by a server that starts again: it calls nobody any more
    (``DataOwner.run``)."""
    task, late, path = task_with({}), LATE * 30, tmp_path / "model.safetensors"
    monkeypatch.setattr(server_process, "LOOK_S", 0.0)

    def stays(*with_model: ClientId, heard: bool = False) -> float:
        # Every look takes a second.
        clock = cast("Clock", SimpleNamespace(now=partial(next, itertools.count(1.0))))
        clients = ConnectedClients(1.0, clock)
        for client in (ONE, OTHER) if heard else ():
            clients.heard_from(client)
        for client in with_model:
            clients.has_final_model(client)
        session = Mock(
            clock=clock, connected_clients=clients, model_store=ModelStore(task, path)
        )
        session.register.roster.return_value = {ONE: None, OTHER: None}
        began: float = clock.now()
        asyncio.run(stay(session, 30.0, asyncio.Event()))
        return float(clock.now()) - began

    # One of two got it: a next start waits for the other, and so does the one after it.
    assert stays(ONE, heard=True) < late < stays()
    assert max(stays(ONE, OTHER, heard=True), stays()) < late
    # A state that was put back, or another training's model, is waited for again.
    ModelStore(task, path).put(task.training.rounds, np.ones(task.dimension))
    assert stays() > late


AT_ONCE, GRACE_S, LEAST_RATE = limits.AT_ONCE, limits.GRACE_S, limits.LEAST_RATE
WARD_1, WARD_2 = Principal.client("ward-1"), Principal.client("ward-2")
T = TypeVar("T")


def leaping(coroutine: Coroutine[object, object, T]) -> tuple[T, float]:
    """What it comes to, and after how many seconds of a loop in which waiting takes no
    time."""
    with asyncio.Runner(loop_factory=LeapingLoop) as runner:
        return runner.run(coroutine), round(runner.get_loop().time(), 3)


@pytest.mark.parametrize(
    ("call", "most"),
    [
        (guarded_port.Call.WATCH, 2),
        (guarded_port.Call.SUBMIT, 2),
        (guarded_port.Call.FETCH, 4),
    ],
)
def test_a_caller_has_so_many_and_no_more(call: guarded_port.Call, most: int) -> None:
    calls = guarded_port.OpenCalls()
    for _ in range(most + 1):
        # One that fails gives its place back.
        with pytest.raises(ZeroDivisionError), calls.one_more(WARD_1, call):
            raise ZeroDivisionError
    with contextlib.ExitStack() as stack:
        for _ in range(most):
            stack.enter_context(calls.one_more(WARD_1, call))
        with pytest.raises(TooManyCalls, match=rf"ward-1.*{most}.*{call.value}"):
            stack.enter_context(calls.one_more(WARD_1, call))
        # Neither another caller nor another kind of call is touched.
        stack.enter_context(calls.one_more(WARD_2, call))
        for other in set(guarded_port.Call) - {call}:
            stack.enter_context(calls.one_more(WARD_1, other))
    assert len(calls) == 0


async def slowly(pauses: Sequence[float]) -> AsyncIterator[int]:
    for number, pause in enumerate(pauses):
        await passing(pause)
        yield number


@pytest.mark.parametrize(
    ("pauses", "idle_s", "total_s", "got", "ended"),
    [
        ([0, 3600, 0], 30, 1000, 1, 30),
        ([26] * 100, 30, 100, 3, 100),
        # A pause that begins shortly before the end doesn't add its own length to it.
        *(([50, 3600], 60, 100, 1, 100), ([50, 40, 3600], 60, 100, 2, 100)),
    ],
    ids=["one long pause", "a drip", "the last pause", "the last of three"],
)
def test_who_pauses_too_long_or_in_sum_is_cut_off(
    pauses: list[float], idle_s: float, total_s: float, got: int, ended: float
) -> None:
    async def run() -> int:
        came = 0
        with pytest.raises(RejectedSubmission) as rejected:  # noqa: PT012 — after some
            async for _ in limits.in_time(
                slowly(pauses), idle_s=idle_s, total_s=total_s
            ):
                came += 1
        assert rejected.value.reason is Rejection.TRUNCATED
        return came

    assert leaping(run()) == (got, ended)


def test_the_wait_for_a_turn_is_not_the_clients() -> None:
    async def run() -> int:
        slots, got = limits.TransferSlots(1), 0
        first, leaving, second = (limits.TransferSlot(slots) for _ in range(3))
        await first.take()
        # One that leaves while it waits takes no place along.
        taking = asyncio.create_task(leaving.take())
        await asyncio.sleep(0)
        taking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await taking
        leaving.close()
        asyncio.get_running_loop().call_later(900, first.close)
        async for _ in limits.in_time(
            slowly([20, 20, 20]), idle_s=30, total_s=1000, slot=second
        ):
            got += 1
            if got == 1:
                await second.take()
        return got

    assert leaping(run())[0] == 3


PIECE = 1 << 18
Body = Callable[[limits.TransferSlot], Awaitable[None]]


def pieces(number: int, pause_s: float, size: int = PIECE) -> Body:

    async def read(slot: limits.TransferSlot) -> None:
        for _ in range(number):
            with slot.waiting():
                await passing(pause_s)
            slot.passed(size)

    return read


def began(
    at_once: int,
    bodies: Sequence[Body],
    limit_s: float = 1e6,
    *,
    of_models: bool = False,
) -> list[float | None]:
    """When each body was begun, of those that ask in this order at once; None where it
    wasn't."""

    async def one(slots: limits.TransferSlots, read: Body) -> float | None:
        slot = limits.TransferSlot(slots)
        try:
            async with asyncio.timeout(limit_s):
                await slot.take()
            at = asyncio.get_running_loop().time()
            await read(slot)
        except TimeoutError:
            return None
        finally:
            slot.close()
            slot.close()
        return round(at, 3)

    async def run() -> list[float | None]:
        slots = limits.TransferSlots(at_once)
        if of_models:
            slots = limits.TransferSlots(limits.MODELS_AT_ONCE, limits.MODEL_GRACE_S)
        return await asyncio.gather(*(one(slots, read) for read in bodies))

    return leaping(run())[0]


QUICK = pieces(100, PIECE / LEAST_RATE)
TOOK_S = 100 * PIECE / LEAST_RATE


async def stalls(slot: limits.TransferSlot) -> None:
    """It was quick until then."""
    for _ in range(100):
        slot.passed(PIECE)
    with slot.waiting():
        await passing(1000)


SILENT, SLOW = pieces(1, 1000.0), pieces(10, 1.0)
DRIP, EMPTY = (pieces(1000, 0.01, size=size) for size in (1, 0))


@pytest.mark.parametrize(
    ("at_once", "bodies", "expected"),
    [
        # In the order they asked.
        (2, [QUICK] * 5, [0, 0, TOOK_S, TOOK_S, 2 * TOOK_S]),
        # Who is waited for loses its turn and holds nobody up.
        *(
            (2, [*[slow] * 4, QUICK, QUICK], [0, 0, *[GRACE_S] * 2, *[2 * GRACE_S] * 2])
            for slow in (SILENT, DRIP, EMPTY)
        ),
        # Who was quick keeps it no longer than allowed.
        (1, [stalls, QUICK], [0, GRACE_S]),
        # A slow one goes on beside the others and takes no turn again.
        (
            1,
            [SLOW, SLOW, QUICK, QUICK],
            [0, GRACE_S, 2 * GRACE_S, 2 * GRACE_S + TOOK_S],
        ),
    ],
    ids=["quick", "silent", "a drip", "empty pieces", "stalls", "slow"],
)
def test_nobody_is_held_up(
    at_once: int, bodies: list[Body], expected: list[float]
) -> None:
    assert began(at_once, bodies) == pytest.approx(expected, abs=0.01)


@pytest.mark.parametrize("at_once", [1, AT_ONCE])
def test_a_slot_ends_where_all_slots_at_this_rate_leave_a_servers_line_empty(
    at_once: int,
) -> None:
    """Owners on 160 Mbit/s keep four slots; the only one goes on to the next before it
    is over."""
    each, took_s = pieces(1000, PIECE / 20e6), 1000 * PIECE / 20e6
    *first, last = began(at_once, [each] * (at_once + 1))
    assert first == [0] * at_once
    assert last is not None
    assert (last == pytest.approx(took_s, abs=0.01)) == (at_once == AT_ONCE)
    assert last < took_s / 2 or at_once == AT_ONCE


@pytest.mark.parametrize(("unread", "most_s"), [(5, 0.12), (20, 0.18), (100, 0.35)])
@pytest.mark.parametrize("way", [SILENT, DRIP, stalls])
def test_a_model_waits_no_more_than_moments_behind_those_that_nobody_reads(
    way: Body, unread: int, most_s: float
) -> None:
    """Five clients may have twenty such calls; uploads begin half a second after a notice."""
    answers = began(1, [way] * unread + [QUICK] * 2, of_models=True)
    times = [at for at in answers if at is not None]
    # Nobody waits yet when the first begins; beside the last slow one, two do.
    graces = [limits.MODEL_GRACE_S / n for n in (1, *range(unread + 1, 2, -1))]
    graces = [max(grace, limits.LEAST_GRACE_S) for grace in graces]
    waited = sum(graces)
    # Also behind those who read at first: nobody gains more than it was given.
    assert times[unread] == pytest.approx(waited, abs=0.01)
    assert times[unread] <= most_s
    # Nobody waits any more: who keeps up has the slot to its end.
    assert times[unread + 1] == pytest.approx(times[unread] + TOOK_S, abs=0.01)


LINE = 12.5e6
"""Bytes a second: 100 Mbit/s."""


def rounds(
    clients: int, *, shared: bool, rate: float = LINE, before: Sequence[Body] = ()
) -> list[list[float]]:
    """When bodies of 8 MB end, in each of four rounds, over one line or each its own.

    ``before`` are read first, in a round of their own.
    """

    async def run() -> list[list[float]]:
        slots = limits.TransferSlots()
        line = asyncio.Lock()
        now = asyncio.get_running_loop().time

        async def body(slot: limits.TransferSlot) -> None:
            for _ in range(8_000_000 // PIECE):
                with slot.waiting():
                    async with line if shared else contextlib.nullcontext():
                        await passing(PIECE / rate)
                slot.passed(PIECE)

        async def one(read: Body) -> float:
            began = now()
            slot = limits.TransferSlot(slots)
            await slot.take()
            await read(slot)
            slot.close()
            return round(now() - began, 2)

        await asyncio.gather(*map(one, before))
        found = []
        for _ in range(4):
            await passing(5.0)
            found.append(await asyncio.gather(*map(one, [body] * clients)))
        return found

    return leaping(run())[0]


def test_on_a_full_line_bodies_are_whole_one_after_another_once_it_is_known() -> None:
    """100 Mbit/s for ten owners: 6.4 s for all, and the first ones long before."""
    first, *later = rounds(10, shared=True)
    assert min(first) > 4.5
    for ends in later:
        assert sorted(ends)[3] < 3
        assert max(ends) == pytest.approx(max(first), rel=0.05)


@pytest.mark.parametrize("clients", [6, 10, 40])
def test_owners_on_slow_lines_of_their_own_all_upload_at_once(clients: int) -> None:
    """In two rounds a server tries whether some alone bring as much, for a second."""
    first, *tried, later = rounds(clients, shared=False, rate=2.5e6)
    most = 8_000_000 / 2.5e6 + (clients / AT_ONCE) * GRACE_S + 0.1
    assert max(first) <= most
    assert max(map(max, tried)) <= most + 3 * limits.LOOK_S
    assert max(later) <= most


def test_bad_clients_alone_before_all_others_dont_teach_a_server_to_wait() -> None:
    """They bring little for seconds; then each holds a slot for its grace."""
    drips = [pieces(30, 0.1, size=300)] * 10
    first, *_ = rounds(10, shared=False, rate=50e6, before=drips)
    assert max(first) < 1.5


@pytest.mark.parametrize("vectors", ["bodies", "models"])
def test_who_is_as_slow_as_a_full_line_made_everybody_holds_others_up_for_a_moment(
    vectors: str,
) -> None:
    """Twenty bad clients bring just what keeps a slot, on lines of their own, first."""

    async def run() -> tuple[float, float, float]:
        slots = limits.TransferSlots()
        if vectors == "models":
            slots = limits.TransferSlots(limits.MODELS_AT_ONCE, limits.MODEL_GRACE_S)
        line = asyncio.Lock()
        now = asyncio.get_running_loop().time

        async def read(rate: float, *, shared: bool) -> float:
            began = now()
            slot = limits.TransferSlot(slots)
            await slot.take()
            begins = now() - began
            for _ in range(8_000_000 // PIECE):
                with slot.waiting():
                    async with line if shared else contextlib.nullcontext():
                        await passing(PIECE / rate)
                slot.passed(PIECE)
            slot.close()
            return begins

        for _ in range(2):
            await passing(5.0)
            await asyncio.gather(*(read(LINE, shared=True) for _ in range(10)))
        least = slots.least_rate
        waited = []
        for _ in range(2):
            await passing(5.0)
            bad = [read(1.02 * least, shared=False) for _ in range(20)]
            *_, honest = await asyncio.gather(*bad, read(LINE, shared=True))
            waited.append(honest)
        first, second = waited
        return least, first, second

    least, waited, again = leaping(run())[0]
    assert least < LEAST_RATE / (AT_ONCE if vectors == "bodies" else 1)
    assert waited < 3.0
    # Then nothing is waited for but each one's grace, as before the line was known.
    assert again < 20 / AT_ONCE * GRACE_S + 0.5


def test_whoever_waits_for_its_turn_too_long_is_told_to_come_again() -> None:
    assert began(1, [QUICK, QUICK], limit_s=TOOK_S / 2) == [0, None]
    # Its place in the order is nobody's.
    expected = pytest.approx([0, TOOK_S, None], abs=0.01)
    assert began(1, [QUICK] * 3, limit_s=TOOK_S * 1.5) == expected
