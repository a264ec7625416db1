"""Before version 0: the servers agree on the set secret, nonces and the roster."""

import logging
import secrets

from precad.aggregator import server_messages as messages
from precad.aggregator.enrol.register import Register
from precad.aggregator.peer_link import PeerLink
from precad.aggregator.server_messages import (
    EnrolmentEntry,
    ServerSignatures,
    SignedMessage,
)
from precad.common.errors import Misconfiguration, PeerViolation
from precad.common.identifiers import ClientId, Role, Secret
from precad.common.identity.signatures import SignedKind
from precad.common.ring import KEY_BYTES, derive
from precad.common.roster import Enrolment, Roster
from precad.common.task import Task

log = logging.getLogger("precad")

_SHOWN = 10  # names in one line of the log


def agree_set_secret(link: PeerLink, role: Role, task: Task) -> Secret:
    """What salts valid sets' digests, known to both servers alone; fresh for every link."""
    random = Secret(_random_of_both(link, role, "set-secret"))
    return derive(random, "set-secret", task.digest.value)


def agree_nonces(link: PeerLink, role: Role) -> bytes:
    """A's and B's, 32 random bytes each, for what the dealer deals over this link."""
    return _random_of_both(link, role, "nonce")


def _random_of_both(link: PeerLink, role: Role, step: str) -> bytes:
    own = secrets.token_bytes(KEY_BYTES)
    theirs = link.exchange(step, own)
    if len(theirs) != KEY_BYTES:
        raise PeerViolation(f"{step} has {len(theirs)} bytes, must have {KEY_BYTES}")
    return own + theirs if role is Role.SERVER_A else theirs + own


def propose_roster(
    link: PeerLink,
    register: Register,
    task: Task,
    signatures: ServerSignatures,
    least: int = 0,
) -> Roster | None:
    """A's part: its enrolments; the frozen roster is those of them that B holds alike.

    A client that enrolled at one server only, or with other claims at the other, is
    left out: that is its own doing, and costs nobody else the training. A frozen roster
    is final: a server that lost it takes it back, on its own signature. Returns None
    where a server waits for more clients: A does with fewer than ``least`` held alike,
    0 where its enrolment is over.

    Raises PeerViolation: B refuses, or answers with somebody who wasn't proposed;
    Misconfiguration: the servers hold too few clients alike.
    """
    own = register.roster()
    frozen = register.frozen
    signed = register.kept.roster_seal()
    proposal = messages.RosterProposal(
        entries=_entries(own),
        signed=signed,
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
        _freeze(
            register,
            proposed=own,
            roster=roster,
            task=task,
        )
    _exchange_signatures(link, register, signatures, roster)
    return roster


def accept_roster(
    link: PeerLink,
    register: Register,
    task: Task,
    signatures: ServerSignatures,
    timeout_s: float,
    least: int = 0,
) -> bool:
    """B's part: freeze whom A proposes and B holds alike, then say who; return whether it did.

    With fewer than ``least`` held alike, 0 where its enrolment is over, B waits and A
    proposes again. Who enrolled at one server alone is none of those: else a few such
    clients would close enrolment before the others have come. The roster is frozen
    durably before A hears of it: what A has frozen is frozen here too, whatever crashes
    in between. A may take ``timeout_s``.

    Raises PeerViolation: A names a client twice, or no longer somebody of the frozen
    roster; Misconfiguration: the servers hold too few clients alike; StorageFailure:
    the roster can't be kept. A hears nothing then, and tries again.
    """
    proposal = messages.RosterProposal.from_bytes(
        link.receive("roster", timeout_s=timeout_s)
    )
    try:
        proposed = _roster(proposal.entries)
        known = register.roster()
        signed = register.kept.roster_seal()
        if register.frozen:
            # Who of it is missing at A is missing by A's loss, or A's is another
            # roster.
            roster = known
        elif _is_own(signatures, proposal.signed, proposed):
            log.warning(
                "this server had lost the frozen roster: it has it back from server A"
            )
            roster = proposed
            register.freeze(roster, taken_back=True)
        else:
            # A claim that the task doesn't allow, however it got here, costs that
            # client alone.
            held = [
                claim for claim in proposed.values() if known.get(claim.client) == claim
            ]
            roster = Roster(
                {claim.client: claim for claim in held if _fits(claim, task)}
            )
            if len(roster) < max(least, proposal.least):
                link.send("roster", messages.RosterAnswer(waits=True).to_bytes())
                return False
            _freeze(
                register,
                proposed=proposed,
                roster=roster,
                task=task,
            )
    except (PeerViolation, Misconfiguration) as error:
        # Only what the two disagree about is answered, and stops A. What fails here
        # alone, as a full disk, ends the link without an answer: A tries again.
        link.send("roster", messages.RosterAnswer(refusal=str(error)).to_bytes())
        raise
    link.send(
        "roster",
        messages.RosterAnswer(entries=_entries(roster), signed=signed).to_bytes(),
    )
    _exchange_signatures(link, register, signatures, roster)
    return True


def _exchange_signatures(
    link: PeerLink,
    register: Register,
    signatures: ServerSignatures,
    roster: Roster,
) -> None:
    own = messages.RosterBody(task=str(signatures.task), digest=str(roster.digest()))
    theirs, found = signatures.exchange(link, "roster-seal", SignedKind.ROSTER, own)
    if found != own:
        raise PeerViolation("the servers froze different rosters; start a new task")
    if register.kept.roster_seal() is None:
        register.kept.keep_roster_seal(theirs)


def _is_own(
    signatures: ServerSignatures, signed: SignedMessage | None, roster: Roster
) -> bool:
    """Whether this server has signed just this roster."""
    if signed is None:
        return False
    found = signatures.check(
        signatures.role, SignedKind.ROSTER, signed, messages.RosterBody
    )
    return found == messages.RosterBody(
        task=str(signatures.task), digest=str(roster.digest())
    )


def _entries(roster: Roster) -> tuple[EnrolmentEntry, ...]:
    return tuple(
        EnrolmentEntry(
            client=e.client.name,
            records=e.records,
            record_rate=e.record_rate,
        )
        for e in roster.values()
    )


def _roster(entries: tuple[EnrolmentEntry, ...]) -> Roster:
    claims = [Enrolment(ClientId(e.client), e.records, e.record_rate) for e in entries]
    roster = Roster({claim.client: claim for claim in claims})
    if len(roster) != len(claims):
        raise PeerViolation("the roster names a client twice")
    return roster


def _fits(claim: Enrolment, task: Task) -> bool:
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
    task: Task,
) -> None:
    """Freeze who is held alike, and say who isn't.

    Raises Misconfiguration: they are too few.
    """
    left_out = sorted(client.name for client in proposed if client not in roster)
    if left_out:
        names = ", ".join(left_out[:_SHOWN]) + (", …" if len(left_out) > _SHOWN else "")
        said = (
            "did not enrol at both servers with the same claims, within the task's caps"
        )
        log.warning("%d clients %s, and are left out: %s", len(left_out), said, names)
    if len(roster) < (least := task.enrolment.min_clients):
        said = f"only {len(roster)} clients had enrolled at the deadline"
        remedy = f"{said}; start more of them, or raise deadlines.enrol"
        raise Misconfiguration("enrolment.min_clients", least, remedy)
    register.freeze(roster)
