"""Who may enrol: anyone with a client's certificate, those on a list, or who brings a token.

Whatever the way, the task's caps hold, and nobody enrols once the roster is frozen.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

from precad.aggregator.enrol.tokens import TokenBook
from precad.aggregator.settings import ServerSettings
from precad.common.errors import AccessDenied, Misconfiguration
from precad.common.identifiers import ClientId
from precad.common.roster import Enrolment, Roster
from precad.common.task import Task


class Admission(Protocol):
    """Who may enrol. Asked once for each new client, after its claim passed the task's caps."""

    def __call__(self, claim: Enrolment, token: str, /) -> None:
        """Let a claim with its token pass, or raise AccessDenied."""

    def foresee(self, client: ClientId, token: str) -> None:
        """Raise AccessDenied where a call would, whatever is claimed; nothing is changed by it.

        Tells a client no more of others than its enrolment would.
        """

    def invited(self) -> list[ClientId]:
        """Whom the operator let in by name; for operators."""

    def unused_tokens(self) -> int:
        """How many tokens are still anybody's who brings them."""


class Anybody:
    """Every client that the authority named may take part."""

    def __call__(self, _claim: Enrolment, _token: str, /) -> None:
        """Passes."""

    def foresee(self, client: ClientId, token: str) -> None:
        """Passes."""

    def invited(self) -> list[ClientId]:
        """Nobody by name."""
        return []

    def unused_tokens(self) -> int:
        """None."""
        return 0


anybody = Anybody()


@dataclass(frozen=True, slots=True)
class Listed:
    """Only clients on the operator's list, with the records and the rate that it says."""

    roster: Roster

    def __call__(self, claim: Enrolment, _token: str, /) -> None:
        """Compare the claim with the list's."""
        self.foresee(claim.client, "")
        entry = self.roster[claim.client]
        if claim != entry:
            raise AccessDenied(
                f"client {claim.client} claims {claim.records} records at rate "
                f"{claim.record_rate}; the operator's roster says {entry.records} at rate "
                f"{entry.record_rate}"
            )

    def foresee(self, client: ClientId, token: str) -> None:  # noqa: ARG002
        """Look for the name."""
        if client not in self.roster:
            raise AccessDenied(f"client {client} isn't on the operator's roster")

    def invited(self) -> list[ClientId]:
        """Everybody on the list."""
        return list(self.roster)

    def unused_tokens(self) -> int:
        """None."""
        return 0


@dataclass(frozen=True, slots=True)
class ByToken:
    """Who brings a one-time token of the operator's; it becomes that client's."""

    tokens: TokenBook

    def __call__(self, claim: Enrolment, token: str, /) -> None:
        """Bind the token to the client."""
        self.tokens.redeem(_brought(claim.client, token), claim.client)

    def foresee(self, client: ClientId, token: str) -> None:
        """Look at the token, which stays as it is."""
        self.tokens.look(_brought(client, token), client)

    def invited(self) -> list[ClientId]:
        """Whose the tokens are that are somebody's, by name."""
        owned = {state.client for state in self.tokens.states() if state.client is not None}
        return [ClientId(name) for name in sorted(owned)]

    def unused_tokens(self) -> int:
        """Those that nobody was named for and nobody brought."""
        return sum(state.client is None for state in self.tokens.states())


def _brought(client: ClientId, token: str) -> str:
    if not token:
        raise AccessDenied(
            f"client {client} brings no token; ask the operator for one and put "
            'token = "…" in the settings'
        )
    return token


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
            return ByToken(TokenBook(settings.state))
        case "roster":
            if settings.roster is None:
                raise Misconfiguration("roster", None, "name the operator's roster file")
            return Listed(Roster.load(settings.roster, task))


# How long enrolment is open: the task's deadline, or the operators' date; or until enough came.


LONGEST_S = 366 * 86_400.0
"""Certificates end within a year, and waits have bounds."""


@dataclass(frozen=True, slots=True)
class Window:
    """From a server's start."""

    seconds: float
    enough: int
    """With so many owners it closes at once."""


def window_of(
    task: Task,
    until: datetime | None = None,
    quorum: int | None = None,
    now: datetime | None = None,
) -> Window:
    """What the task and a server's settings say.

    Args:
        task: its deadline, its most and least owners.
        until: in place of the deadline, which counts from a start; a date outlasts restarts.
        quorum: in place of the most owners.
        now: instead of the clock's time.

    Raises:
        Misconfiguration: a quorum that the task doesn't take, or a date without a time zone
            or beyond a year.
    """
    most, least = task.enrolment.clients, task.enrolment.min_clients
    if quorum is not None and not least <= quorum <= most:
        raise Misconfiguration("enrol_quorum", quorum, f"the task takes {least} to {most} owners")
    seconds = task.deadlines.enrol
    if until is not None:
        if until.tzinfo is None:
            raise Misconfiguration(
                "enrol_until", until.isoformat(), "say its time zone, as in 2027-01-31T18:00:00Z"
            )
        seconds = max(0.0, (until - (now or datetime.now(UTC))).total_seconds())
        if seconds > LONGEST_S:
            raise Misconfiguration("enrol_until", until.isoformat(), "give a date within a year")
    return Window(seconds, most if quorum is None else quorum)
