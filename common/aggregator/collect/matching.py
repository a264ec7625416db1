"""Match: only submissions that both servers hold, with cross-checked commitments, go on."""

import hashlib
from collections.abc import Mapping
from dataclasses import replace

from precad.common.aggregator.round.messages import HeldEntry, HeldList, MissingEntry
from precad.common.aggregator.round.states import Matched, Opened
from precad.common.errors import PeerViolation, RejectedSubmission, Rejection
from precad.common.identifiers import ClientId, Role
from precad.common.share.signature import Verifier
from precad.common.share.submission import Submission

Collected = Mapping[ClientId, Submission | Rejection]


def describe(collected: Collected) -> HeldList:
    """What this server holds, as the other server may know it: commitments, signatures, reasons."""
    entries: list[HeldEntry | MissingEntry] = []
    for client, item in collected.items():
        if isinstance(item, Submission):
            entry = HeldEntry(
                client=client.name,
                own=item.commitment.value.hex(),
                other=item.other_commitment.value.hex(),
                signed=hashlib.sha256(item.signed).hexdigest(),
                signature=item.signature.value.hex(),
                certificate=item.signature.fingerprint.hex(),
            )
            entries.append(entry)
        else:
            entries.append(MissingEntry(client=client.name, reason=item))
    return HeldList(entries=tuple(entries))


def match(
    opened: Opened,
    role: Role,
    collected: Collected,
    theirs: HeldList,
    verifier: Verifier,
) -> Matched:
    """Combine both servers' lists; both arrive at the same result.

    A client counts when each server holds a share whose commitment is the one that the client
    claimed towards the other, and each has shown the client's signature over just this pair. A
    rejection found by A stands before one found by B, and any found reason before mere absence.

    Args:
        opened: the round.
        role: which server this is.
        collected: what this server holds, with signatures that it has checked.
        theirs: the other server's list.
        verifier: checks what the other server shows.

    Raises:
        PeerViolation: the other server's list isn't over this attempt's cohort.
    """
    other = theirs.by_client()
    if len(theirs.entries) != len(opened.cohort) or set(other) != set(opened.cohort):
        raise PeerViolation(f"the other server's list isn't over attempt {opened.attempt}'s cohort")
    submissions: dict[ClientId, Submission] = {}
    rejections: dict[ClientId, Rejection] = {}
    for client in opened.cohort:
        own, entry = collected[client], other[client]
        if isinstance(own, Submission) and isinstance(entry, HeldEntry):
            reason = _difference(own, entry, verifier)
            if reason is None:
                submissions[client] = own
            else:
                rejections[client] = reason
        else:
            own_reason = None if isinstance(own, Submission) else own
            other_reason = entry.reason if isinstance(entry, MissingEntry) else None
            reasons = [own_reason, other_reason]
            if role is Role.SERVER_B:
                reasons.reverse()
            found = [r for r in reasons if r is not None and r is not Rejection.ABSENT]
            rejections[client] = found[0] if found else Rejection.ABSENT
        if isinstance(own, Submission) and client not in submissions:
            own.discard()
    return Matched(opened, submissions, rejections)


def _difference(own: Submission, entry: HeldEntry, verifier: Verifier) -> Rejection | None:
    """Why the two servers' submissions of one client aren't one; None when they are.

    Each comparison gives the same on both servers: after equality of what was signed and of the
    certificate, both check the same two signatures with the same key.
    """
    crossed = (own.other_commitment.value.hex(), own.commitment.value.hex())
    if (entry.own, entry.other) != crossed:
        return Rejection.UNMATCHED
    if entry.signed != hashlib.sha256(own.signed).hexdigest():
        # The commitments cross-check, and yet the nonces differ.
        return Rejection.UNMATCHED
    if entry.certificate != own.signature.fingerprint.hex():
        return Rejection.BAD_SIGNATURE
    try:
        shown = replace(own.signature, value=bytes.fromhex(entry.signature))
        verifier.check(shown, own.signed)
    except RejectedSubmission:
        return Rejection.BAD_SIGNATURE
    return None
