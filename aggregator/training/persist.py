"""How long a server tries to get back to the other one and to the dealer."""

import logging
from collections.abc import Callable

from precad.aggregator.rounds.start_attempt import NeedsOperators
from precad.aggregator.training.session import Session
from precad.common.clock import Retries, RetryPolicy
from precad.common.errors import PeerUnavailable

log = logging.getLogger("precad")

WAITS = RetryPolicy(0.2, 3.0)
"""Between attempts to get back to the other server or the dealer."""
_OPERATORS_S = 2.0
"""Between looks at whether the operators have given their word."""
_TOLD = 5
"""Different failures of one outage that its error names: gRPC has two or three wordings of a dealer
that is gone, and as many of a server."""


def persist(session: Session, attempt: Callable[[], None]) -> None:
    """Try until the training is over; a lost link or dealer is tried again for ``outage``.

    The outage counts from the first failure after both were last heard from: a long round or a
    long enrolment isn't one.

    Args:
        session: this server.
        attempt: connects, recovers and plays rounds; returns when training is over.

    Raises:
        PeerUnavailable: nothing worked for ``deadlines.outage`` seconds; names their last failures.
        PrecadError: anything else that can't be mended by trying again.
    """
    patience = Retries(session.task.deadlines.outage, WAITS, session.clock)
    progress = session.progress
    failures: list[str] = []
    while True:
        contacts = progress.contacts
        try:
            attempt()
        except PeerUnavailable as error:
            if progress.contacts > contacts:
                patience.renew()
                failures.clear()
            told = _outage(failures, str(error))
            progress.error = f"{told}; trying again"
            if progress.lost_at is None and progress.contacts:
                progress.lost_at = session.clock.now()
            log.warning("%s; trying again for %.0f s", error, max(0.0, patience.remaining()))
            patience.wait(told)
        except NeedsOperators as error:
            # No deadline: who decides is a person.
            if progress.error != str(error):
                log.warning("%s", error)
            progress.error, progress.needs = str(error), error
            patience.renew()
            failures.clear()
            session.clock.sleep(_OPERATORS_S)
            progress.needs = None
        else:
            progress.error = ""
            return


def _outage(failures: list[str], newest: str) -> PeerUnavailable:
    """The error of an outage: its newest failure, and the last different ones before.

    While the dealer is away the servers lose each other too, between tries that never quite meet:
    the newest failure alone would send an operator to the wrong machine.

    Args:
        failures: different ones of this outage, newest first; takes up ``newest``.
        newest: what failed just now.
    """
    failures[:] = [newest, *(failure for failure in failures if failure != newest)][:_TOLD]
    if len(failures) == 1:
        return PeerUnavailable(newest)
    return PeerUnavailable(f"{newest} (earlier in this outage: {'; '.join(failures[1:])})")
