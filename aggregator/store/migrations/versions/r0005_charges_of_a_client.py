"""One client's charges are found without a look at everybody else's.

It is the oldest schema with which a server goes on: no older one was ever released.
"""

from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Add the index."""
    op.create_index("charges_of_a_client", "charge", ["client", "attempt"])
