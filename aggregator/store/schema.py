"""The tables of one server's database for one task.

What stands here and what the migrations make of an older database is the same; a test
compares them. Foreign keys say what belongs to what: the database refuses a charge
without its entry and an entry without its attempt, and in a file that was changed from
outside SQLite finds them (``audit``).
"""

from collections.abc import Callable
from enum import Enum
from typing import Any

import sqlalchemy as sa
from sqlalchemy.types import TypeDecorator, TypeEngine

from precad.common.errors import PrecadError, Rejection, StorageFailure
from precad.common.identifiers import ClientId, Digest, Role


class AttemptState(Enum):
    """How far an attempt has come on this server."""

    OPEN = "open"
    """Nothing has left; a crash here costs nothing but the attempt."""
    ABANDONED = "abandoned"
    """Broken off before it was prepared."""
    PREPARED = "prepared"
    """Charged, and the noisy share is persisted: nothing about it may change any more.
    """
    COUNTERSIGNED = "countersigned"
    """This server has countersigned the other's head: it never voids."""
    SENT = "sent"
    """This server holds the other's countersignature: the noisy share may leave."""
    DONE = "done"
    """Both noisy shares were held and the next model is persisted."""
    VOIDED = "voided"
    """Prepared on one server only, which had countersigned nothing: costs nothing."""
    WRITTEN_OFF = "written-off"
    """It may have left, and is lost beyond repair: charged, and never used."""
    LEARNED = "learned"
    """A charge that this server had forgotten."""


PENDING = (AttemptState.PREPARED, AttemptState.COUNTERSIGNED, AttemptState.SENT)
"""Prepared and not over: no attempt opens meanwhile."""
BOUND = (AttemptState.COUNTERSIGNED, AttemptState.SENT)
"""Never voided."""
CHARGED = (*PENDING, AttemptState.DONE, AttemptState.WRITTEN_OFF, AttemptState.LEARNED)
"""It costs its clients something."""


class Permission(Enum):
    """What only the operators of both servers can allow, for one version."""

    ATTEMPTS = "attempts"
    """Go on trying: many attempts have failed, or a release may have left already."""
    WRITE_OFF = "write-off"
    """A prepared attempt that the other server has lost: its charge stands, it is never
    used."""
    CLAIMED = "claimed"
    """Attempts that the other server alone says there were: they are charged."""
    COIN = "coin"
    """A coin key is lost: both servers take new ones for this version."""


class _Kept(TypeDecorator[Any]):
    """A column of the type ``stored`` that holds a ``kind``, by its attribute ``plain``.

    What no server writes there is a StorageFailure.
    """

    impl = sa.String
    cache_ok = True

    def __init__(
        self, stored: TypeEngine[Any], kind: Callable[[Any], Any], plain: str = "value"
    ) -> None:
        super().__init__()
        self.stored = stored
        self.kind = kind
        self.plain = plain

    def load_dialect_impl(self, dialect: sa.Dialect) -> TypeEngine[Any]:
        """The column's own type."""
        return dialect.type_descriptor(self.stored)

    def process_bind_param(self, value: Any, dialect: sa.Dialect) -> Any:  # noqa: ARG002
        """To the database."""
        return None if value is None else getattr(value, self.plain)

    def process_result_value(self, value: Any, dialect: sa.Dialect) -> Any:  # noqa: ARG002
        """From the database."""
        try:
            return None if value is None else self.kind(value)
        except (ValueError, TypeError, PrecadError) as error:
            raise StorageFailure(
                f"the database holds what no server writes: {error}"
            ) from None


_DIGEST = _Kept(sa.LargeBinary(), Digest)
_CLIENT = _Kept(sa.String(63), ClientId, "name")
_ROLE = _Kept(sa.String(16), Role)
_STATE = _Kept(sa.String(16), AttemptState)
_REASON = _Kept(sa.String(32), Rejection)
_PERMISSION = _Kept(sa.String(16), Permission)

ONE_RELEASE = "state IN ('prepared', 'countersigned', 'sent', 'done')"

metadata = sa.MetaData()


def _table(name: str, *parts: sa.schema.SchemaItem) -> sa.Table:
    return sa.Table(name, metadata, *parts)


def _key(name: str, kind: Any = sa.Integer) -> sa.Column[Any]:
    return sa.Column(name, kind, primary_key=True, autoincrement=False)


def _required(name: str, kind: Any = sa.Integer) -> sa.Column[Any]:
    return sa.Column(name, kind, nullable=False)


task = _table(
    "task",
    sa.Column("digest", sa.String(64), primary_key=True),
    _required("role", _ROLE),
    _required("canonical", sa.LargeBinary),
    # Without them a ledger whose end was cut off would still be a sound chain.
    _required("ledger_length"),
    _required("ledger_head", _DIGEST),
    # The other server's signature over the frozen roster.
    sa.Column("roster_seal", sa.LargeBinary),
    # The newest attempt that anybody else has named: the dealer, an owner, the other
    # server.
    sa.Column("heard", sa.Integer),
    # Opened attempts of all versions: the sum of `version.opened`.
    sa.Column("opened", sa.Integer, nullable=False, server_default="0"),
)

