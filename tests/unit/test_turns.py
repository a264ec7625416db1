"""A few bodies are read at once, and nobody waits for a client that is slow."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest
from tests.rig.leaping_loop import LeapingLoop

from precad.common.aggregator.service.turns import (
    GRACE_S,
    LEAST_RATE,
    Turn,
    Turns,
)

PIECE = 1 << 18
Body = Callable[[Turn], Awaitable[None]]


def pieces(number: int, pause_s: float, size: int = PIECE) -> Body:
    """A body of so many pieces, each of which comes after ``pause_s``."""

    async def read(turn: Turn) -> None:
        for _ in range(number):
            with turn.waiting():
                await asyncio.sleep(pause_s)
            turn.passed(size)

    return read


def began(at_once: int, bodies: Sequence[Body], limit_s: float = 1e6) -> list[float | None]:
    """When each body was begun, of those that ask in this order at once; None where it wasn't."""

    async def one(turns: Turns, read: Body) -> float | None:
        turn = turns.one()
        try:
            async with asyncio.timeout(limit_s):
                await turn.take()
            at = asyncio.get_running_loop().time()
            await read(turn)
        except TimeoutError:
            return None
        finally:
            turn.close()
            turn.close()
        return round(at, 3)

    async def run() -> list[float | None]:
        turns = Turns(at_once)
        return await asyncio.gather(*(one(turns, read) for read in bodies))

    with asyncio.Runner(loop_factory=LeapingLoop) as runner:
        return runner.run(run())


QUICK = pieces(100, PIECE / LEAST_RATE)
TOOK_S = 100 * PIECE / LEAST_RATE


def test_so_many_at_once_in_the_order_they_asked() -> None:
    expected = [round(TOOK_S * (place // 2), 3) for place in range(5)]
    assert began(2, [QUICK] * 5) == pytest.approx(expected, abs=0.002)


@pytest.mark.parametrize(
    "slow",
    [
        pytest.param(pieces(1, 1000.0), id="silent"),
        pytest.param(pieces(100_000, 0.01, size=1), id="a drip"),
        pytest.param(pieces(100_000, 0.01, size=0), id="empty pieces"),
    ],
)
def test_a_client_that_is_waited_for_loses_its_turn_and_holds_nobody_up(slow: Body) -> None:
    times = began(2, [slow, slow, slow, slow, QUICK, QUICK])
    assert times == pytest.approx([0, 0, *[GRACE_S] * 2, *[2 * GRACE_S] * 2], abs=0.01)


def test_one_that_was_quick_and_then_stalls_keeps_its_turn_no_longer_than_allowed() -> None:
    async def stalls(turn: Turn) -> None:
        for _ in range(100):
            turn.passed(PIECE)
        with turn.waiting():
            await asyncio.sleep(1000)

    assert began(1, [stalls, QUICK]) == pytest.approx([0, GRACE_S + TOOK_S], abs=0.01)


def test_a_slow_one_goes_on_beside_the_others_and_takes_no_turn_again() -> None:
    slow = pieces(10, 1.0)
    assert began(1, [slow, slow, QUICK, QUICK]) == pytest.approx(
        [0, GRACE_S, 2 * GRACE_S, 2 * GRACE_S + TOOK_S], abs=0.01
    )


def test_whoever_waits_for_its_turn_too_long_is_told_to_come_again() -> None:
    assert began(1, [QUICK, QUICK], limit_s=TOOK_S / 2) == [0, None]
    # Its place in the order is nobody's.
    assert began(1, [QUICK, QUICK, QUICK], limit_s=TOOK_S * 1.5) == pytest.approx(
        [0, TOOK_S, None], abs=0.01
    )


def test_one_that_leaves_while_it_waits_takes_no_place_along() -> None:
    async def run() -> None:
        turns = Turns(1)
        first, second, third = (turns.one() for _ in range(3))
        await first.take()
        leaving = asyncio.create_task(second.take())
        await asyncio.sleep(0)
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        second.close()
        first.close()
        await third.take()

    with asyncio.Runner(loop_factory=LeapingLoop) as runner:
        runner.run(run())
