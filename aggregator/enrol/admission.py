"""Decide who may enrol, and until when.

Anyone with a client's certificate may, or only clients on the operator's list, or only
those who bring a one-time token. In each case the task's caps hold, and nobody enrols
once the roster is frozen.
"""

import base64
import binascii
import contextlib
import hmac
import re
import secrets
from datetime import UTC, datetime
from pathlib import Path

from precad.aggregator import ServerSettings
from precad.aggregator.store import TOKENS
from precad.common import (
    AccessDenied,
    ClientId,
    Digest,
    Enrolment,
    Misconfiguration,
    Roster,
    Task,
    digest_of,
    frozen_dataclass,
    make_folder,
    write_file,
)


class Admission:
    """Admit every client with a certificate; subclasses admit fewer."""

    def foresee(
        self, client: ClientId, token: str, claim: Enrolment | None = None
    ) -> None:
        """Check that ``client`` may enrol with ``claim``; without one, with any claim.

        It changes nothing, and tells a client no more of others than enrolling would.

        Raises AccessDenied: the client may not.
        """

    def redeem(self, token: str, client: ClientId) -> None:
        """Bind a token to ``client``, which is about to be enrolled.

        Raises AccessDenied: the token isn't good for this client.
        """

    def invited(self) -> list[ClientId]:
        """Return the clients whom the operator let in by name, to show to operators."""
        return []

    def unused_tokens(self) -> int:
        """Return how many tokens are still good for anybody who brings them."""
        return 0


class Listed(Admission):
    """Admit only clients on the operator's list, with its records and rate."""

    def __init__(self, roster: Roster) -> None:
        self.roster = roster

    def foresee(
        self,
        client: ClientId,
        token: str,  # noqa: ARG002
        claim: Enrolment | None = None,
    ) -> None:
        """Check that the client is on the list, with this claim.

        Raises AccessDenied: it isn't.
        """
        if client not in self.roster:
            raise AccessDenied(f"client {client} isn't on the operator's roster")
        entry = self.roster[client]
        if claim is not None and claim != entry:
            raise AccessDenied(
                f"client {client} claims {claim.records} records at rate"
                f" {claim.record_rate}; the operator's roster says {entry.records} at"
                f" rate {entry.record_rate}"
            )

    def invited(self) -> list[ClientId]:
        """Return everybody on the list."""
        return list(self.roster)


TOKEN_BYTES = 32
"""Random bytes of a token."""
_TOKEN_CHARACTERS = 52
"""Length of a token's text, in base32 without padding."""
_DIGEST = re.compile(r"[0-9a-f]{64}")
"""Name of a token's file: SHA-256 in hex."""


def new_token() -> str:
    """Return a token: 32 bytes from the system's CSPRNG, as 52 characters of base32."""
    return base64.b32encode(secrets.token_bytes(TOKEN_BYTES)).decode().rstrip("=")


def token_digest(token: str) -> Digest:
    """Return a token's SHA-256, which is all that servers keep of it.

    Raises AccessDenied: the text isn't a token.
    """
    text = token.strip()
    if len(text) != _TOKEN_CHARACTERS or not text.isascii():
        raise AccessDenied(
            f"a token has {_TOKEN_CHARACTERS} characters of base32: copy the whole"
        )
    try:
        token_bytes = base64.b32decode(text + "====", casefold=True)
    except binascii.Error:
        raise AccessDenied(
            "a token is base32, letters and the digits 2 to 7: copy it as it is"
        ) from None
    return digest_of("enrolment-token", token_bytes)


