"""The tables of one server's database for one task."""

from sqlalchemy import (
    Boolean,
    Column,
    Float,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
)

metadata = MetaData()

task = Table(
    "task",
    metadata,
    Column("digest", String(64), primary_key=True),
    Column("role", String(16), nullable=False),
    Column("canonical", LargeBinary, nullable=False),
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
)

charge = Table(
    "charge",
    metadata,
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("client", String(63), primary_key=True),
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
