"""Versions have joint coins, attempts are prepared, countersigned and sent, entries have salts."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

_RELEASED, _PREPARED = (
    "state IN ('released', 'done')",
    ("state IN ('prepared', 'countersigned', 'sent', 'done')"),
)


def upgrade() -> None:
    """Add what is new; the old states get the names of what they were."""
    op.drop_index("one_release_of_a_version", "attempt")
    for table, column in (
        ("attempt", sa.Column("their_head", sa.LargeBinary)),
        ("attempt", sa.Column("countersignature", sa.LargeBinary)),
        ("ledger", sa.Column("salt", sa.LargeBinary)),
        ("task", sa.Column("roster_seal", sa.LargeBinary)),
    ):
        op.add_column(table, column)
    op.execute("UPDATE attempt SET state = 'sent' WHERE state = 'released'")
    op.execute("UPDATE attempt SET state = 'written-off' WHERE state = 'forfeited'")
    # Why validation failed is no longer told: one bit of a submission is opened.
    op.execute("UPDATE rejection SET reason = 'norm-exceeded' WHERE reason = 'out-of-range'")
    op.execute("UPDATE ledger SET event = 'prepared' WHERE event = 'released'")
    op.execute("UPDATE ledger SET event = 'written-off' WHERE event = 'forfeited'")
    op.create_index(
        "one_release_of_a_version",
        "attempt",
        ["version"],
        unique=True,
        sqlite_where=sa.text(_PREPARED),
        postgresql_where=sa.text(_PREPARED),
    )
    op.create_table(
        "noisy_share",
        sa.Column("attempt", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("share", sa.LargeBinary, nullable=False),
        sa.ForeignKeyConstraint(["attempt"], ["attempt.attempt"], name="share_has_its_attempt"),
    )
    op.execute(
        "INSERT INTO noisy_share (attempt, share) "
        "SELECT attempt, noisy_share FROM attempt WHERE noisy_share IS NOT NULL"
    )
    op.drop_column("attempt", "noisy_share")
    op.create_table(
        "version",
        sa.Column("version", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("opened", sa.Integer, nullable=False),
        sa.Column("confirmed", sa.Boolean),
        sa.Column("history", sa.LargeBinary),
        sa.Column("commitment", sa.LargeBinary),
        sa.Column("opening", sa.LargeBinary),
        sa.Column("model_seal", sa.LargeBinary),
        sa.Column("own_opening", sa.LargeBinary),
    )
    op.create_table(
        "shown",
        sa.Column("client", sa.String(63), primary_key=True),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("model", sa.LargeBinary, nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("charged", sa.Text, nullable=False),
        sa.Column("opened", sa.Integer, nullable=False),
    )
    op.create_table(
        "word",
        sa.Column("word", sa.String(16), primary_key=True),
        sa.Column("version", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("until", sa.Integer, nullable=False),
    )
