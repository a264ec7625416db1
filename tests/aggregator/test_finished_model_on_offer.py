"""How long a server with a finished model waits for those it belongs to."""

import math

from precad.aggregator.rpc.process import LATE, leaves_at
from precad.aggregator.training.connected_clients import ConnectedClients
from precad.common.clock import SystemClock
from precad.common.identifiers import ClientId

ONE, OTHER = ClientId("one"), ClientId("other")


class Hands(SystemClock):
    """A clock that is set by hand."""

    time = 0.0

    def now(self) -> float:
        return self.time


def test_a_model_stays_until_the_last_owner_has_had_its_time() -> None:
    clock = Hands()
    clients = ConnectedClients(1.0, clock)
    both = [ONE, OTHER]
    assert clients.last_heard(both) is None
    clock.time = 5.0
    clients.heard_from(ONE)
    # One that was never heard from is waited for longer, but not without an end.
    assert leaves_at(2.0, clients.last_heard(both), 30.0) == 2.0 + LATE * 30.0
    clock.time = 200.0
    clients.heard_from(OTHER)
    assert leaves_at(2.0, clients.last_heard(both), 30.0) == 230.0
    # Nobody keeps a server up by asking again and again.
    clock.time = 225.0
    clients.heard_from(ONE)
    assert leaves_at(2.0, clients.last_heard(both), 30.0) == 230.0


def test_after_a_training_that_all_took_part_in_the_model_stays_for_the_stated_time() -> None:
    clock = Hands()
    clients = ConnectedClients(1.0, clock)
    clients.heard_from(ONE)
    assert leaves_at(1000.0, clients.last_heard([ONE]), 30.0) == 1030.0
    assert leaves_at(1000.0, clients.last_heard([ONE]), 0.0) == 1000.0
    assert leaves_at(1000.0, clients.last_heard([ONE]), math.inf) == math.inf
    assert leaves_at(1000.0, None, 0.0) == 1000.0
