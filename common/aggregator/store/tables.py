"""The tables of one server's database for one task.

What stands here and what the migrations make is the same; a test compares them.
"""

from sqlalchemy import (
    Boolean,
    Column,
    Float,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    text,
)

metadata = MetaData()

task = Table(
    "task",
    metadata,
    Column("digest", String(64), primary_key=True),
    Column("role", String(16), nullable=False),
    Column("canonical", LargeBinary, nullable=False),
    # The ledger's length and its newest hash: without them a ledger whose end was cut off
    # would still be a sound chain.
    Column("ledger_length", Integer, nullable=False),
    Column("ledger_head", LargeBinary, nullable=False),
)

enrolment = Table(
    "enrolment",
    metadata,
    Column("client", String(63), primary_key=True),
    Column("records", Integer, nullable=False),
    Column("record_rate", Float(53), nullable=False),
    Column("in_roster", Boolean, nullable=False),
)

training_round = Table(
    "training_round",
    metadata,
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("version", Integer, nullable=False),
    Column("state", String(16), nullable=False),
    Column("cohort_size", Integer, nullable=False),
    Column("model", LargeBinary, nullable=False),
    Column("valid_set", LargeBinary),
    Column("noisy_share", LargeBinary),
    Column("next_model", LargeBinary),
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
    Column("event", String(16), nullable=False),
    Column("number", Integer, nullable=False),
    Column("version", Integer, nullable=False),
    Column("noise_multiplier", Float(53), nullable=False),
    Column("valid_set", LargeBinary),
    Column("share_digest", LargeBinary),
    Column("previous", LargeBinary, nullable=False),
    Column("hash", LargeBinary, nullable=False),
)

charge = Table(
    "charge",
    metadata,
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("client", String(63), primary_key=True),
    Column("record_rate", Float(53), nullable=False),
    Column("sequence", Integer, nullable=False),
)

rejection = Table(
    "rejection",
    metadata,
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("client", String(63), primary_key=True),
    Column("reason", String(32), nullable=False),
)

spent_triple = Table(
    "spent_triple",
    metadata,
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("batch", Integer, primary_key=True, autoincrement=False),
)
