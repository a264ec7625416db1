"""Who may enrol, and until when: anyone with a client's certificate, a list, or one-time tokens.

Whatever the way, the task's caps hold, and nobody enrols once the roster is frozen.
"""

import base64
import binascii
import contextlib
import hmac
import re
import secrets
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from precad.aggregator.settings import ServerSettings
from precad.aggregator.store.audit import TOKENS
from precad.common.errors import AccessDenied, Misconfiguration
from precad.common.files import write_file
from precad.common.identifiers import ClientId, Digest
from precad.common.ring import encode_context
from precad.common.roster import Enrolment, Roster
from precad.common.task import Task


class Admission:
    """Who may take part of those whom the authority named: everybody, if it isn't narrowed."""

    def foresee(
        self, client: ClientId, token: str, claim: Enrolment | None = None
    ) -> None:
        """Raise AccessDenied where this client may not enrol with ``claim``, or whatever it claims.

        Changes nothing, and tells a client no more of others than its enrolment would.
        """

    def redeem(self, token: str, client: ClientId) -> None:
        """Bind a token to ``client``, which is about to be enrolled.

        Raises AccessDenied.
        """

    def invited(self) -> list[ClientId]:
        """Return whom the operator let in by name; for operators."""
        return []

    def unused_tokens(self) -> int:
        """Return how many tokens are still anybody's who brings them."""
        return 0


class Listed(Admission):
    """Only clients on the operator's list, with the records and the rate that it says."""

    def __init__(self, roster: Roster) -> None:
        self.roster = roster

    def foresee(
        self,
        client: ClientId,
        token: str,  # noqa: ARG002
        claim: Enrolment | None = None,
    ) -> None:
        """Look for the name, and at what is claimed for it."""
        if client not in self.roster:
            raise AccessDenied(f"client {client} isn't on the operator's roster")
        entry = self.roster[client]
        if claim is not None and claim != entry:
            listed = (
                f"the operator's roster says {entry.records} at rate"
                f" {entry.record_rate}"
            )
            said = f"claims {claim.records} records at rate {claim.record_rate}"
            raise AccessDenied(f"client {client} {said}; {listed}")

    def invited(self) -> list[ClientId]:
        """Return everybody on the list."""
        return list(self.roster)


TOKEN_BYTES = 32
_TEXT_LENGTH = 52
_DIGEST = re.compile(r"[0-9a-f]{64}")


def new_token() -> str:
    """Return 32 bytes from the operating system's CSPRNG, as 52 characters of base32."""
    return base64.b32encode(secrets.token_bytes(TOKEN_BYTES)).decode().rstrip("=")


def token_digest(token: str) -> Digest:
    """Return a token's SHA-256, all that servers keep.

    Raises AccessDenied: not a token.
    """
    text = token.strip()
    if len(text) != _TEXT_LENGTH or not text.isascii():
        raise AccessDenied(
            f"a token has {_TEXT_LENGTH} characters of base32: copy the whole"
        )
    try:
        raw = base64.b32decode(text + "====", casefold=True)
    except binascii.Error:
        said = "a token is base32, letters and the digits 2 to 7: copy it as it is"
        raise AccessDenied(said) from None
    return Digest.of(encode_context("enrolment-token", raw))


