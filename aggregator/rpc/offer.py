"""How long a finished model stays on offer: until those it belongs to have come for it."""

import asyncio
import contextlib
import math

from precad.aggregator.training.session import Session
from precad.common.identifiers import ClientId

LATE = 10.0
"""How many times ``linger`` is given to owners that weren't heard from yet."""
LOOK_S = 1.0


def leaves_at(done: float, last_heard: float | None, linger_s: float) -> float:
    """When a server with a finished model may go.

    A server that comes back after the end would be gone before owners who start as slowly as it
    did have asked, and they would wait for it in vain.

    Args:
        done: when the training was over, or this server back with a finished one.
        last_heard: when the last owner was first heard from; None while one wasn't.
        linger_s: how long the model stays on offer once everybody knows that this server is there.
    """
    if last_heard is None:
        return done + LATE * linger_s
    return max(done, last_heard) + linger_s


async def stay(session: Session, linger_s: float, stop: asyncio.Event) -> None:
    """Until it is time, or ``stop`` is set."""
    done, roster = session.clock.now(), list(session.register.roster())
    while (left := _left(session, done, linger_s, roster)) > 0 and not stop.is_set():
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), None if math.isinf(left) else min(left, LOOK_S))


def _left(session: Session, done: float, linger_s: float, roster: list[ClientId]) -> float:
    last = session.presence.last_heard(roster)
    return leaves_at(done, last, linger_s) - session.clock.now()
