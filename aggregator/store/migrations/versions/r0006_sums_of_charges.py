"""Sums are kept of each client's charges, of opened attempts and of what statements name."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"

_OF_A_VERSION = (
    "SELECT charge.client AS client, attempt.version AS version, COUNT(*) AS releases "
    "FROM charge JOIN attempt ON attempt.attempt = charge.attempt "
    "WHERE attempt.state IN "
    "('prepared', 'countersigned', 'sent', 'done', 'written-off', 'learned') "
    "GROUP BY charge.client, attempt.version"
)


def upgrade() -> None:
    """Add tables, columns and an index, and compute the sums for what is there."""
    op.create_index("attempts_of_a_version", "attempt", ["version"])
    op.add_column(
        "task", sa.Column("opened", sa.Integer, nullable=False, server_default="0")
    )
    op.add_column(
        "shown", sa.Column("known", sa.Integer, nullable=False, server_default="0")
    )
    op.create_table(
        "participation",
        sa.Column("client", sa.String(63), primary_key=True),
        sa.Column("re_releases", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("versions", sa.Integer, nullable=False),
    )
    op.execute(
        "INSERT INTO participation (client, re_releases, versions) "  # noqa: S608 -- constant
        f"SELECT client, releases - 1, COUNT(*) FROM ({_OF_A_VERSION}) AS found "
        "GROUP BY client, releases - 1"
    )
    op.execute(
        "UPDATE task SET opened = COALESCE((SELECT SUM(opened) FROM version), 0)"
    )
    op.execute(
        f"UPDATE shown SET known = (SELECT COUNT(*) FROM ({_OF_A_VERSION}) AS found "  # noqa: S608
        "WHERE found.client = shown.client AND found.version < shown.version)"
    )
    # An attempt that a statement names has been heard of; one number says so from now
    # on.
    op.execute(
        "UPDATE task SET heard = (SELECT MAX(attempt) FROM shown) "
        "WHERE COALESCE(heard, -1) < (SELECT MAX(attempt) FROM shown)"
    )
