"""The tables of one server's database for one task.

What stands here and what the migrations make of an older database is the same; a test compares
them. Foreign keys say what belongs to what: the database refuses a charge without its entry and
an entry without its attempt, and in a file that was changed from outside SQLite finds them
(``audit``).
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
    """Charged, and the noisy share is persisted: nothing about it may change any more."""
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
    """A prepared attempt that the other server has lost: its charge stands, it is never used."""
    CLAIMED = "claimed"
    """Attempts that the other server alone says there were: they are charged."""
    COIN = "coin"
    """A coin key is lost: both servers take new ones for this version."""


class _Kept(TypeDecorator[Any]):
    """A type of precad's in a column. What no server writes there is a StorageFailure.

    Args:
        stored: the column's own type.
        kind: makes the value from what is stored.
        plain: the value's attribute that is stored.
    """

    impl = sa.String
    cache_ok = True

    def __init__(
        self, stored: TypeEngine[Any], kind: Callable[[Any], Any], plain: str = "value"
    ) -> None:
        super().__init__()
        self.stored, self.kind, self.plain = stored, kind, plain

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
            raise StorageFailure(f"the database holds what no server writes: {error}") from None


_DIGEST = _Kept(sa.LargeBinary(), Digest)
_CLIENT = _Kept(sa.String(63), ClientId, "name")
_ROLE, _STATE = _Kept(sa.String(16), Role), _Kept(sa.String(16), AttemptState)
_REASON, _PERMISSION = _Kept(sa.String(32), Rejection), _Kept(sa.String(16), Permission)

ONE_RELEASE = "state IN ('prepared', 'countersigned', 'sent', 'done')"

metadata = sa.MetaData()

task = sa.Table(
    "task",
    metadata,
    sa.Column("digest", sa.String(64), primary_key=True),
    sa.Column("role", _ROLE, nullable=False),
    sa.Column("canonical", sa.LargeBinary, nullable=False),
    # The ledger's length and its newest hash: without them a ledger whose end was cut off
    # would still be a sound chain.
    sa.Column("ledger_length", sa.Integer, nullable=False),
    sa.Column("ledger_head", _DIGEST, nullable=False),
    # The other server's signature over the frozen roster.
    sa.Column("roster_seal", sa.LargeBinary),
    # The newest attempt that anybody else has named: the dealer, an owner, the other server.
    sa.Column("heard", sa.Integer),
    # Opened attempts of all versions: the sum of `version.opened`.
    sa.Column("opened", sa.Integer, nullable=False, server_default="0"),
)

enrolment = sa.Table(
    "enrolment",
    metadata,
    sa.Column("client", _CLIENT, primary_key=True),
    sa.Column("records", sa.Integer, nullable=False),
    sa.Column("record_rate", sa.Float(53), nullable=False),
    sa.Column("in_roster", sa.Boolean, nullable=False),
)

attempts = sa.Table(
    "attempt",
    metadata,
    sa.Column("attempt", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("version", sa.Integer, nullable=False),
    sa.Column("state", _STATE, nullable=False),
    sa.Column("cohort_size", sa.Integer, nullable=False),
    sa.Column("model", _DIGEST, nullable=False),
    sa.Column("valid_set", _DIGEST),
    sa.Column("next_model", _DIGEST),
    # The other server's signed head of this attempt, and its countersignature of ours.
    sa.Column("their_head", sa.LargeBinary),
    sa.Column("countersignature", sa.LargeBinary),
    sa.UniqueConstraint("attempt", "version", name="round_of_a_version"),
    # Rounds ask for their version's attempts: not by looking at all earlier ones.
    sa.Index("attempts_of_a_version", "version"),
    # The last line of defence: no model gets two releases, whatever the code above does.
    sa.Index(
        "one_release_of_a_version",
        "version",
        unique=True,
        sqlite_where=sa.text(ONE_RELEASE),
        postgresql_where=sa.text(ONE_RELEASE),
    ),
)

versions = sa.Table(
    "version",
    metadata,
    sa.Column("version", sa.Integer, primary_key=True, autoincrement=False),
    # How many attempts of it had their comparisons opened; both servers keep the larger number.
    sa.Column("opened", sa.Integer, nullable=False, default=0),
    # Whether both servers are known to hold its model: only then owners hear of it.
    sa.Column("confirmed", sa.Boolean),
    # Of all facts of the versions before it: computed from the ledger, kept for speed alone.
    sa.Column("history", _DIGEST),
    # What the other server signed: its coin's commitment and opening, and the model's digest.
    sa.Column("commitment", sa.LargeBinary),
    sa.Column("opening", sa.LargeBinary),
    sa.Column("model_seal", sa.LargeBinary),
    # This server's own opening, where the other gave it back.
    sa.Column("own_opening", sa.LargeBinary),
    # How often both servers' operators had its coin drawn again.
    sa.Column("redrawn", sa.Integer),
)

# This server's own statements, as owners have shown them: the newest of each.
shown_statement = sa.Table(
    "shown",
    metadata,
    sa.Column("client", _CLIENT, primary_key=True),
    sa.Column("version", sa.Integer, nullable=False),
    sa.Column("model", _DIGEST, nullable=False),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("charged", sa.Text, nullable=False),
    sa.Column("opened", sa.Integer, nullable=False),
    # Versions before it that the ledger holds a charge of this client for: a sum, kept.
    sa.Column("known", sa.Integer, nullable=False, server_default="0"),
)

permission = sa.Table(
    "word",
    metadata,
    sa.Column("word", _PERMISSION, primary_key=True),
    sa.Column("version", sa.Integer, primary_key=True, autoincrement=False),
    # The newest attempt that the operators' permission reaches to.
    sa.Column("until", sa.Integer, nullable=False),
)

# Apart from its attempt: a row is written whole whenever one of its columns changes.
noisy_share = sa.Table(
    "noisy_share",
    metadata,
    sa.Column("attempt", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("share", sa.LargeBinary, nullable=False),
    sa.ForeignKeyConstraint(["attempt"], ["attempt.attempt"], name="share_has_its_attempt"),
)

ledger = sa.Table(
    "ledger",
    metadata,
    sa.Column("sequence", sa.Integer, primary_key=True, autoincrement=False),
    # What happened to the attempt: prepared or learned (charged), voided, or written off.
    sa.Column("event", _STATE, nullable=False),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("version", sa.Integer, nullable=False),
    sa.Column("noise_multiplier", sa.Float(53), nullable=False),
    sa.Column("valid_set", _DIGEST),
    sa.Column("share_digest", _DIGEST),
    # Fresh for each entry: the hash leaves the server, and must not tell who was charged.
    sa.Column("salt", sa.LargeBinary),
    sa.Column("previous", _DIGEST, nullable=False),
    sa.Column("hash", _DIGEST, nullable=False),
    sa.UniqueConstraint("sequence", "attempt", name="entry_of_a_round"),
    sa.ForeignKeyConstraint(
        ["attempt", "version"], ["attempt.attempt", "attempt.version"], name="entry_has_its_round"
    ),
)

charge = sa.Table(
    "charge",
    metadata,
    # Nobody is charged twice for an attempt.
    sa.Column("attempt", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("client", _CLIENT, primary_key=True),
    sa.Column("record_rate", sa.Float(53), nullable=False),
    sa.Column("sequence", sa.Integer, nullable=False),
    sa.ForeignKeyConstraint(
        ["sequence", "attempt"], ["ledger.sequence", "ledger.attempt"], name="charge_has_its_entry"
    ),
    # Every owner asks for its own, in every round: not by looking at everybody's.
    sa.Index("charges_of_a_client", "client", "attempt"),
)

# Sums of the charges that count, kept with them: of each client, how many versions may have been
# released 1 + m times with it in them.
participation = sa.Table(
    "participation",
    metadata,
    sa.Column("client", _CLIENT, primary_key=True),
    sa.Column("re_releases", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("versions", sa.Integer, nullable=False),
)

rejection = sa.Table(
    "rejection",
    metadata,
    sa.Column("attempt", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("client", _CLIENT, primary_key=True),
    sa.Column("reason", _REASON, nullable=False),
    sa.ForeignKeyConstraint(["attempt"], ["attempt.attempt"], name="rejection_has_its_round"),
)

spent_triple = sa.Table(
    "spent_triple",
    metadata,
    sa.Column("attempt", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("batch", sa.Integer, primary_key=True, autoincrement=False),
)
