CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL,
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
CREATE TABLE attempt (
	attempt INTEGER NOT NULL,
	version INTEGER NOT NULL,
	state VARCHAR(16) NOT NULL,
	cohort_size INTEGER NOT NULL,
	model BLOB NOT NULL,
	valid_set BLOB,
	next_model BLOB,
	their_head BLOB,
	countersignature BLOB,
	PRIMARY KEY (attempt),
	CONSTRAINT round_of_a_version UNIQUE (attempt, version)
);
CREATE TABLE enrolment (
	client VARCHAR(63) NOT NULL,
	records INTEGER NOT NULL,
	record_rate FLOAT NOT NULL,
	in_roster BOOLEAN NOT NULL,
	PRIMARY KEY (client)
);
CREATE TABLE shown (
	client VARCHAR(63) NOT NULL,
	version INTEGER NOT NULL,
	model BLOB NOT NULL,
	attempt INTEGER NOT NULL,
	charged TEXT NOT NULL,
	opened INTEGER NOT NULL,
	PRIMARY KEY (client)
);
CREATE TABLE spent_triple (
	attempt INTEGER NOT NULL,
	batch INTEGER NOT NULL,
	PRIMARY KEY (attempt, batch)
);
CREATE TABLE task (
	digest VARCHAR(64) NOT NULL,
	role VARCHAR(16) NOT NULL,
	canonical BLOB NOT NULL,
	ledger_length INTEGER NOT NULL,
	ledger_head BLOB NOT NULL,
	roster_seal BLOB,
	heard INTEGER,
	PRIMARY KEY (digest)
);
CREATE TABLE version (
	version INTEGER NOT NULL,
	opened INTEGER NOT NULL,
	confirmed BOOLEAN,
	history BLOB,
	commitment BLOB,
	opening BLOB,
	model_seal BLOB,
	own_opening BLOB,
	redrawn INTEGER,
	PRIMARY KEY (version)
);
CREATE TABLE word (
	word VARCHAR(16) NOT NULL,
	version INTEGER NOT NULL,
	until INTEGER NOT NULL,
	PRIMARY KEY (word, version)
);
CREATE TABLE ledger (
	sequence INTEGER NOT NULL,
	event VARCHAR(16) NOT NULL,
	attempt INTEGER NOT NULL,
	version INTEGER NOT NULL,
	noise_multiplier FLOAT NOT NULL,
	valid_set BLOB,
	share_digest BLOB,
	salt BLOB,
	previous BLOB NOT NULL,
	hash BLOB NOT NULL,
	PRIMARY KEY (sequence),
	CONSTRAINT entry_of_a_round UNIQUE (sequence, attempt),
	CONSTRAINT entry_has_its_round FOREIGN KEY(attempt, version) REFERENCES attempt (attempt, version)
);
CREATE TABLE charge (
	attempt INTEGER NOT NULL,
	client VARCHAR(63) NOT NULL,
	record_rate FLOAT NOT NULL,
	sequence INTEGER NOT NULL,
	PRIMARY KEY (attempt, client),
	CONSTRAINT charge_has_its_entry FOREIGN KEY(sequence, attempt) REFERENCES ledger (sequence, attempt)
);
CREATE TABLE noisy_share (
	attempt INTEGER NOT NULL,
	share BLOB NOT NULL,
	PRIMARY KEY (attempt),
	CONSTRAINT share_has_its_attempt FOREIGN KEY(attempt) REFERENCES attempt (attempt)
);
CREATE TABLE rejection (
	attempt INTEGER NOT NULL,
	client VARCHAR(63) NOT NULL,
	reason VARCHAR(32) NOT NULL,
	PRIMARY KEY (attempt, client),
	CONSTRAINT rejection_has_its_round FOREIGN KEY(attempt) REFERENCES attempt (attempt)
);
CREATE UNIQUE INDEX one_release_of_a_version ON attempt (version) WHERE state IN ('prepared', 'countersigned', 'sent', 'done');
CREATE INDEX charges_of_a_client ON charge (client, attempt);
INSERT INTO alembic_version VALUES ('0005');
