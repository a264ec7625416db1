"""Agree with the other server on the set secret, the nonces and the roster.

It is done on each link before any attempt; the roster is frozen before version 0.
"""

import secrets

from precad.aggregator import EnrolmentEntry, PeerLink, ServerSignatures, SignedMessage
from precad.aggregator import server_messages as messages
from precad.aggregator.enrol import Register
from precad.common import (
    KEY_BYTES,
    ClientId,
    Enrolment,
    Misconfiguration,
    PeerViolation,
    Role,
    Roster,
    Secret,
    Task,
    derive,
    listed,
    log,
)
from precad.common.identity import SignedKind


def agree_set_secret(link: PeerLink, role: Role, task: Task) -> Secret:
    """Return the secret that salts valid sets' digests, fresh for every link.

    Both servers alone know it. Raises as ``agree_nonces``.
    """
    random_of_both = Secret(_random_of_both(link, role, "set-secret"))
    return derive(random_of_both, "set-secret", task.digest.value)


def agree_nonces(link: PeerLink, role: Role) -> bytes:
    """Return A's and B's nonce for what the dealer deals over this link, 64 bytes.

    Each server draws 32 random bytes. Raises PeerUnavailable; PeerViolation: the other
    server sends another number of bytes.
    """
    return _random_of_both(link, role, "nonce")


def _random_of_both(link: PeerLink, role: Role, step: str) -> bytes:
    """Exchange 32 fresh bytes at protocol step ``step``; return A's, then B's."""
    own = secrets.token_bytes(KEY_BYTES)
    theirs = link.exchange(step, own)
    if len(theirs) != KEY_BYTES:
        raise PeerViolation(f"{step} has {len(theirs)} bytes, must have {KEY_BYTES}")
    return own + theirs if role is Role.SERVER_A else theirs + own


def propose_roster(
    link: PeerLink,
    register: Register,
    signatures: ServerSignatures,
    least: int,
) -> Roster | None:
    """Play A's part: propose A's enrolments, and freeze those that B holds alike.

    A client that enrolled at one server only, or with other claims at the other, is
    left out: that is its own doing, and costs nobody else the training. A frozen roster
    is final: a server that lost it takes it back, on its own signature. Return the
    frozen roster, or None where a server waits for more clients: A waits while fewer
    than ``least`` are held alike. ``least`` is 0 where A's enrolment is over.

    Raises PeerUnavailable; PeerViolation: B refuses, or answers with somebody who
    wasn't proposed; Misconfiguration: the servers hold too few clients alike.
    """
    own = register.roster()
    frozen = register.frozen
    proposal = messages.RosterProposal(
        entries=_entries(own),
        signed=register.kept.roster_seal(),
        least=least,
    )
    link.send("roster", proposal.to_bytes())
    answer = messages.RosterAnswer.from_bytes(link.receive("roster"))
    if answer.refusal:
        raise PeerViolation(f"server B refused the roster: {answer.refusal}")
    if answer.waits and not frozen:
        return None
    roster = _roster(answer.entries)
    if not frozen and _is_own(signatures, answer.signed, roster):
        log.warning(
            "this server had lost the frozen roster: it has it back from server B"
        )
        register.freeze(roster, taken_back=True)
    else:
        if any(own.get(client) != claim for client, claim in roster.items()):
            raise PeerViolation(
                "server B's roster isn't made of the clients that A proposed"
            )
        _freeze(register, proposed=own, roster=roster)
    _exchange_signatures(link, register, signatures, roster)
    return roster


