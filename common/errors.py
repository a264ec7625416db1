"""Every error of precad, in one tree, and the log, for what isn't raised.

Only these are caught inside a round; anything else is a bug and stays loud. Errors
carry identifiers, never shares, seeds or keys.
"""

import copyreg
import logging
import re
from enum import Enum
from pathlib import PurePath

log = logging.getLogger("precad")
"""Where every part of the system says what its people should know."""
MAX_TEXT = 2000
"""Longest text of an error, in characters: it may quote what a stranger sent."""
_MAX_VALUE = 200
"""Longest field or value that an error names, in characters."""
_LOGIN = re.compile(r"(?<=\w\w:/)/?[^\s'\"]{0,500}@")
"""User and password in a URL, or in a URL that became part of a path, where ``//`` is
one ``/``."""
_PASSWORD = re.compile(r"(?<=password=)[^&\s'\"]+")
"""A password that is written ``password=…``, as a parameter of a URL is."""


def without_logins(text: str) -> str:
    """Return the text without users and passwords in URLs, as of a database."""
    return _PASSWORD.sub("…", _LOGIN.sub("/…@", text))


def one_line(text: str) -> str:
    """Return text, which may be another party's, as a part of a line of ours.

    It can't begin a new line, move the cursor or turn the direction of reading: each
    character that isn't printable becomes a space.
    """
    return "".join(character if character.isprintable() else " " for character in text)


class PrecadError(Exception):
    """Root of all errors that precad raises on purpose; its text is one short line."""

    def __init__(self, text: str = "") -> None:
        super().__init__(_cut(one_line(without_logins(text)), MAX_TEXT))

    def __reduce__(self) -> tuple[object, ...]:
        """Have pickle copy the fields instead of calling the constructor.

        So an error of another process arrives whole, whatever its constructor takes.
        """
        rebuild = copyreg.__newobj__  # type: ignore[attr-defined]
        return rebuild, (type(self), *self.args), self.__dict__


class Misconfiguration(PrecadError):
    """A value given by a person is wrong: names the field, the value and the remedy."""

    def __init__(self, field: str, value: object, remedy: str) -> None:
        # A path is shown, and kept, as the person wrote it.
        value = str(value) if isinstance(value, PurePath) else value
        super().__init__(f"{_cut(field, _MAX_VALUE)} = {_shown(value)}: {remedy}")
        self.field = field
        self.value = value
        self.remedy = remedy


class MayPass(Misconfiguration):
    """A value can't be used now, and the same one may do in a minute."""


class WrongTime(MayPass):
    """A certificate doesn't hold at this machine's time; setting the clock may help."""


class Rejection(Enum):
    """Why a submission doesn't count.

    Expected, counted, and the same on both servers.
    """

    ABSENT = "absent"
    """Nothing complete arrived before the round closed."""
    NOT_SELECTED = "not-selected"
    """The client isn't enrolled, or wasn't drawn for this round."""
    WRONG_TASK = "wrong-task"
    """Bound to another task digest."""
    WRONG_ATTEMPT = "wrong-attempt"
    """For a round that is over, or hasn't begun."""
    WRONG_MODEL = "wrong-model"
    """Trained on another model than this round's."""
    MALFORMED = "malformed"
    """A field of the wrong length or type, or a seed, salt or body that isn't what was
    signed."""
    TRUNCATED = "truncated"
    """The upload ended before the announced number of bytes."""
    DUPLICATE = "duplicate"
    """A second, different submission of the same client in one round."""
    BAD_SIGNATURE = "bad-signature"
    """Not signed by the client's own certificate, or over something else."""
    UNMATCHED = "unmatched"
    """The two servers hold different headers or signatures, or only one holds any."""
    NORM_EXCEEDED = "norm-exceeded"
    """Validation: the norm is above β, or out of range altogether."""


class RejectedSubmission(PrecadError):
    """One client's submission doesn't count; nobody else is touched."""

    def __init__(self, reason: Rejection, detail: str) -> None:
        super().__init__(f"{reason.value}: {detail}")
        self.reason = reason
        self.detail = _cut(one_line(detail), MAX_TEXT)


class BodyUnreadable(PrecadError):
    """A spooled body is gone or was changed: that client's submission doesn't count."""


