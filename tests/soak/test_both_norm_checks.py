"""Ten thousand updates under both checks of one norm, from a seed that a failure prints."""

import secrets

import numpy as np
from tests.integration.validation.conftest import task_of
from tests.integration.validation.test_norm_check import (
    DIMENSION,
    same_verdicts,
    updates_of_every_kind,
)


def test_ten_thousand_updates_get_the_same_verdicts_by_both_checks() -> None:
    seed = secrets.randbits(32)
    print(f"seed {seed}")  # noqa: T201 -- shown where it fails
    task = task_of(DIMENSION, client_clip=30.1)
    accepted = same_verdicts(task, updates_of_every_kind(task, np.random.default_rng(seed), 7))
    assert 3500 < accepted < 7000
