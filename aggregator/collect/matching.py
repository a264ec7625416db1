"""Match: only submissions that both servers hold, the same signed bytes, go on."""

from collections.abc import Collection, Mapping
from typing import NamedTuple

from precad.aggregator.rounds.lists import HeldList
from precad.aggregator.rounds.states import Matched, Opened
from precad.common.errors import Rejection
from precad.common.identifiers import ClientId, Digest, Role
from precad.common.share.submission import Submission

Collected = Mapping[ClientId, Submission | Rejection]


class Closed(NamedTuple):
    """A collection that is over."""

    collected: Collected
    """What this server holds of the cohort, or why not."""
    theirs: HeldList
    """The other server's list, without the early ones."""
    early: frozenset[ClientId] = frozenset()
    """Matched, and taken for validation, while collection was open."""


def describe(collected: Collected, early: Collection[ClientId] = ()) -> HeldList:
    """What this server holds, as the other server may know it: digests and reasons.

    Args:
        collected: all of the cohort.
        early: left out: both servers know of them.
    """
    rest = (collected[client] for client in sorted(collected) if client not in early)
    return HeldList(tuple(i.header.whole_digest if isinstance(i, Submission) else i for i in rest))


def rest_of(opened: Opened, early: Collection[ClientId]) -> list[ClientId]:
    """Whom the last lists are over, in their order."""
    return [client for client in opened.cohort if client not in early]


def match(
    opened: Opened,
    role: Role,
    collected: Collected,
    theirs: HeldList,
    early: frozenset[ClientId] = frozenset(),
) -> Matched:
    """Combine both servers' lists; both arrive at the same result.

    A client counts when both hold the same header, signature and certificates, byte for byte; each
    has checked them at its door. A rejection found by A stands before one found by B, and any found
    reason before mere absence. Where one alone holds a submission, and the other nothing of it, it
    is unmatched.

    Args:
        opened: the round.
        role: which server this is.
        collected: what this server holds.
        theirs: the other server's list.
        early: matched before; they are on neither list.

    Raises:
        PeerViolation: the other server's list isn't over this attempt's cohort.
    """
    other = theirs.of(rest_of(opened, early))
    submissions: dict[ClientId, Submission] = {}
    rejections: dict[ClientId, Rejection] = {}
    for client in opened.cohort:
        own = collected[client]
        if client in early and isinstance(own, Submission):
            submissions[client] = own
            continue
        entry = other[client]
        if isinstance(own, Submission) and isinstance(entry, Digest):
            if entry == own.header.whole_digest:
                submissions[client] = own
            else:
                # Whoever can read an upload's header can cause it: nothing is held against anyone.
                rejections[client] = Rejection.UNMATCHED
        else:
            own_reason = None if isinstance(own, Submission) else own
            other_reason = None if isinstance(entry, Digest) else entry
            reasons = [own_reason, other_reason]
            if role is Role.SERVER_B:
                reasons.reverse()
            found = [r for r in reasons if r is not None and r is not Rejection.ABSENT]
            one_alone = None in reasons
            absent = Rejection.UNMATCHED if one_alone else Rejection.ABSENT
            rejections[client] = found[0] if found else absent
        if isinstance(own, Submission) and client not in submissions:
            own.discard()
    return Matched(opened, submissions, rejections, early)
