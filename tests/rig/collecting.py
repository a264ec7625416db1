"""Waiting for an inbox as servers do: by looking whether collection is over."""

from collections.abc import Callable, Collection

from precad.aggregator.collect import Inbox
from precad.common.clock import CLOCK, Clock
from precad.common.identifiers import ClientId

LOOK_S = 0.02


def wait_over(
    inbox: Inbox,
    clients: Collection[ClientId],
    deadline: float,
    gone: Callable[[ClientId], bool] = lambda _client: False,
    clock: Clock = CLOCK,
) -> int:
    """Until nobody is awaited any more, or ``deadline``; says how often it looked."""
    looks = 1
    while not inbox.over(clients, gone) and clock.now() < deadline:
        inbox.wait_arrival(min(LOOK_S, deadline - clock.now()))
        inbox.arrivals()
        looks += 1
    return looks
