"""One-time enrolment tokens: the server keeps digests, and who redeemed them.

One file per token in the state folder, named by the token's digest, so that the operator can add
some while the server runs. A second file beside it names the client: whom the token was made for,
or who used it first; it appears whole or not at all, and never changes.
"""

import base64
import binascii
import contextlib
import hmac
import re
import secrets
from dataclasses import dataclass
from pathlib import Path

from precad.common.errors import AccessDenied, Misconfiguration
from precad.common.files import write_file
from precad.common.identifiers import ClientId, Digest
from precad.common.keystream import encode_context

TOKEN_BYTES = 32
TOKENS_FOLDER = "tokens"
_TEXT_LENGTH = 52
_DIGEST = re.compile(r"[0-9a-f]{64}")


def new_token() -> str:
    """32 bytes from the operating system's CSPRNG, as 52 characters of base32."""
    return base64.b32encode(secrets.token_bytes(TOKEN_BYTES)).decode().rstrip("=")


def token_digest(token: str) -> Digest:
    """What servers keep of a token: SHA-256, useless to whoever reads it.

    Raises:
        AccessDenied: not a token. The text isn't repeated.
    """
    text = token.strip()
    if len(text) != _TEXT_LENGTH or not text.isascii():
        raise AccessDenied(f"a token has {_TEXT_LENGTH} characters of base32: copy the whole")
    try:
        raw = base64.b32decode(text + "====", casefold=True)
    except binascii.Error:
        raise AccessDenied(
            "a token is base32, letters and the digits 2 to 7: copy it as it is"
        ) from None
    return Digest.of(encode_context("enrolment-token", raw))


@dataclass(frozen=True, slots=True)
class TokenState:
    """One token as a server knows it."""

    digest: str
    client: str | None
    """Whose it is; None while it is anybody's who brings it."""


class TokenBook:
    """The tokens of one server.

    Args:
        state: the server's state folder.
    """

    def __init__(self, state: Path) -> None:
        self._folder = state / TOKENS_FOLDER

    def add(self, digest: Digest, client: ClientId | None = None) -> None:
        """Accept the token of that digest, once. Adding it again changes nothing.

        Args:
            digest: of the token.
            client: whom it is for; whoever brings it first, unless given.

        Raises:
            Misconfiguration: it is another client's already, or the folder can't be written to.
        """
        known = str(digest)
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if client is not None:
                # Before the token is known here: nobody else can bring it meanwhile.
                with contextlib.suppress(FileExistsError):
                    write_file(self._binding(known), client.name.encode(), replace=False)
                if self._owner(known) != client.name:
                    raise Misconfiguration(
                        "client", client.name, "this token is another client's: make a new one"
                    )
            (self._folder / known).touch(mode=0o600)
        except OSError as error:
            raise Misconfiguration(
                "state", str(self._folder), f"can't be written to ({error.strerror})"
            ) from None

    def redeem(self, token: str, client: ClientId) -> None:
        """Bind a token to ``client``, for good; the same client may come again.

        Raises:
            AccessDenied: no such token, or another client's.
        """
        known = self._known(token)
        # Two redemptions can't both win.
        with contextlib.suppress(FileExistsError):
            write_file(self._binding(known), client.name.encode(), replace=False)
        self._check_owner(known, client)

    def look(self, token: str, client: ClientId) -> None:
        """Raise what ``redeem`` would raise now, and bind nothing.

        Raises:
            AccessDenied: no such token, or another client's.
        """
        known = self._known(token)
        if self._owner(known) is not None:
            self._check_owner(known, client)

    def _known(self, token: str) -> str:
        offered = str(token_digest(token))
        known = ""
        # Every digest is compared, each in constant time: how long it takes tells nothing.
        for digest in self._digests():
            if hmac.compare_digest(digest, offered):
                known = digest
        if not known:
            raise AccessDenied("this server knows no such token; ask the operator for another")
        return known

    def _check_owner(self, known: str, client: ClientId) -> None:
        if self._owner(known) != client.name:
            raise AccessDenied("this token is another client's; ask the operator for one")

    def states(self) -> list[TokenState]:
        """All tokens, by digest."""
        return [TokenState(digest, self._owner(digest)) for digest in sorted(self._digests())]

    def _digests(self) -> list[str]:
        try:
            return [path.name for path in self._folder.iterdir() if _DIGEST.fullmatch(path.name)]
        except FileNotFoundError:
            return []

    def _owner(self, digest: str) -> str | None:
        try:
            return self._binding(digest).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None

    def _binding(self, digest: str) -> Path:
        return self._folder / f"{digest}.client"
