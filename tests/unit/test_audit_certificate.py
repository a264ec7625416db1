"""A certificate that is attacked: a flip or a broken promise is shown, bad luck isn't."""

import numpy as np
import pytest

from precad.common.certify.gaussian import GaussianDP
from precad.common.certify.intervals import ConfidenceBudget, simuem
from precad.experiments.audit.certificate import _judged, audit_certificates, certifiable

MODELS = 24
SIGNIFICANCE = 0.2
"""So few models can show at all."""
SEED = 1


@pytest.mark.parametrize(
    ("votes", "expected"),
    [
        ([190, 10], (False, False)),
        # Below what is promised for one attacker, and still the majority.
        ([125, 75], (False, True)),
        ([20, 180], (True, True)),
    ],
)
def test_votes_refute_what_they_contradict(votes: list[int], expected: tuple[bool, bool]) -> None:
    before = simuem([[200, 0]], ConfidenceBudget(0.9999, 2, strict=True), 200)
    after = np.array([votes])
    found = _judged(1, np.array([0]), after, before, GaussianDP(0.5), 1e-4)
    assert (found.flipped, found.refuted) == expected
    assert found.certified_at_least == pytest.approx(0.87, abs=0.05)


def test_owners_whose_norms_nobody_checks_refute_the_certificate() -> None:
    found = audit_certificates(
        certifiable(SEED), MODELS, SEED, loose=64.0, significance=SIGNIFICANCE
    )
    assert found.refuted
    assert found.flipped_by == found.least_certified == 1
    assert not found.beyond
