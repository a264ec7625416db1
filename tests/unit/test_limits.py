"""One caller takes no more than its part, and an upload that dawdles is cut off."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence

import pytest
from tests.rig.clock import LeapingClock
from tests.rig.leaping_loop import LeapingLoop

from precad.common.aggregator.service.limits import Call, Limits, OpenCalls, in_time
from precad.common.aggregator.service.turns import Turns
from precad.common.errors import RejectedSubmission, Rejection, TooManyCalls
from precad.common.identity.principal import Principal

ONE, TWO = Principal.client("ward-1"), Principal.client("ward-2")


@pytest.mark.parametrize(("call", "most"), [(Call.WATCH, 2), (Call.SUBMIT, 2), (Call.FETCH, 4)])
def test_a_caller_has_so_many_and_no_more(call: Call, most: int) -> None:
    calls = OpenCalls(Limits())
    with contextlib.ExitStack() as stack:
        for _ in range(most):
            stack.enter_context(calls.one_more(ONE, call))
        with pytest.raises(TooManyCalls, match=rf"ward-1.*{most}.*{call.value}"):
            stack.enter_context(calls.one_more(ONE, call))
        # Neither another caller nor another kind of call is touched.
        stack.enter_context(calls.one_more(TWO, call))
        for other in set(Call) - {call}:
            stack.enter_context(calls.one_more(ONE, other))
    assert len(calls) == 0


def test_a_call_that_fails_gives_its_place_back() -> None:
    calls = OpenCalls(Limits(submissions=1))
    for _ in range(3):
        with pytest.raises(ZeroDivisionError), calls.one_more(ONE, Call.SUBMIT):
            raise ZeroDivisionError
    assert len(calls) == 0


def test_a_refused_call_takes_no_place() -> None:
    calls = OpenCalls(Limits(submissions=1))
    with calls.one_more(ONE, Call.SUBMIT):
        for _ in range(3):
            with pytest.raises(TooManyCalls), calls.one_more(ONE, Call.SUBMIT):
                pass
    with calls.one_more(ONE, Call.SUBMIT):
        pass


def test_a_caller_that_asks_without_end_is_slowed_down_and_nobody_else_is() -> None:
    clock = LeapingClock()
    calls = OpenCalls(Limits(burst=10, per_s=2.0), clock)

    def taken(caller: Principal, most: int = 100) -> int:
        for number in range(most):
            try:
                calls.begin(caller)
            except TooManyCalls:
                return number
        return most

    assert taken(ONE) == 10
    assert taken(TWO, 3) == 3
    clock.sleep(2.5)
    assert taken(ONE) == 5
    clock.sleep(1000)
    assert taken(ONE) == 10


async def slowly(pauses: Sequence[float]) -> AsyncIterator[int]:
    for number, pause in enumerate(pauses):
        await asyncio.sleep(pause)
        yield number


def collect(
    pauses: Sequence[float], *, idle_s: float, total_s: float
) -> tuple[int, float, Rejection | None]:
    """How many pieces came, after how many seconds it ended, and why, if before the last."""
    got = 0

    async def run() -> None:
        nonlocal got
        async for _ in in_time(slowly(pauses), idle_s=idle_s, total_s=total_s):
            got += 1

    reason = None
    with asyncio.Runner(loop_factory=LeapingLoop) as runner:
        try:
            runner.run(run())
        except RejectedSubmission as rejected:
            reason = rejected.reason
        ended = runner.get_loop().time()
    return got, round(ended, 3), reason


def test_pieces_in_time_pass() -> None:
    assert collect([0, 0, 0], idle_s=60, total_s=60) == (3, 0, None)
    assert collect([], idle_s=60, total_s=60) == (0, 0, None)
    assert collect([50] * 10, idle_s=60, total_s=501) == (10, 500, None)


def test_one_long_pause_ends_it() -> None:
    assert collect([0, 3600, 0], idle_s=30, total_s=1000) == (1, 30, Rejection.TRUNCATED)


def test_a_drip_ends_too() -> None:
    assert collect([26] * 100, idle_s=30, total_s=100) == (3, 100, Rejection.TRUNCATED)


def test_no_first_piece_ends_it() -> None:
    assert collect([3600], idle_s=30, total_s=60) == (0, 30, Rejection.TRUNCATED)


def test_the_wait_for_a_turn_is_not_the_clients() -> None:
    async def run() -> int:
        turns, got = Turns(1), 0
        first, second = turns.one(), turns.one()
        await first.take()
        asyncio.get_running_loop().call_later(900, first.close)
        async for _ in in_time(slowly([20, 20, 20]), idle_s=30, total_s=1000, turn=second):
            got += 1
            if got == 1:
                await second.take()
        return got

    with asyncio.Runner(loop_factory=LeapingLoop) as runner:
        assert runner.run(run()) == 3


@pytest.mark.parametrize("pauses", [[50, 3600], [50, 40, 3600]])
def test_the_last_wait_ends_with_the_total(pauses: list[float]) -> None:
    """A pause that begins shortly before the end doesn't add its own length to it."""
    ended = collect(pauses, idle_s=60, total_s=100)
    assert ended == (len(pauses) - 1, 100, Rejection.TRUNCATED)