class ByToken(Admission):
    """Admit who brings a one-time token of the operator's, which becomes that client's.

    There is one file for each token in the state folder, named by the token's digest:
    the operator may add some while the server runs. A second file beside it names the
    client whom the token was made for, or who used it first. That file appears whole or
    not at all, and never changes.
    """

    def __init__(self, state: Path) -> None:
        self._folder = state / TOKENS

    def redeem(self, token: str, client: ClientId) -> None:
        """Bind a token to ``client``, for good.

        Raises AccessDenied: the token is unknown, or another client's.
        """
        digest = self._known_digest(client, token)
        self._bind(digest, client)
        self._check_owner(digest, client)

    def foresee(
        self,
        client: ClientId,
        token: str,
        claim: Enrolment | None = None,  # noqa: ARG002
    ) -> None:
        """Check that the token is good for ``client``; it stays as it is.

        Raises AccessDenied: the token is unknown, or another client's.
        """
        digest = self._known_digest(client, token)
        if self._owner(digest) is not None:
            self._check_owner(digest, client)

    def invited(self) -> list[ClientId]:
        """Return the clients who have a token of their own, in order."""
        owned = {owner for owner in self.owners().values() if owner is not None}
        return [ClientId(name) for name in sorted(owned)]

    def unused_tokens(self) -> int:
        """Return how many tokens were made for nobody, and brought by nobody so far."""
        return sum(owner is None for owner in self.owners().values())

    def add(self, digest: Digest, client: ClientId | None = None) -> None:
        """Accept the token of that digest once, from ``client`` or from anybody.

        Adding it again changes nothing.

        Raises Misconfiguration: it is another client's already, or the folder can't be
        written to.
        """
        name = str(digest)
        try:
            make_folder(self._folder)
            if client is not None:
                # Before the token is known here: nobody else can bring it meanwhile.
                self._bind(name, client)
                if self._owner(name) != client.name:
                    raise Misconfiguration(
                        "client",
                        client.name,
                        "this token is another client's: make a new one",
                    )
            (self._folder / name).touch(mode=0o600)
        except OSError as error:
            raise Misconfiguration(
                "state",
                self._folder,
                f"can't be written to ({error.strerror})",
            ) from None

    def owners(self) -> dict[str, str | None]:
        """Return whose each token is, by the token's digest; None while anybody's."""
        return {digest: self._owner(digest) for digest in sorted(self._digests())}

    def _known_digest(self, client: ClientId, token: str) -> str:
        """Return the digest of the token that ``client`` brings, if it is known here.

        Raises AccessDenied: there is no token, or it is unknown.
        """
        if not token:
            raise AccessDenied(
                f"client {client} brings no token; ask the operator for one and put"
                ' token = "…" in the settings'
            )
        offered = str(token_digest(token))
        # Every digest is compared, each in constant time: the time that it takes tells
        # nothing.
        equal = [
            digest for digest in self._digests() if hmac.compare_digest(digest, offered)
        ]
        if not equal:
            raise AccessDenied(
                "this server knows no such token; ask the operator for another"
            )
        return equal[0]

    def _bind(self, digest: str, client: ClientId) -> None:
        # An existing file stays: of two clients that bring the token only one wins.
        with contextlib.suppress(FileExistsError):
            write_file(self._binding(digest), client.name.encode(), replace=False)

    def _check_owner(self, digest: str, client: ClientId) -> None:
        if self._owner(digest) != client.name:
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
    """Return what decides who may enrol, by the server's settings.

    Raises Misconfiguration: a roster file is missing, superfluous or unusable.
    """
    if settings.roster is not None and settings.enrolment != "roster":
        raise Misconfiguration(
            "roster",
            settings.roster,
            'needs enrolment = "roster" beside it',
        )
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


_MOST_SECONDS = 366 * 86_400.0
"""For how long enrolment may be open at most: certificates end within a year."""


@frozen_dataclass
class Window:
    """Say how long enrolment is open, counted from a server's start."""

    seconds: float
    enough: int
    """How many owners are enough: with so many enrolment closes at once."""


def window_of(
    task: Task,
    *,
    until: datetime | None = None,
    quorum: int | None = None,
    now: datetime | None = None,
) -> Window:
    """Return how long enrolment is open, from ``now`` on.

    ``until`` replaces the task's deadline. That deadline counts from a server's start;
    a date outlasts restarts. ``quorum`` replaces the task's largest number of owners.

    Raises Misconfiguration: the task doesn't take that quorum, or the date has no time
    zone or is more than a year away.
    """
    most_clients = task.enrolment.clients
    min_clients = task.enrolment.min_clients
    if quorum is not None and not min_clients <= quorum <= most_clients:
        raise Misconfiguration(
            "enrol_quorum",
            quorum,
            f"the task takes {min_clients} to {most_clients} owners",
        )
    seconds = task.deadlines.enrol
    if until is not None:
        if until.tzinfo is None:
            raise Misconfiguration(
                "enrol_until",
                until.isoformat(),
                "say its time zone, as in 2027-01-31T18:00:00Z",
            )
        left = until - (now or datetime.now(UTC))
        seconds = max(0.0, left.total_seconds())
        if seconds > _MOST_SECONDS:
            raise Misconfiguration(
                "enrol_until", until.isoformat(), "give a date within a year"
            )
    return Window(seconds, enough=most_clients if quorum is None else quorum)
