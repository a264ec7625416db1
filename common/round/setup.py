"""Before round 0: the servers greet, agree on the row secret and on the roster."""

from collections.abc import Callable
from typing import Literal

from precad.common.enrolment import Enrolment, Roster
from precad.common.errors import PeerViolation
from precad.common.identifiers import ClientId, Digest, Role
from precad.common.keystream import KEY_BYTES, derive
from precad.common.link import PeerLink
from precad.common.round.messages import EnrolmentEntry, Hello, RosterProposal, Verdict
from precad.common.round.opening import check_roster
from precad.common.secret import Secret
from precad.common.task import Task


def greet(link: PeerLink, role: Role, next_round: int, model: Digest) -> None:
    """Both must be about to play the same round from the same model.

    Raises:
        PeerViolation: they aren't, or the peer claims the same role.
    """
    own = Hello(role=_named(role), next_round=next_round, rounds_done=next_round, model=str(model))
    theirs = Hello.from_bytes(link.exchange("hello", own.to_bytes()))
    if theirs.role == own.role:
        raise PeerViolation(f"the other server claims to be {own.role} too")
    if (theirs.next_round, theirs.model) != (own.next_round, own.model):
        raise PeerViolation(
            f"the servers' trainings differ: here round {own.next_round} from model {own.model}, "
            f"there round {theirs.next_round} from model {theirs.model}"
        )


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
    verdict = Verdict.from_bytes(link.receive("roster"))
    if verdict.refusal:
        raise PeerViolation(f"server B refused the roster: {verdict.refusal}")


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
    refusal = ""
    try:
        if len(proposed) != len(enrolments):
            raise PeerViolation("the roster names a client twice")
        for enrolment in enrolments:
            enrolment.check(task)
        check_roster(own(), proposed, task.enrolment.min_clients)
    except Exception as error:
        refusal = str(error)
        raise
    finally:
        link.send("roster", Verdict(refusal=refusal).to_bytes())
    return proposed


def _named(role: Role) -> Literal["server-a", "server-b"]:
    return "server-a" if role is Role.SERVER_A else "server-b"
