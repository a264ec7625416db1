"""After a break: what the two servers make of where each of them stands.

An attempt is prepared (charged, noisy share persisted), countersigned (this server has signed that
it is prepared too), sent (it holds the other's countersignature, and the share may have left) and
done. A share leaves only after both are prepared, and never changes. So:

| here | there | then |
| --- | --- | --- |
| nothing prepared | nothing prepared | a new attempt |
| prepared | prepared, the same attempt | go on with the release where it stopped |
| prepared, nothing countersigned | nothing prepared | void: both ledgers say so, it costs nothing |
| countersigned or sent | nothing prepared | the other lost its state: both operators decide |
| done | not done | the other takes the model, whose digest it has signed itself |

The same comparison is made again after each remedy, until nothing is left to do. It is the plan of
`release_model` (tests/model), which a search has gone through with cuts, crashes and replaced
databases.
"""

from dataclasses import dataclass
from enum import Enum

from precad.aggregator.rounds.server_messages import Position, PreparedView
from precad.common.errors import PeerViolation


class Remedy(Enum):
    """What this server does about the newest attempt before a new one may open."""

    NOTHING = "nothing"
    RELEASE = "release"
    """Both are prepared and neither is done."""
    VOID = "void"
    """This server is prepared alone, and has countersigned nothing."""
    CONFIRM_VOID = "confirm-void"
    """The other is."""
    LOST = "lost"
    """This server has countersigned or sent, and the other isn't prepared."""
    LEARN_LOST = "learn-lost"
    """The other has, and this one isn't prepared."""
    SERVE = "serve"
    """The other server lacks this one's model."""
    CATCH_UP = "catch-up"
    """This server lacks the other's model."""


@dataclass(frozen=True, slots=True)
class Recovery:
    """The remedy, and the attempt that it is about."""

    remedy: Remedy
    attempt: PreparedView | None = None


def compare(own: Position, theirs: Position) -> Recovery:
    """What to do about the newest attempt; both servers come to matching conclusions.

    Raises:
        PeerViolation: the trainings differ in a way that nothing mends.
    """
    if own.version != theirs.version:
        return Recovery(Remedy.SERVE if own.version > theirs.version else Remedy.CATCH_UP)
    if own.model != theirs.model:
        raise PeerViolation(
            f"the servers' trainings differ: after {own.version} rounds model {own.model} here, "
            f"{theirs.model} there. Restore both servers' newest state, or start a new task"
        )
    if own.prepared is not None and theirs.prepared is not None:
        if _what(own.prepared) != _what(theirs.prepared):
            raise PeerViolation(
                "the servers prepared different attempts, or different valid sets, of one version"
            )
        return Recovery(Remedy.RELEASE, own.prepared)
    if own.prepared is not None:
        return Recovery(Remedy.LOST if own.prepared.bound else Remedy.VOID, own.prepared)
    if theirs.prepared is not None:
        bound = theirs.prepared.bound
        return Recovery(Remedy.LEARN_LOST if bound else Remedy.CONFIRM_VOID, theirs.prepared)
    return Recovery(Remedy.NOTHING)


def _what(prepared: PreparedView) -> tuple[int, str]:
    return prepared.attempt, prepared.valid_set
