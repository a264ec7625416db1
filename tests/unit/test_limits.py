"""One caller takes no more than its part, and an upload that dawdles is cut off."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence

import pytest

from precad.common.aggregator.service.limits import Call, Limits, OpenCalls, in_time
from precad.common.errors import RejectedSubmission, Rejection, TooManyCalls
from precad.common.identity import Principal

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


async def slowly(pauses: Sequence[float]) -> AsyncIterator[int]:
    for number, pause in enumerate(pauses):
        await asyncio.sleep(pause)
        yield number


def collect(pauses: Sequence[float], *, idle_s: float, total_s: float) -> list[int]:
    got: list[int] = []

    async def run() -> None:
        async for piece in in_time(slowly(pauses), idle_s=idle_s, total_s=total_s):
            got.append(piece)  # noqa: PERF401 -- kept when the next one fails

    try:
        asyncio.run(run())
    except RejectedSubmission as rejected:
        return [*got, -1] if rejected.reason is Rejection.TRUNCATED else [-2]
    return got


def test_pieces_in_time_pass() -> None:
    assert collect([0, 0, 0], idle_s=60, total_s=60) == [0, 1, 2]
    assert collect([], idle_s=60, total_s=60) == []


def test_one_long_pause_ends_it() -> None:
    assert collect([0, 3600, 0], idle_s=0.05, total_s=60) == [0, -1]


def test_a_drip_ends_too() -> None:
    got = collect([0.02] * 10_000, idle_s=60, total_s=0.2)
    assert got[-1] == -1
    assert len(got) < 100


def test_no_first_piece_ends_it() -> None:
    assert collect([3600], idle_s=0.05, total_s=60) == [-1]