class PeerViolation(PrecadError):
    """The other server or the dealer said something the protocol doesn't allow."""


class PeerUnavailable(PrecadError):
    """The other side didn't answer within its deadline, or isn't there."""


class TooManyCalls(PrecadError):
    """One caller keeps more calls open than one may; it waits and tries again."""


class NameInUse(PrecadError):
    """Another process takes part under this client's name; one of them has to go."""


class Misidentified(PeerUnavailable):
    """The party that answers at an address is another one; waiting won't mend it."""


class NotOnOffer(PeerUnavailable):
    """A model that this server no longer serves, as after a restart, or not yet."""


class TaskMismatch(PrecadError):
    """Two parties hold different task descriptions.

    Names both digests, and in ``also`` the fields that differ where they are known.
    """

    def __init__(self, ours: str, theirs: str, also: str = "") -> None:
        digests = f"ours {ours}, theirs {theirs}"
        if also:
            digests += f" ({also})"
        super().__init__(
            f"task digest differs: {digests}; give both parties the same task file"
        )


class BudgetExceeded(PrecadError):
    """A release would pass a privacy budget; nothing was released."""


class AlreadyReleased(PrecadError):
    """A second, different release of one round was asked for."""


class StorageFailure(PrecadError):
    """The durable state can't be read or written: disk full, damaged, database gone.

    The operation that failed isn't done, and nothing that depends on it may be sent.
    """


class StorageGone(StorageFailure):
    """The database restarts, or a disk is full: it may do again in a minute.

    Of what was asked last, as of a commit, nobody knows: ask what is there.
    """


class Denial(Enum):
    """Why a caller may not do what it asked.

    The same word in errors, logs and counters.
    """

    NO_CERTIFICATE = "no-certificate"
    MALFORMED_NAME = "malformed-name"
    """The certificate names no precad party, or more than one."""
    NOT_YET_VALID = "not-yet-valid"
    EXPIRED = "expired"
    REVOKED = "revoked"
    NOT_ALLOWED = "not-allowed"
    """A known party, but not one that may do this; with every other reason it isn't
    known."""


NOT_IN_TIME = frozenset({Denial.NOT_YET_VALID, Denial.EXPIRED})
"""Reasons that may be over soon: two clocks differ, or a certificate must be
renewed."""


class AccessDenied(PrecadError):
    """The caller's identity doesn't allow this call."""

    def __init__(self, detail: str, reason: Denial = Denial.NOT_ALLOWED) -> None:
        super().__init__(f"{reason.value}: {detail}")
        self.detail = detail
        self.reason = reason


def _shown(value: object) -> str:
    """Return a value as an error shows it: its ``repr``, bounded, without logins."""
    try:
        # A string is cut before it is quoted: quoting may make it four times as long.
        if isinstance(value, str):
            value = without_logins(value[:MAX_TEXT])[:_MAX_VALUE]
        return _cut(repr(value), _MAX_VALUE)
    except (ValueError, RecursionError):
        # An integer of thousands of digits, or lists within lists.
        return f"a {type(value).__name__} too large to show"


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"


LEAST_EXTRA = {
    "alembic": "server",
    "crypten": "server",
    "jinja2": "report",
    "joblib": "simulation",
    "matplotlib": "plan",
    "prometheus_client": "dealer",
    "scipy": "plan",
    "sklearn": "client",
    "sqlalchemy": "server",
    "torch": "client",
    "torchvision": "simulation",
}
"""The smallest extra that brings a package, by the name that it is imported by: for
each package that not every party needs."""


class MissingPackage(PrecadError, ImportError):
    """A package of one of precad's extras isn't installed; names pip's command."""

    def __init__(self, feature: str, package: str, extra: str) -> None:
        remedy = f"which isn't installed: pip install 'precad[{extra}]'"
        super().__init__(f"{feature} needs {package}, {remedy}")


def missing(
    error: ModuleNotFoundError, feature: str, extra: str | None = None
) -> MissingPackage | None:
    """Return the error for an import that failed; None where no extra has the package.

    ``feature`` is what needs the import; ``extra`` is named in place of the
    smallest one.
    """
    package = (error.name or "").partition(".")[0]
    least_extra = LEAST_EXTRA.get(package)
    if least_extra is None:
        return None
    return MissingPackage(feature, package, extra or least_extra)
