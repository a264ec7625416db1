"""The state of a server: task, roster, rounds, ledger, rejections, spent triples."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Make the tables."""
    op.create_table(
        "task",
        sa.Column("digest", sa.String(64), primary_key=True),
        sa.Column("role", sa.String(16), nullable=False),
        sa.Column("canonical", sa.LargeBinary, nullable=False),
        sa.Column("ledger_length", sa.Integer, nullable=False),
        sa.Column("ledger_head", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "enrolment",
        sa.Column("client", sa.String(63), primary_key=True),
        sa.Column("records", sa.Integer, nullable=False),
        sa.Column("record_rate", sa.Float(53), nullable=False),
        sa.Column("in_roster", sa.Boolean, nullable=False),
    )
    op.create_table(
        "training_round",
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("cohort_size", sa.Integer, nullable=False),
        sa.Column("model", sa.LargeBinary, nullable=False),
        sa.Column("valid_set", sa.LargeBinary),
        sa.Column("noisy_share", sa.LargeBinary),
        sa.Column("next_model", sa.LargeBinary),
    )
    released = sa.text("state IN ('released', 'done')")
    op.create_index(
        "one_release_of_a_version",
        "training_round",
        ["version"],
        unique=True,
        sqlite_where=released,
        postgresql_where=released,
    )
    op.create_table(
        "ledger",
        sa.Column("sequence", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("event", sa.String(16), nullable=False),
        sa.Column("number", sa.Integer, nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("noise_multiplier", sa.Float(53), nullable=False),
        sa.Column("valid_set", sa.LargeBinary),
        sa.Column("share_digest", sa.LargeBinary),
        sa.Column("previous", sa.LargeBinary, nullable=False),
        sa.Column("hash", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "charge",
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("client", sa.String(63), primary_key=True),
        sa.Column("record_rate", sa.Float(53), nullable=False),
        sa.Column("sequence", sa.Integer, nullable=False),
    )
    op.create_table(
        "rejection",
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("client", sa.String(63), primary_key=True),
        sa.Column("reason", sa.String(32), nullable=False),
    )
    op.create_table(
        "spent_triple",
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("batch", sa.Integer, primary_key=True, autoincrement=False),
    )
