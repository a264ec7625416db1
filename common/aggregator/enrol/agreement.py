"""Before version 0: the servers greet, agree on the row secret and on the roster."""

import logging
from collections.abc import Callable

from precad.common.aggregator.round.messages import (
    EnrolmentEntry,
    Position,
    RosterAnswer,
    RosterProposal,
)
from precad.common.aggregator.round.opening import require_enough
from precad.common.enrolment import Enrolment, Roster
from precad.common.errors import Misconfiguration, PeerViolation
from precad.common.identifiers import ClientId, Role
from precad.common.keystream import KEY_BYTES, derive
from precad.common.link import PeerLink
from precad.common.secret import Secret
from precad.common.task import Task

log = logging.getLogger("precad")

_SHOWN = 10
"""Names in one line of the log."""


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


def propose_roster(link: PeerLink, own: Roster, least: int) -> Roster:
    """A's part: its enrolments; the roster is those of them that B holds alike.

    A client that enrolled at one server only, or with other claims at the other, is left out: that
    is its own doing, and costs nobody else the training.

    Raises:
        PeerViolation: B refuses, or names somebody who wasn't proposed.
        Misconfiguration: the servers hold too few clients alike.
    """
    entries = tuple(
        EnrolmentEntry(client=e.client.name, records=e.records, record_rate=e.record_rate)
        for e in own.values()
    )
    link.send("roster", RosterProposal(entries=entries).to_bytes())
    answer = RosterAnswer.from_bytes(link.receive("roster"))
    if answer.refusal:
        raise PeerViolation(f"server B refused the roster: {answer.refusal}")
    names = {ClientId(name) for name in answer.clients}
    if len(names) != len(answer.clients) or not names <= set(own):
        raise PeerViolation("server B's roster isn't made of the clients that A proposed")
    roster = Roster({client: claim for client, claim in own.items() if client in names})
    _say_who_is_left_out(own, roster)
    require_enough(roster, least)
    return roster


def accept_roster(
    link: PeerLink,
    own: Callable[[], Roster],
    freeze: Callable[[Roster], None],
    task: Task,
    timeout_s: float,
) -> None:
    """B's part: freeze whom A proposes and B holds alike, then say who that is.

    Args:
        link: to A.
        own: B's enrolments, as they are when A's come.
        freeze: makes the roster durable, before A hears of it: a roster that A has frozen is
            frozen here too, whatever crashes in between.
        task: gives the caps and the least number of clients.
        timeout_s: how long A may take.

    Raises:
        PeerViolation: A names a client twice, or no longer somebody of the frozen roster.
        Misconfiguration: the servers hold too few clients alike.
    """
    proposal = RosterProposal.from_bytes(link.receive("roster", timeout_s=timeout_s))
    enrolments = [Enrolment(ClientId(e.client), e.records, e.record_rate) for e in proposal.entries]
    proposed = Roster({enrolment.client: enrolment for enrolment in enrolments})
    try:
        if len(proposed) != len(enrolments):
            raise PeerViolation("the roster names a client twice")
        known = own()
        # A claim that the task doesn't allow, however it got here, costs that client alone.
        held = [claim for claim in proposed.values() if known.get(claim.client) == claim]
        roster = Roster({claim.client: claim for claim in held if _fits(claim, task)})
        _say_who_is_left_out(proposed, roster)
        require_enough(roster, task.enrolment.min_clients)
        freeze(roster)
    except BaseException as error:
        # Whatever stopped this server, A must not take its silence or an empty text for consent.
        link.send("roster", RosterAnswer(refusal=str(error) or type(error).__name__).to_bytes())
        raise
    link.send("roster", RosterAnswer(clients=tuple(c.name for c in roster)).to_bytes())


def _fits(claim: Enrolment, task: Task) -> bool:
    try:
        claim.check(task)
    except Misconfiguration as error:
        log.warning("client %s is left out: %s", claim.client, error)
        return False
    return True


def _say_who_is_left_out(proposed: Roster, roster: Roster) -> None:
    if left_out := sorted(client.name for client in proposed if client not in roster):
        log.warning(
            "%d clients did not enrol at both servers with the same claims, within the task's "
            "caps, and are left out: %s",
            len(left_out),
            ", ".join(left_out[:_SHOWN]) + (", …" if len(left_out) > _SHOWN else ""),
        )
