"""How long enrolment is open: the task's deadline, or the operators' date; or until enough came."""

from dataclasses import dataclass
from datetime import UTC, datetime

from precad.common.errors import Misconfiguration
from precad.common.task import Task

LONGEST_S = 366 * 86_400.0
"""Certificates end within a year, and waits have bounds."""


@dataclass(frozen=True, slots=True)
class Window:
    """From a server's start."""

    seconds: float
    enough: int
    """With so many owners it closes at once."""


def window_of(
    task: Task,
    until: datetime | None = None,
    quorum: int | None = None,
    now: datetime | None = None,
) -> Window:
    """What the task and a server's settings say.

    Args:
        task: its deadline, its most and least owners.
        until: in place of the deadline, which counts from a start; a date outlasts restarts.
        quorum: in place of the most owners.
        now: instead of the clock's time.

    Raises:
        Misconfiguration: a quorum that the task doesn't take, or a date without a time zone
            or beyond a year.
    """
    most, least = task.enrolment.clients, task.enrolment.min_clients
    if quorum is not None and not least <= quorum <= most:
        raise Misconfiguration("enrol_quorum", quorum, f"the task takes {least} to {most} owners")
    seconds = task.deadlines.enrol
    if until is not None:
        if until.tzinfo is None:
            raise Misconfiguration(
                "enrol_until", until.isoformat(), "say its time zone, as in 2027-01-31T18:00:00Z"
            )
        seconds = max(0.0, (until - (now or datetime.now(UTC))).total_seconds())
        if seconds > LONGEST_S:
            raise Misconfiguration("enrol_until", until.isoformat(), "give a date within a year")
    return Window(seconds, most if quorum is None else quorum)