class ByToken(Admission):
    """Who brings a one-time token of the operator's; it becomes that client's.

    One file per token in the state folder, named by the token's digest: the operator
    may add some while the server runs. A second file beside it names the client whom
    the token was made for, or who used it first; it appears whole or not at all, and
    never changes.
    """

    def __init__(self, state: Path) -> None:
        self._folder = state / TOKENS

    def redeem(self, token: str, client: ClientId) -> None:
        """Bind a token to ``client``, for good.

        Raises AccessDenied: unknown, or another's.
        """
        known = self._known(client, token)
        self._bind(known, client)
        self._check_owner(known, client)

    def foresee(
        self,
        client: ClientId,
        token: str,
        claim: Enrolment | None = None,  # noqa: ARG002
    ) -> None:
        """Look at the token, which stays as it is."""
        known = self._known(client, token)
        if self._owner(known) is not None:
            self._check_owner(known, client)

    def invited(self) -> list[ClientId]:
        """Return whose the tokens are that are somebody's, by name."""
        owned = {owner for owner in self.owners().values() if owner is not None}
        return [ClientId(name) for name in sorted(owned)]

    def unused_tokens(self) -> int:
        """Return how many nobody was named for and nobody brought."""
        return sum(owner is None for owner in self.owners().values())

    def add(self, digest: Digest, client: ClientId | None = None) -> None:
        """Accept the token of that digest, once. Adding it again changes nothing.

        Raises Misconfiguration: it is another client's already, or the folder can't be
        written to.
        """
        known = str(digest)
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if client is not None:
                # Before the token is known here: nobody else can bring it meanwhile.
                self._bind(known, client)
                if self._owner(known) != client.name:
                    remedy = "this token is another client's: make a new one"
                    raise Misconfiguration("client", client.name, remedy)
            (self._folder / known).touch(mode=0o600)
        except OSError as error:
            said = f"can't be written to ({error.strerror})"
            raise Misconfiguration("state", str(self._folder), said) from None

    def owners(self) -> dict[str, str | None]:
        """Return whose each token is, by digest; None while it is anybody's who brings it."""
        return {digest: self._owner(digest) for digest in sorted(self._digests())}

    def _known(self, client: ClientId, token: str) -> str:
        if not token:
            remedy = 'ask the operator for one and put token = "…" in the settings'
            raise AccessDenied(f"client {client} brings no token; {remedy}")
        offered = str(token_digest(token))
        # Every digest is compared, each in constant time: how long it takes tells
        # nothing.
        known = [each for each in self._digests() if hmac.compare_digest(each, offered)]
        if not known:
            raise AccessDenied(
                "this server knows no such token; ask the operator for another"
            )
        return known[0]

    def _bind(self, known: str, client: ClientId) -> None:
        # Two that bring it can't both win.
        with contextlib.suppress(FileExistsError):
            write_file(self._binding(known), client.name.encode(), replace=False)

    def _check_owner(self, known: str, client: ClientId) -> None:
        if self._owner(known) != client.name:
            raise AccessDenied(
                "this token is another client's; ask the operator for one"
            )

    def _digests(self) -> list[str]:
        try:
            return [
                path.name
                for path in self._folder.iterdir()
                if _DIGEST.fullmatch(path.name)
            ]
        except FileNotFoundError:
            return []

    def _owner(self, digest: str) -> str | None:
        try:
            return self._binding(digest).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None

    def _binding(self, digest: str) -> Path:
        return self._folder / f"{digest}.client"


def admission_of(settings: ServerSettings, task: Task) -> Admission:
    """Return who may enrol.

    Raises Misconfiguration: a roster missing, superfluous or unusable.
    """
    if settings.roster is not None and settings.enrolment != "roster":
        remedy = 'needs enrolment = "roster" beside it'
        raise Misconfiguration("roster", str(settings.roster), remedy)
    match settings.enrolment:
        case "open":
            return Admission()
        case "token":
            return ByToken(settings.state)
        case "roster":
            if settings.roster is None:
                raise Misconfiguration(
                    "roster", None, "name the operator's roster file"
                )
            return Listed(Roster.load(settings.roster, task))


@dataclass(frozen=True, slots=True)
class Window:
    """How long enrolment is open, from a server's start."""

    seconds: float
    enough: int
    """With so many owners it closes at once."""


def window_of(
    task: Task,
    *,
    until: datetime | None = None,
    quorum: int | None = None,
    now: datetime | None = None,
) -> Window:
    """Return how long enrolment is open.

    ``until`` replaces the task's deadline, which counts from a start: it outlasts
    restarts; ``quorum`` the task's most owners. Raises Misconfiguration: a quorum that
    the task doesn't take, or a date without a time zone or beyond a year.
    """
    most = task.enrolment.clients
    least = task.enrolment.min_clients
    if quorum is not None and not least <= quorum <= most:
        raise Misconfiguration(
            "enrol_quorum", quorum, f"the task takes {least} to {most} owners"
        )
    seconds = task.deadlines.enrol
    if until is not None:
        if until.tzinfo is None:
            remedy = "say its time zone, as in 2027-01-31T18:00:00Z"
            raise Misconfiguration("enrol_until", until.isoformat(), remedy)
        seconds = max(0.0, (until - (now or datetime.now(UTC))).total_seconds())
        if seconds > 366 * 86_400.0:  # certificates end within a year
            raise Misconfiguration(
                "enrol_until", until.isoformat(), "give a date within a year"
            )
    return Window(seconds, most if quorum is None else quorum)
