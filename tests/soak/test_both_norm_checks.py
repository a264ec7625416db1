"""Ten thousand updates under both checks of one norm, from a seed that a failure prints."""

import secrets

import numpy as np
import pytest
from tests.integration.validation.conftest import Validate, validate_both, validate_with_proofs
from tests.integration.validation.test_corpus import require_right_verdicts


@pytest.mark.parametrize("validate", [validate_both, validate_with_proofs])
def test_ten_thousand_updates_get_the_integers_verdicts(validate: Validate) -> None:
    seed = secrets.randbits(32)
    print(f"seed {seed}")  # noqa: T201 -- shown where it fails
    require_right_verdicts(validate, np.random.default_rng(seed), 34)
