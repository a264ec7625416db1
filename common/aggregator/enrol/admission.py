"""Who may enrol: anyone with a client's certificate, those on a list, or who brings a token.

Whatever the way, the task's caps hold, and nobody enrols once the roster is frozen.
"""

from collections.abc import Callable

from precad.common.aggregator.enrol.tokens import TokenBook
from precad.common.aggregator.settings import ServerSettings
from precad.common.enrolment import Enrolment, Roster
from precad.common.errors import AccessDenied, Misconfiguration
from precad.common.task import Task

Admission = Callable[[Enrolment, str], None]
"""Lets a claim with its token pass, or raises AccessDenied.

Asked once for each new client, after its claim passed the task's caps.
"""


def anybody(_claim: Enrolment, _token: str) -> None:
    """Every client that the authority named may take part."""


def listed(roster: Roster) -> Admission:
    """Only clients on the operator's list, with the records and the rate that it says."""

    def admit(claim: Enrolment, _token: str) -> None:
        entry = roster.get(claim.client)
        if entry is None:
            raise AccessDenied(f"client {claim.client} isn't on the operator's roster")
        if claim != entry:
            raise AccessDenied(
                f"client {claim.client} claims {claim.records} records at rate "
                f"{claim.record_rate}; the operator's roster says {entry.records} at rate "
                f"{entry.record_rate}"
            )

    return admit


def by_token(tokens: TokenBook) -> Admission:
    """Who brings a one-time token of the operator's; it becomes that client's."""

    def admit(claim: Enrolment, token: str) -> None:
        if not token:
            raise AccessDenied(
                f"client {claim.client} brings no token; ask the operator for one and put "
                'token = "…" in the settings'
            )
        tokens.redeem(token, claim.client)

    return admit


def admission_of(settings: ServerSettings, task: Task) -> Admission:
    """What a server's settings say.

    Raises:
        Misconfiguration: the roster is missing, superfluous or can't be used for the task.
    """
    if settings.roster is not None and settings.enrolment != "roster":
        raise Misconfiguration(
            "roster", str(settings.roster), 'needs enrolment = "roster" beside it'
        )
    match settings.enrolment:
        case "open":
            return anybody
        case "token":
            return by_token(TokenBook(settings.state))
        case "roster":
            if settings.roster is None:
                raise Misconfiguration("roster", None, "name the operator's roster file")
            return listed(Roster.load(settings.roster, task))
