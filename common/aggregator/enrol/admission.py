"""Who may enrol: anyone with a client's certificate, those on a list, or who brings a token.

Whatever the way, the task's caps hold, and nobody enrols once the roster is frozen.
"""

from typing import Protocol

from precad.common.aggregator.enrol.tokens import TokenBook
from precad.common.aggregator.settings import ServerSettings
from precad.common.enrolment import Enrolment, Roster
from precad.common.errors import AccessDenied, Misconfiguration
from precad.common.task import Task


class Admission(Protocol):
    """Asked once for each new client, after its claim passed the task's caps."""

    def admit(self, claim: Enrolment, token: str) -> None:
        """Let the claim pass, or raise AccessDenied."""


class AnyClient:
    """Every client that the authority named may take part."""

    def admit(self, claim: Enrolment, token: str) -> None:
        """Nothing to ask."""


class Listed:
    """Only clients on the operator's list, with the records and the rate that it says."""

    def __init__(self, roster: Roster) -> None:
        self._roster = roster

    def admit(self, claim: Enrolment, token: str) -> None:  # noqa: ARG002 -- the Protocol's
        """The claim must be the list's entry. Raises AccessDenied."""
        entry = self._roster.get(claim.client)
        if entry is None:
            raise AccessDenied(f"client {claim.client} isn't on the operator's roster")
        if claim != entry:
            raise AccessDenied(
                f"client {claim.client} claims {claim.records} records at rate "
                f"{claim.record_rate}; the operator's roster says {entry.records} at rate "
                f"{entry.record_rate}"
            )


class ByToken:
    """Who brings a one-time token of the operator's."""

    def __init__(self, tokens: TokenBook) -> None:
        self._tokens = tokens

    def admit(self, claim: Enrolment, token: str) -> None:
        """The token becomes this client's. Raises AccessDenied."""
        if not token:
            raise AccessDenied(
                f"client {claim.client} brings no token; ask the operator for one and put "
                'token = "…" in the settings'
            )
        self._tokens.redeem(token, claim.client)


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
            return AnyClient()
        case "token":
            return ByToken(TokenBook(settings.state))
        case "roster":
            if settings.roster is None:
                raise Misconfiguration("roster", None, "name the operator's roster file")
            return Listed(Roster.load(settings.roster, task))
