"""Canary clients: presence shows no more than stated, unless norms go unchecked."""

import pytest

from precad.experiments.audit.presence import audit_presence, statement_of, task_of

CLIENTS = 500
SEED = 3


def test_who_is_there_shows_no_more_than_stated_while_norms_are_checked() -> None:
    found = audit_presence(CLIENTS, SEED, 1e-4)
    assert not found.refuted
    # Guessing would be right half of the time.
    assert found.guesses.correct > 0.6 * found.guesses.made


def test_owners_that_are_eight_times_as_long_as_allowed_are_found() -> None:
    found = audit_presence(CLIENTS, SEED, 1e-4, loose=8.0)
    assert found.refuted
    assert found.by_family >= found.epsilon


def test_the_statement_is_the_tasks_own() -> None:
    statement = statement_of(task_of(CLIENTS))
    assert statement.rate == 1.0
    assert statement.noise == pytest.approx(2**0.5 * 1.4, rel=0.01)
