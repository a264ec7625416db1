"""The tables of one server's database for one task.

These tables and those that the migrations make of an older database are the same; a
test compares them. Foreign keys say what belongs to what: the database refuses a charge
without its entry and an entry without its attempt, and SQLite finds both in a file that
was changed from outside (``audit``).
"""

from collections.abc import Callable
from enum import Enum
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.types import TypeDecorator, TypeEngine

from precad.common import ClientId, Digest, PrecadError, Rejection, Role, StorageFailure


class AttemptState(Enum):
    """How far an attempt has come on this server."""

    OPEN = "open"
    """Nothing has left this server; a crash now costs nothing but the attempt."""
    ABANDONED = "abandoned"
    """Broken off before it was prepared."""
    PREPARED = "prepared"
    """Charged, and the noisy share is persisted: nothing about it may change from now
    on."""
    COUNTERSIGNED = "countersigned"
    """This server has countersigned the other's head, and never voids the attempt."""
    SENT = "sent"
    """This server holds the other's countersignature: the noisy share may leave."""
    DONE = "done"
    """Both noisy shares were held and the next model is persisted."""
    VOIDED = "voided"
    """Prepared on one server only, which had countersigned nothing: it costs
    nothing."""
    WRITTEN_OFF = "written-off"
    """Its noisy share may have left, and the attempt is lost beyond repair: its charge
    stands, and its release is never used."""
    LEARNED = "learned"
    """Its charge was forgotten by this server, and learned again."""


PENDING = (AttemptState.PREPARED, AttemptState.COUNTERSIGNED, AttemptState.SENT)
"""Prepared and not over: no other attempt opens meanwhile."""
BOUND = (AttemptState.COUNTERSIGNED, AttemptState.SENT)
"""This server has signed that it is prepared: never voided."""
CHARGED = (*PENDING, AttemptState.DONE, AttemptState.WRITTEN_OFF, AttemptState.LEARNED)
"""The attempt costs its clients a participation."""


class Permission(Enum):
    """What only the operators of both servers can allow, for one version."""

    ATTEMPTS = "attempts"
    """Go on trying: many attempts have failed, or a release may have left already."""
    WRITE_OFF = "write-off"
    """Give up a prepared attempt that the other server has lost: its charge stands, and
    its release is never used."""
    CLAIMED = "claimed"
    """Charge attempts that the other server alone says there were."""
    COIN = "coin"
    """A coin key is lost: both servers draw new coins for this version."""
    FEW = "few"
    """Go on for some rounds although fewer owners count than the task wishes."""


_Plain = Any
"""A column's value as the database driver takes and gives it."""
_ColumnType = TypeEngine[_Plain] | type[TypeEngine[_Plain]]
Kind = TypeVar("Kind")


class _Converted(TypeDecorator[Kind]):
    """A column whose values are of a type of precad's own, such as Digest.

    Args:
        column_type: the database's type.
        kind: makes the value from what the database holds.
        attribute: the value's attribute that is stored.

    Reading raises StorageFailure: the column holds what no server writes.
    """

    impl = sa.String
    # SQLAlchemy tells such types apart by attributes with the parameters' names.
    cache_ok = True

    def __init__(
        self,
        column_type: TypeEngine[_Plain],
        kind: Callable[[_Plain], Kind],
        attribute: str = "value",
    ) -> None:
        super().__init__()
        self.column_type = column_type
        self.kind = kind
        self.attribute = attribute

    def load_dialect_impl(self, dialect: sa.Dialect) -> TypeEngine[_Plain]:
        """Return the database's type of the column."""
        return dialect.type_descriptor(self.column_type)

    def process_bind_param(
        self,
        value: Kind | None,
        dialect: sa.Dialect,  # noqa: ARG002
    ) -> _Plain:
        """Return what the database stores for ``value``."""
        return None if value is None else getattr(value, self.attribute)

    def process_result_value(
        self,
        value: _Plain,
        dialect: sa.Dialect,  # noqa: ARG002
    ) -> Kind | None:
        """Return the value that the database stores as ``value``."""
        try:
            return None if value is None else self.kind(value)
        except (ValueError, TypeError, PrecadError) as error:
            raise StorageFailure(
                f"the database holds what no server writes: {error}"
            ) from None


_DIGEST = _Converted(sa.LargeBinary(), Digest)
_CLIENT = _Converted(sa.String(63), ClientId, attribute="name")
_ROLE = _Converted(sa.String(16), Role)
_STATE = _Converted(sa.String(16), AttemptState)
_REASON = _Converted(sa.String(32), Rejection)
_SUBMISSION = sa.String(12)
_PERMISSION = _Converted(sa.String(16), Permission)

ONE_RELEASE = "state IN ('prepared', 'countersigned', 'sent', 'done')"
"""SQL condition for attempts of which a version has one at most."""

metadata = sa.MetaData()


def _table(name: str, *parts: sa.schema.SchemaItem) -> sa.Table:
    return sa.Table(name, metadata, *parts)


