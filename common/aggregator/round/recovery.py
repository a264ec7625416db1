"""After a break: what the two servers make of where each of them stands.

An attempt passes through open, released (charged, noisy share persisted) and done (both noisy
shares held, next model persisted). Nothing leaves before *both* servers have released, and a
noisy share never changes after its release. So after any crash one of four things is true:

| here | there | then |
| --- | --- | --- |
| nothing released | nothing released | start over with a new attempt |
| released | released, the same attempt | exchange the persisted shares and finish |
| done | released | send the persisted share again; the other finishes alone |
| released | nothing released | forfeit: both ledgers keep the charge, the share is never used |

A forfeit is durable first where nothing was released, and then where something was: until both
have it, the comparison comes to the same result again. The next models are compared before a
server keeps its own. Anything else means that a server's state was lost or restored from an old
copy: stop.
"""

from dataclasses import dataclass
from enum import Enum

from precad.common.aggregator.round.journal import Journal, ReleaseRecord
from precad.common.aggregator.round.messages import Position, ReleaseView
from precad.common.aggregator.round.states import Counted, Opened, Released
from precad.common.errors import PeerViolation
from precad.common.identifiers import Digest, Role
from precad.common.ring import from_bytes


class Remedy(Enum):
    """What this server does about the newest attempt before a new one may open."""

    NOTHING = "nothing"
    EXCHANGE = "exchange"
    """Both released and neither is done."""
    SEND = "send"
    """The other server waits for this one's persisted share."""
    RECEIVE = "receive"
    """This server waits for the other's persisted share."""
    FORFEIT = "forfeit"
    """One released and the other can't any more."""


@dataclass(frozen=True, slots=True)
class Recovery:
    """The remedy, and the attempt that it is about."""

    remedy: Remedy
    attempt: ReleaseView | None = None


def position_of(journal: Journal, role: Role, version: int, model: Digest) -> Position:
    """Where this server stands, from its durable state."""
    pending = journal.release_of(version)
    last = journal.release_of(version - 1) if version > 0 else None
    return Position(
        role="server-a" if role is Role.SERVER_A else "server-b",
        version=version,
        model=str(model),
        next_attempt=journal.next_attempt(),
        pending=None if pending is None else _view(pending),
        last=None if last is None else _view(last),
    )


def compare(own: Position, theirs: Position) -> Recovery:
    """What to do about the newest attempt; both servers come to matching conclusions.

    Raises:
        PeerViolation: the trainings differ in a way that no crash explains.
    """
    ahead = own.version - theirs.version
    if ahead == 0 and own.model == theirs.model:
        return _level(own, theirs)
    if ahead == 1 and _same(own.last, theirs.pending):
        return Recovery(Remedy.SEND, own.last)
    if ahead == -1 and _same(own.pending, theirs.last):
        return Recovery(Remedy.RECEIVE, own.pending)
    raise PeerViolation(
        f"the servers' trainings differ: here {own.version} rounds and model {own.model}, there "
        f"{theirs.version} rounds and model {theirs.model}; a state was lost or restored from an "
        "old copy. Restore both servers' newest state, or start a new task"
    )


def released_again(record: ReleaseRecord) -> Released:
    """The released state of an attempt, from the database."""
    # The cohort isn't needed any more: those who count and those who don't are known.
    cohort = tuple(sorted({*record.valid, *record.rejections}))
    opened = Opened(record.attempt, record.version, cohort, record.model)
    counted = Counted(opened, record.valid, record.valid_set, record.rejections)
    return Released(counted, from_bytes(record.noisy_share))


def _level(own: Position, theirs: Position) -> Recovery:
    if own.pending is None and theirs.pending is None:
        return Recovery(Remedy.NOTHING)
    if own.pending is not None and theirs.pending is not None:
        if not _same(own.pending, theirs.pending):
            raise PeerViolation(
                "the servers released different rounds, or different valid sets, from one model"
            )
        return Recovery(Remedy.EXCHANGE, own.pending)
    return Recovery(Remedy.FORFEIT, own.pending or theirs.pending)


def _same(own: ReleaseView | None, theirs: ReleaseView | None) -> bool:
    return (
        own is not None
        and theirs is not None
        and (own.attempt, own.valid_set) == (theirs.attempt, theirs.valid_set)
    )


def _view(record: ReleaseRecord) -> ReleaseView:
    return ReleaseView(
        attempt=record.attempt,
        version=record.version,
        cohort_size=record.cohort_size,
        valid_set=str(record.valid_set),
        valid=tuple(client.name for client in record.valid),
    )
