"""Before round 0: the servers greet, agree on the row secret and on the roster."""

from collections.abc import Callable

from precad.common.aggregator.round.messages import (
    EnrolmentEntry,
    Position,
    RosterProposal,
    Verdict,
)
from precad.common.aggregator.round.opening import check_roster, hear_consent
from precad.common.enrolment import Enrolment, Roster
from precad.common.errors import PeerViolation
from precad.common.identifiers import ClientId, Role
from precad.common.keystream import KEY_BYTES, derive
from precad.common.link import PeerLink
from precad.common.secret import Secret
from precad.common.task import Task


def greet(link: PeerLink, own: Position) -> Position:
    """Tell each other where the training stands; returns the other server's position.

    Raises:
        PeerViolation: the peer claims the same role.
    """
    theirs = Position.from_bytes(link.exchange("position", own.to_bytes()))
    if theirs.role == own.role:
        raise PeerViolation(f"the other server claims to be {own.role} too")
    return theirs


def agree_row_secret(link: PeerLink, role: Role, task: Task) -> Secret:
    """A secret that both servers and no client know: 32 random bytes of each, through HKDF.

    Fresh for every link, so that it needs no storage.
    """
    own = Secret.random(KEY_BYTES)
    theirs = Secret(link.exchange("row-secret", own.reveal()))
    if len(theirs) != KEY_BYTES:
        raise PeerViolation(f"row secret has {len(theirs)} bytes, must have {KEY_BYTES}")
    a, b = (own, theirs) if role is Role.SERVER_A else (theirs, own)
    return derive(Secret(a.reveal() + b.reveal()), "row-secret", task.digest.value)


def propose_roster(link: PeerLink, roster: Roster) -> None:
    """A's part: everybody whom both servers will know. Raises PeerViolation."""
    entries = tuple(
        EnrolmentEntry(client=e.client.name, records=e.records, record_rate=e.record_rate)
        for e in roster.values()
    )
    link.send("roster", RosterProposal(entries=entries).to_bytes())
    hear_consent(link, "roster", "the roster")


def accept_roster(
    link: PeerLink, own: Callable[[], Roster], task: Task, timeout_s: float
) -> Roster:
    """B's part: check A's roster against its own enrolments, as they are when it comes.

    Raises:
        PeerViolation: A enrolled somebody whom B doesn't know, or with other claims.
        Misconfiguration: too few clients.
    """
    proposal = RosterProposal.from_bytes(link.receive("roster", timeout_s=timeout_s))
    enrolments = [Enrolment(ClientId(e.client), e.records, e.record_rate) for e in proposal.entries]
    proposed = Roster({enrolment.client: enrolment for enrolment in enrolments})
    try:
        if len(proposed) != len(enrolments):
            raise PeerViolation("the roster names a client twice")
        for enrolment in enrolments:
            enrolment.check(task)
        check_roster(own(), proposed, task.enrolment.min_clients)
    except BaseException as error:
        # Whatever stopped this server, A must not take its silence or an empty text for consent.
        link.send("roster", Verdict(refusal=str(error) or type(error).__name__).to_bytes())
        raise
    link.send("roster", Verdict().to_bytes())
    return proposed
