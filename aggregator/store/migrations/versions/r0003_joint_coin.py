"""Versions have coins, attempts are countersigned; only a reader's copy takes this."""

from alembic import op

revision = "0003"
down_revision = "0002"

_STEPS = """
DROP INDEX IF EXISTS one_release_of_a_version;
ALTER TABLE attempt ADD COLUMN their_head BLOB;
ALTER TABLE attempt ADD COLUMN countersignature BLOB;
ALTER TABLE ledger ADD COLUMN salt BLOB;
ALTER TABLE task ADD COLUMN roster_seal BLOB;
UPDATE attempt SET state = 'sent' WHERE state = 'released';
UPDATE attempt SET state = 'written-off' WHERE state = 'forfeited';
UPDATE rejection SET reason = 'norm-exceeded' WHERE reason = 'out-of-range';
UPDATE rejection SET reason = 'wrong-attempt' WHERE reason = 'wrong-round';
UPDATE ledger SET event = 'prepared' WHERE event = 'released';
UPDATE ledger SET event = 'written-off' WHERE event = 'forfeited';
CREATE TABLE noisy_share (
    attempt INTEGER PRIMARY KEY NOT NULL REFERENCES attempt (attempt),
    share BLOB NOT NULL
);
INSERT INTO noisy_share (attempt, share)
    SELECT attempt, noisy_share FROM attempt WHERE noisy_share IS NOT NULL;
ALTER TABLE attempt DROP COLUMN noisy_share;
CREATE TABLE version (
    version INTEGER PRIMARY KEY NOT NULL,
    opened INTEGER NOT NULL,
    confirmed BOOLEAN,
    history BLOB,
    commitment BLOB,
    opening BLOB,
    model_seal BLOB,
    own_opening BLOB
);
CREATE TABLE shown (
    client VARCHAR(63) PRIMARY KEY NOT NULL,
    version INTEGER NOT NULL,
    model BLOB NOT NULL,
    attempt INTEGER NOT NULL,
    charged TEXT NOT NULL,
    opened INTEGER NOT NULL
);
CREATE TABLE word (
    word VARCHAR(16) NOT NULL,
    version INTEGER NOT NULL,
    until INTEGER NOT NULL,
    PRIMARY KEY (word, version)
)
"""


def upgrade() -> None:
    """Add what is new; the old states and events get the names of what they were."""
    for step in _STEPS.split(";"):
        op.execute(step)
