"""Taking part through stops that are longer than the task's outage: an owner is started once.

A training that servers stop for a night or a weekend goes on where it stood. Whoever waits for
them does what a process that is started again does: state, account and the open version's update
come from the owner's disk, so that nothing is sampled or counted twice.
"""

import logging
from collections.abc import Callable

from precad.client.participant import Participation
from precad.client.progress import RoundInfo
from precad.client.reporter import OnRound
from precad.common.clock import CLOCK, Clock
from precad.common.errors import Misidentified, PeerUnavailable
from precad.common.retry import Patience, Waits

log = logging.getLogger("precad")

WAITS = Waits(5.0, 60.0, spread=True)
"""Between tries; a try itself lasts as long as the task's outage."""


def outlast(
    run: Callable[[OnRound], Participation],
    wait_s: float,
    on_round: OnRound | None = None,
    clock: Clock = CLOCK,
) -> Participation:
    """Run until the training is over, however often the servers are away in between.

    Args:
        run: takes part once, from the state on disk; is given what to tell each round.
        wait_s: how long they may be away, from the first try that failed; each round that is
            seen renews it.
        on_round: told each round too.
        clock: passes the time.

    Raises:
        PeerUnavailable: they stayed away for longer.
        Misidentified: somebody else answers at an address; waiting won't mend it.
        PrecadError: anything else that ``run`` raises.
    """
    patience = Patience(wait_s, WAITS, clock)

    def seen(info: RoundInfo) -> None:
        patience.renew()
        if on_round is not None:
            on_round(info)

    while True:
        try:
            return run(seen)
        except Misidentified:
            raise
        except PeerUnavailable as error:
            hours = max(0.0, patience.remaining()) / 3600
            log.warning("%s; asking again for %.1f hours", error, hours)
            patience.wait(error)
