"""Match: only submissions that both servers hold, the same signed bytes, go on."""

from collections.abc import Collection, Mapping
from typing import NamedTuple

from precad.common.aggregator.round.messages import HeldEntry, HeldList, MissingEntry
from precad.common.aggregator.round.states import Matched, Opened
from precad.common.errors import PeerViolation, Rejection
from precad.common.identifiers import ClientId, Role
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
    entries: list[HeldEntry | MissingEntry] = []
    for client, item in collected.items():
        if client in early:
            continue
        if isinstance(item, Submission):
            signed = str(item.header.whole_digest)
            entries.append(HeldEntry(client=client.name, signed=signed))
        else:
            entries.append(MissingEntry(client=client.name, reason=item))
    return HeldList(entries=tuple(entries))


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
    other = theirs.by_client()
    expected = set(opened.cohort) - early
    if len(theirs.entries) != len(expected) or set(other) != expected:
        raise PeerViolation(f"the other server's list isn't over attempt {opened.attempt}'s cohort")
    submissions: dict[ClientId, Submission] = {}
    rejections: dict[ClientId, Rejection] = {}
    for client in opened.cohort:
        own = collected[client]
        if client in early and isinstance(own, Submission):
            submissions[client] = own
            continue
        entry = other[client]
        if isinstance(own, Submission) and isinstance(entry, HeldEntry):
            if entry.signed == str(own.header.whole_digest):
                submissions[client] = own
            else:
                # Whoever can read an upload's header can cause it: nothing is held against anyone.
                rejections[client] = Rejection.UNMATCHED
        else:
            own_reason = None if isinstance(own, Submission) else own
            other_reason = entry.reason if isinstance(entry, MissingEntry) else None
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