enrolment = _table(
    "enrolment",
    _key("client", _CLIENT),
    _required("records"),
    _required("record_rate", sa.Float(53)),
    _required("in_roster", sa.Boolean),
)

attempts = _table(
    "attempt",
    _key("attempt"),
    _required("version"),
    _required("state", _STATE),
    _required("cohort_size"),
    _required("model", _DIGEST),
    sa.Column("valid_set", _DIGEST),
    sa.Column("next_model", _DIGEST),
    # The other server's signed head of this attempt, and its countersignature of ours.
    sa.Column("their_head", sa.LargeBinary),
    sa.Column("countersignature", sa.LargeBinary),
    sa.UniqueConstraint("attempt", "version", name="round_of_a_version"),
    # Rounds ask for their version's attempts: not by looking at all earlier ones.
    sa.Index("attempts_of_a_version", "version"),
    # The last line of defence: no model gets two releases, whatever the code above
    # does.
    sa.Index(
        "one_release_of_a_version",
        "version",
        unique=True,
        sqlite_where=sa.text(ONE_RELEASE),
        postgresql_where=sa.text(ONE_RELEASE),
    ),
)

versions = _table(
    "version",
    _key("version"),
    # How many attempts of it had their comparisons opened; both servers keep the larger
    # number.
    sa.Column("opened", sa.Integer, nullable=False, default=0),
    # Whether both servers are known to hold its model: only then owners hear of it.
    sa.Column("confirmed", sa.Boolean),
    # Of all facts of the versions before it: computed from the ledger, kept for speed
    # alone.
    sa.Column("history", _DIGEST),
    # What the other server signed: its coin's commitment and opening, and the model's
    # digest.
    sa.Column("commitment", sa.LargeBinary),
    sa.Column("opening", sa.LargeBinary),
    sa.Column("model_seal", sa.LargeBinary),
    # This server's own opening, where the other gave it back.
    sa.Column("own_opening", sa.LargeBinary),
    # How often both servers' operators had its coin drawn again.
    sa.Column("redrawn", sa.Integer),
)

# This server's own statements, as owners have shown them: the newest of each.
shown_statement = _table(
    "shown",
    _key("client", _CLIENT),
    _required("version"),
    _required("model", _DIGEST),
    _required("attempt"),
    _required("charged", sa.Text),
    _required("opened"),
    # Versions before it that the ledger holds a charge of this client for: a sum, kept.
    sa.Column("known", sa.Integer, nullable=False, server_default="0"),
)

# The operators' permissions, with the newest attempt that each reaches to.
permission = _table(
    "word", _key("word", _PERMISSION), _key("version"), _required("until")
)

# Apart from its attempt: a row is written whole whenever one of its columns changes.
noisy_share = _table(
    "noisy_share",
    _key("attempt"),
    _required("share", sa.LargeBinary),
    sa.ForeignKeyConstraint(
        ["attempt"], ["attempt.attempt"], name="share_has_its_attempt"
    ),
)

ledger = _table(
    "ledger",
    _key("sequence"),
    # What happened to the attempt: prepared or learned (charged), voided, or written
    # off.
    _required("event", _STATE),
    *(_required(name) for name in ("attempt", "version")),
    _required("noise_multiplier", sa.Float(53)),
    *(sa.Column(name, _DIGEST) for name in ("valid_set", "share_digest")),
    # Fresh for each entry: the hash leaves the server, and must not tell who was
    # charged.
    sa.Column("salt", sa.LargeBinary),
    *(_required(name, _DIGEST) for name in ("previous", "hash")),
    sa.UniqueConstraint("sequence", "attempt", name="entry_of_a_round"),
    sa.ForeignKeyConstraint(
        ["attempt", "version"],
        ["attempt.attempt", "attempt.version"],
        name="entry_has_its_round",
    ),
)

charge = _table(
    "charge",
    # Nobody is charged twice for an attempt.
    _key("attempt"),
    _key("client", _CLIENT),
    _required("record_rate", sa.Float(53)),
    _required("sequence"),
    sa.ForeignKeyConstraint(
        ["sequence", "attempt"],
        ["ledger.sequence", "ledger.attempt"],
        name="charge_has_its_entry",
    ),
    # Every owner asks for its own, in every round: not by looking at everybody's.
    sa.Index("charges_of_a_client", "client", "attempt"),
)

# Sums of the charges that count, kept with them: of each client, how many versions may
# have been released 1 + m times with it in them.
participation = _table(
    "participation", _key("client", _CLIENT), _key("re_releases"), _required("versions")
)

rejection = _table(
    "rejection",
    _key("attempt"),
    _key("client", _CLIENT),
    _required("reason", _REASON),
    sa.ForeignKeyConstraint(
        ["attempt"], ["attempt.attempt"], name="rejection_has_its_round"
    ),
)

spent_triple = _table("spent_triple", _key("attempt"), _key("batch"))
