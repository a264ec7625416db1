"""Match: only submissions that both servers hold, with cross-checked commitments, go on."""

from collections.abc import Mapping

from precad.common.collect import Held
from precad.common.errors import PeerViolation, Rejection
from precad.common.identifiers import ClientId, Role
from precad.common.round.messages import HeldEntry, HeldList
from precad.common.round.states import Matched, MatchedSubmission, Opened

Collected = Mapping[ClientId, Held | Rejection]


def describe(collected: Collected) -> HeldList:
    """What this server holds, as the other server may know it: commitments and reasons."""
    entries = []
    for client, item in collected.items():
        if isinstance(item, Held):
            entry = HeldEntry(
                client=client.name,
                own=item.commitment.value.hex(),
                other=item.other_commitment.value.hex(),
            )
        else:
            entry = HeldEntry(client=client.name, reason=item)
        entries.append(entry)
    return HeldList(entries=tuple(entries))


def match(opened: Opened, role: Role, collected: Collected, theirs: HeldList) -> Matched:
    """Combine both servers' lists; both arrive at the same result.

    A client counts when each server holds a share whose commitment is the one that the client
    claimed towards the other. A rejection found by A stands before one found by B, and any
    found reason before mere absence.

    Raises:
        PeerViolation: the other server's list isn't over this round's cohort.
    """
    other = theirs.by_client()
    if len(theirs.entries) != len(opened.cohort) or set(other) != set(opened.cohort):
        raise PeerViolation(f"the other server's list isn't over round {opened.number}'s cohort")
    submissions: dict[ClientId, MatchedSubmission] = {}
    rejections: dict[ClientId, Rejection] = {}
    for client in opened.cohort:
        own, entry = collected[client], other[client]
        if isinstance(own, Held) and entry.own is not None and entry.other is not None:
            mine = own.commitment.value
            theirs_value = bytes.fromhex(entry.own)
            crossed = entry.other == mine.hex() and own.other_commitment.value == theirs_value
            if crossed:
                a, b = (mine, theirs_value) if role is Role.SERVER_A else (theirs_value, mine)
                submissions[client] = MatchedSubmission(own, a, b)
            else:
                rejections[client] = Rejection.UNMATCHED
        else:
            own_reason = None if isinstance(own, Held) else own
            reasons = [own_reason, entry.reason]
            if role is Role.SERVER_B:
                reasons.reverse()
            found = [r for r in reasons if r is not None and r is not Rejection.ABSENT]
            rejections[client] = found[0] if found else Rejection.ABSENT
        if isinstance(own, Held) and client not in submissions:
            own.discard()
    return Matched(opened, submissions, rejections)