def accept_roster(
    link: PeerLink,
    register: Register,
    signatures: ServerSignatures,
    timeout_s: float,
    least: int,
) -> bool:
    """Play B's part: freeze the clients whom A proposes and B holds alike, and say so.

    Return whether the roster is frozen. With fewer than ``least`` held alike B waits,
    and A proposes again. ``least`` is 0 where B's enrolment is over. A client that
    enrolled at one server alone doesn't count for it: else a few such clients would
    close enrolment before the others have come. The roster is frozen durably before A
    hears of it: what A has frozen is frozen here too, whatever crashes in between. A's
    proposal may take ``timeout_s``.

    Raises PeerUnavailable; PeerViolation: A names a client twice, or the servers froze
    different rosters; Misconfiguration: the servers hold too few clients alike;
    StorageFailure: the roster can't be kept. A hears nothing of that, and tries again.
    """
    proposal = messages.RosterProposal.from_bytes(
        link.receive("roster", timeout_s=timeout_s)
    )
    try:
        proposed = _roster(proposal.entries)
        own = register.roster()
        signed = register.kept.roster_seal()
        if register.frozen:
            # Where A lacks somebody of it, A has lost that claim, or has frozen another
            # roster.
            roster = own
        elif _is_own(signatures, proposal.signed, proposed):
            log.warning(
                "this server had lost the frozen roster: it has it back from server A"
            )
            roster = proposed
            register.freeze(roster, taken_back=True)
        else:
            # A claim that the task doesn't allow, however it came here, costs that
            # client alone.
            held_alike = [
                claim for claim in proposed.values() if own.get(claim.client) == claim
            ]
            roster = Roster(
                {
                    claim.client: claim
                    for claim in held_alike
                    if _fits(claim, register.task)
                }
            )
            if len(roster) < max(least, proposal.least):
                link.send("roster", messages.RosterAnswer(waits=True).to_bytes())
                return False
            _freeze(register, proposed=proposed, roster=roster)
    except (PeerViolation, Misconfiguration) as error:
        # Only what the two servers disagree about is answered, and stops A. What fails
        # here alone, such as a full disk, ends the link without an answer: A tries
        # again.
        link.send("roster", messages.RosterAnswer(refusal=str(error)).to_bytes())
        raise
    answer = messages.RosterAnswer(entries=_entries(roster), signed=signed)
    link.send("roster", answer.to_bytes())
    _exchange_signatures(link, register, signatures, roster)
    return True


def _exchange_signatures(
    link: PeerLink,
    register: Register,
    signatures: ServerSignatures,
    roster: Roster,
) -> None:
    """Sign the frozen roster, and keep the other server's signature over it.

    Raises PeerUnavailable; PeerViolation: the servers froze different rosters.
    """
    own = messages.RosterBody(task=signatures.task.value, digest=roster.digest().value)
    signed, theirs = signatures.exchange(link, "roster-seal", SignedKind.ROSTER, own)
    if theirs != own:
        raise PeerViolation("the servers froze different rosters; start a new task")
    if register.kept.roster_seal() is None:
        register.kept.keep_roster_seal(signed)


def _is_own(
    signatures: ServerSignatures, signed: SignedMessage | None, roster: Roster
) -> bool:
    """Return whether this server itself has signed exactly this roster.

    Raises PeerViolation: what the other server shows isn't this server's signature.
    """
    if signed is None:
        return False
    signed_here = signatures.check(
        signatures.role, SignedKind.ROSTER, signed, messages.RosterBody
    )
    return signed_here == messages.RosterBody(
        task=signatures.task.value, digest=roster.digest().value
    )


def _entries(roster: Roster) -> tuple[EnrolmentEntry, ...]:
    """Return a roster as the servers send it."""
    return tuple(
        EnrolmentEntry(
            client=claim.client.name,
            records=claim.records,
            record_rate=claim.record_rate,
        )
        for claim in roster.values()
    )


def _roster(entries: tuple[EnrolmentEntry, ...]) -> Roster:
    """Return the roster that the other server sent.

    Raises PeerViolation: it names a client twice.
    """
    claims = [
        Enrolment(ClientId(entry.client), entry.records, entry.record_rate)
        for entry in entries
    ]
    roster = Roster({claim.client: claim for claim in claims})
    if len(roster) != len(claims):
        raise PeerViolation("the roster names a client twice")
    return roster


def _fits(claim: Enrolment, task: Task) -> bool:
    """Return whether the task allows a claim; log why it doesn't."""
    try:
        claim.check(task)
    except Misconfiguration as error:
        log.warning("client %s is left out: %s", claim.client, error)
        return False
    return True


def _freeze(
    register: Register,
    *,
    proposed: Roster,
    roster: Roster,
) -> None:
    """Freeze the roster of clients held alike, and log who of A's proposal isn't.

    Raises Misconfiguration: they are too few; StorageFailure: the database fails.
    """
    left_out = sorted(client.name for client in proposed if client not in roster)
    if left_out:
        log.warning(
            "%d clients did not enrol at both servers with the same claims, within the"
            " task's caps, and are left out%s",
            len(left_out),
            listed(left_out),
        )
    min_clients = register.task.enrolment.min_clients
    if len(roster) < min_clients:
        raise Misconfiguration(
            "enrolment.min_clients",
            min_clients,
            f"only {len(roster)} clients had enrolled at the deadline; start more of"
            " them, or raise deadlines.enrol",
        )
    register.freeze(roster)
