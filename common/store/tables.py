"""The tables of one server's database for one task.

What stands here and what the migrations make is the same; a test compares them. Foreign keys say
what belongs to what: the database refuses a charge without its entry and an entry without its
round, and in a file that was changed from outside SQLite finds them (``audit``).
"""

from collections.abc import Callable
from typing import Any

from sqlalchemy import (
    Boolean,
    Column,
    Dialect,
    Float,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    UniqueConstraint,
    text,
)
from sqlalchemy.types import TypeDecorator, TypeEngine

from precad.common.errors import PrecadError, Rejection, StorageFailure
from precad.common.identifiers import ClientId, Digest, Role
from precad.common.round.journal import RoundState


class _Kept(TypeDecorator[Any]):
    """A type of precad's in a column. What no server writes there is a StorageFailure.

    Args:
        stored: the column's own type.
        kind: makes the value from what is stored.
        plain: the value's attribute that is stored.
    """

    impl = String
    cache_ok = True

    def __init__(
        self, stored: TypeEngine[Any], kind: Callable[[Any], Any], plain: str = "value"
    ) -> None:
        super().__init__()
        self.stored, self.kind, self.plain = stored, kind, plain

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """The column's own type."""
        return dialect.type_descriptor(self.stored)

    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:  # noqa: ARG002
        """To the database."""
        return None if value is None else getattr(value, self.plain)

    def process_result_value(self, value: Any, dialect: Dialect) -> Any:  # noqa: ARG002
        """From the database."""
        try:
            return None if value is None else self.kind(value)
        except (ValueError, TypeError, PrecadError) as error:
            raise StorageFailure(f"the database holds what no server writes: {error}") from None


_DIGEST = _Kept(LargeBinary(), Digest)
_CLIENT = _Kept(String(63), ClientId, "name")
_ROLE, _STATE = _Kept(String(16), Role), _Kept(String(16), RoundState)
_REASON = _Kept(String(32), Rejection)

metadata = MetaData()

task = Table(
    "task",
    metadata,
    Column("digest", String(64), primary_key=True),
    Column("role", _ROLE, nullable=False),
    Column("canonical", LargeBinary, nullable=False),
    # The ledger's length and its newest hash: without them a ledger whose end was cut off
    # would still be a sound chain.
    Column("ledger_length", Integer, nullable=False),
    Column("ledger_head", _DIGEST, nullable=False),
)

enrolment = Table(
    "enrolment",
    metadata,
    Column("client", _CLIENT, primary_key=True),
    Column("records", Integer, nullable=False),
    Column("record_rate", Float(53), nullable=False),
    Column("in_roster", Boolean, nullable=False),
)

training_round = Table(
    "training_round",
    metadata,
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("version", Integer, nullable=False),
    Column("state", _STATE, nullable=False),
    Column("cohort_size", Integer, nullable=False),
    Column("model", _DIGEST, nullable=False),
    Column("valid_set", _DIGEST),
    Column("noisy_share", LargeBinary),
    Column("next_model", _DIGEST),
    UniqueConstraint("number", "version", name="round_of_a_version"),
    # The last line of defence: no model gets two releases, whatever the code above does.
    Index(
        "one_release_of_a_version",
        "version",
        unique=True,
        sqlite_where=text("state IN ('released', 'done')"),
        postgresql_where=text("state IN ('released', 'done')"),
    ),
)

ledger = Table(
    "ledger",
    metadata,
    Column("sequence", Integer, primary_key=True, autoincrement=False),
    # As what the round was charged: released or forfeited.
    Column("event", _STATE, nullable=False),
    Column("number", Integer, nullable=False),
    Column("version", Integer, nullable=False),
    Column("noise_multiplier", Float(53), nullable=False),
    Column("valid_set", _DIGEST),
    Column("share_digest", _DIGEST),
    Column("previous", _DIGEST, nullable=False),
    Column("hash", _DIGEST, nullable=False),
    UniqueConstraint("sequence", "number", name="entry_of_a_round"),
    ForeignKeyConstraint(
        ["number", "version"],
        ["training_round.number", "training_round.version"],
        name="entry_has_its_round",
    ),
)

charge = Table(
    "charge",
    metadata,
    # Nobody is charged twice for a round.
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("client", _CLIENT, primary_key=True),
    Column("record_rate", Float(53), nullable=False),
    Column("sequence", Integer, nullable=False),
    ForeignKeyConstraint(
        ["sequence", "number"], ["ledger.sequence", "ledger.number"], name="charge_has_its_entry"
    ),
)

rejection = Table(
    "rejection",
    metadata,
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("client", _CLIENT, primary_key=True),
    Column("reason", _REASON, nullable=False),
    ForeignKeyConstraint(["number"], ["training_round.number"], name="rejection_has_its_round"),
)

spent_triple = Table(
    "spent_triple",
    metadata,
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("batch", Integer, primary_key=True, autoincrement=False),
)
