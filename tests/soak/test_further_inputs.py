"""Laws and verdicts of the first tier for more inputs, from seeds that a failure prints."""

import secrets

import numpy as np
import pytest
from tests.integration.validation.conftest import Validate, validate_both, validate_with_proofs
from tests.integration.validation.test_corpus import require_right_verdicts
from tests.model import release_model
from tests.rig.commands import printed, python
from tests.rig.pages import ROOT


@pytest.mark.parametrize("validate", [validate_both, validate_with_proofs])
def test_ten_thousand_updates_get_the_integers_verdicts(validate: Validate) -> None:
    seed = secrets.randbits(32)
    print(f"seed {seed}")  # noqa: T201 -- shown where it fails
    require_right_verdicts(validate, np.random.default_rng(seed), 34)


def test_laws_hold_for_examples_drawn_at_random() -> None:
    """Those of tests/property on other examples than the first tier's, which are the same."""
    seed = secrets.randbits(32)
    options = ["--hypothesis-profile=soak", f"--hypothesis-seed={seed}"]
    done = python("-m", "pytest", "tests/property", "-q", *options, cwd=ROOT)
    assert done.returncode == 0, f"seed {seed}\n{done.stdout}"


@pytest.mark.timeout(7200)
@pytest.mark.parametrize(
    "arguments",
    [("--replace", "one"), ("--replace", "both", "--attempts", "2", "--sets", "1"), ("--mutants",)],
    ids=" ".join,
)
def test_nothing_is_broken_and_every_mutant_is_caught(arguments: tuple[str, ...]) -> None:
    """The release protocol's model with wider bounds, and every mutant of it: `make model`."""
    printed(release_model.__file__, *arguments)
