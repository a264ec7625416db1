-- The tables as revision 0001 made them (BLOB is BYTEA on PostgreSQL).
CREATE TABLE alembic_version (
    version_num VARCHAR(32) NOT NULL,
    CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
CREATE TABLE task (
    digest VARCHAR(64) NOT NULL,
    role VARCHAR(16) NOT NULL,
    canonical BLOB NOT NULL,
    ledger_length INTEGER NOT NULL,
    ledger_head BLOB NOT NULL,
    PRIMARY KEY (digest)
);
CREATE TABLE enrolment (
    client VARCHAR(63) NOT NULL,
    records INTEGER NOT NULL,
    record_rate FLOAT NOT NULL,
    in_roster BOOLEAN NOT NULL,
    PRIMARY KEY (client)
);
CREATE TABLE training_round (
    number INTEGER NOT NULL,
    version INTEGER NOT NULL,
    state VARCHAR(16) NOT NULL,
    cohort_size INTEGER NOT NULL,
    model BLOB NOT NULL,
    valid_set BLOB,
    noisy_share BLOB,
    next_model BLOB,
    PRIMARY KEY (number),
    CONSTRAINT round_of_a_version UNIQUE (number, version)
);
CREATE UNIQUE INDEX one_release_of_a_version ON training_round (version) WHERE state IN ('released', 'done');
CREATE TABLE ledger (
    sequence INTEGER NOT NULL,
    event VARCHAR(16) NOT NULL,
    number INTEGER NOT NULL,
    version INTEGER NOT NULL,
    noise_multiplier FLOAT NOT NULL,
    valid_set BLOB,
    share_digest BLOB,
    previous BLOB NOT NULL,
    hash BLOB NOT NULL,
    PRIMARY KEY (sequence),
    CONSTRAINT entry_of_a_round UNIQUE (sequence, number),
    CONSTRAINT entry_has_its_round FOREIGN KEY(number, version) REFERENCES training_round (number, version)
);
CREATE TABLE charge (
    number INTEGER NOT NULL,
    client VARCHAR(63) NOT NULL,
    record_rate FLOAT NOT NULL,
    sequence INTEGER NOT NULL,
    PRIMARY KEY (number, client),
    CONSTRAINT charge_has_its_entry FOREIGN KEY(sequence, number) REFERENCES ledger (sequence, number)
);
CREATE TABLE rejection (
    number INTEGER NOT NULL,
    client VARCHAR(63) NOT NULL,
    reason VARCHAR(32) NOT NULL,
    PRIMARY KEY (number, client),
    CONSTRAINT rejection_has_its_round FOREIGN KEY(number) REFERENCES training_round (number)
);
CREATE TABLE spent_triple (
    number INTEGER NOT NULL,
    batch INTEGER NOT NULL,
    PRIMARY KEY (number, batch)
);
INSERT INTO alembic_version VALUES ('0001');