def _key(name: str, column_type: _ColumnType = sa.Integer) -> sa.Column[_Plain]:
    """Return a column of the primary key, with values that precad chooses."""
    return sa.Column(name, column_type, primary_key=True, autoincrement=False)


def _required(
    name: str, column_type: _ColumnType = sa.Integer, **more: _Plain
) -> sa.Column[_Plain]:
    return sa.Column(name, column_type, nullable=False, **more)


def _optional(
    name: str, column_type: _ColumnType = sa.LargeBinary
) -> sa.Column[_Plain]:
    return sa.Column(name, column_type)


task = _table(
    "task",
    sa.Column("digest", sa.String(64), primary_key=True),
    _required("role", _ROLE),
    _required("canonical", sa.LargeBinary),
    # Without them a ledger whose end was cut off would still be a sound chain.
    _required("ledger_length"),
    _required("ledger_head", _DIGEST),
    # The other server's signature over the frozen roster.
    _optional("roster_seal"),
    # The newest attempt that anybody else has named: the dealer, an owner, the other
    # server.
    _optional("heard", sa.Integer),
    # Opened attempts of all versions: the sum of `version.opened`.
    _required("opened", server_default="0"),
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
    _optional("valid_set", _DIGEST),
    _optional("next_model", _DIGEST),
    # The other server's signed head of this attempt, and its countersignature of ours.
    _optional("their_head"),
    _optional("countersignature"),
    sa.UniqueConstraint("attempt", "version", name="round_of_a_version"),
    # Each round looks up its version's attempts, and shouldn't read all earlier ones.
    sa.Index("attempts_of_a_version", "version"),
    # The last line of defence: no version gets two releases, whatever the code that
    # uses this table does.
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
    # How many of its attempts had their comparisons opened; both servers keep the
    # larger number.
    _required("opened", default=0),
    # Whether both servers are known to hold its model: only then do owners hear of it.
    _optional("confirmed", sa.Boolean),
    # Digest of all facts of the versions before it: computed from the ledger, kept for
    # speed alone.
    _optional("history", _DIGEST),
    # Signed by the other server: its coin's commitment and opening, and the model's
    # digest.
    _optional("commitment"),
    _optional("opening"),
    _optional("model_seal"),
    # This server's own opening of its coin, where the other server gave it back.
    _optional("own_opening"),
    # How often both servers' operators had its coin drawn again.
    _optional("redrawn", sa.Integer),
)

# Statements that this server once signed and that owners have shown it: the newest of
# each owner.
shown_statement = _table(
    "shown",
    _key("client", _CLIENT),
    _required("version"),
    _required("model", _DIGEST),
    _required("attempt"),
    _required("charged", sa.Text),
    _required("opened"),
    # In how many versions before the statement's the ledger charges this client: a sum
    # that is kept up to date.
    _required("known", server_default="0"),
)

# The operators' permissions, each with the newest attempt that it allows.
permission = _table(
    "word", _key("word", _PERMISSION), _key("version"), _required("until")
)

# A table of its own, since a row is written whole whenever one of its columns changes.
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
    # What happened to the attempt: prepared or learned (both charge its clients),
    # voided, or written off.
    _required("event", _STATE),
    _required("attempt"),
    _required("version"),
    _required("noise_multiplier", sa.Float(53)),
    _optional("valid_set", _DIGEST),
    _optional("share_digest", _DIGEST),
    # Fresh for each entry: the hash leaves the server, and must not tell who was
    # charged.
    _optional("salt"),
    _required("previous", _DIGEST),
    _required("hash", _DIGEST),
    sa.UniqueConstraint("sequence", "attempt", name="entry_of_a_round"),
    sa.ForeignKeyConstraint(
        ["attempt", "version"],
        ["attempt.attempt", "attempt.version"],
        name="entry_has_its_round",
    ),
)

charge = _table(
    "charge",
    # The key: nobody is charged twice for an attempt.
    _key("attempt"),
    _key("client", _CLIENT),
    _required("record_rate", sa.Float(53)),
    _required("sequence"),
    # The submission's id, as logs have it; no hash of the chain covers it.
    _optional("submission", _SUBMISSION),
    sa.ForeignKeyConstraint(
        ["sequence", "attempt"],
        ["ledger.sequence", "ledger.attempt"],
        name="charge_has_its_entry",
    ),
    # Each owner asks for its own charges in every round; nobody else's should be read.
    sa.Index("charges_of_a_client", "client", "attempt"),
)

# Sums of the charges that count, changed together with them: for each client, how many
# versions may have been released 1 + m times with it in them (m is ``re_releases``).
participation = _table(
    "participation", _key("client", _CLIENT), _key("re_releases"), _required("versions")
)

rejection = _table(
    "rejection",
    _key("attempt"),
    _key("client", _CLIENT),
    _required("reason", _REASON),
    _optional("submission", _SUBMISSION),
    sa.ForeignKeyConstraint(
        ["attempt"], ["attempt.attempt"], name="rejection_has_its_round"
    ),
)

spent_triple = _table("spent_triple", _key("attempt"), _key("batch"))
