"""Canary clients: presence shows no more than stated, unless norms go unchecked."""

import pytest

from precad.experiments.audit.builds import Build
from precad.experiments.audit.presence import audit, present, train
from precad.experiments.audit.run import SIGNIFICANCE
from precad.experiments.audit.verdict import Verdict

CLIENTS, ROUNDS = 50, 12
SEED = 3


def audited(build: Build) -> Verdict:
    made = present(CLIENTS, ROUNDS, SEED)
    power = made.plan(SIGNIFICANCE, build)
    return audit(made, power, train(made, build_of=build, seed=SEED), SIGNIFICANCE)


def test_who_is_there_shows_no_more_than_stated_while_norms_are_checked() -> None:
    found = audited(Build.SOUND)
    assert not found.refuted
    # Guessing would be right half of the time.
    assert found.guesses.correct > 0.6 * found.guesses.made


def test_owners_that_are_eight_times_as_long_as_allowed_are_found() -> None:
    found = audited(Build.UNCHECKED)
    assert found.power.caught == 1.0
    assert found.refuted
    assert found.by_family >= found.epsilon


def test_the_statement_is_of_one_round_and_the_tasks_own() -> None:
    statement = present(CLIENTS, ROUNDS, SEED).statement
    assert (statement.rate, statement.rounds) == (1.0, 1)
    assert statement.noise == pytest.approx(2**0.5 * 0.7, rel=0.01)
