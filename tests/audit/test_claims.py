"""Certificates hold whatever owners claim, where the denominator is the task's own.

Where it is made of claims they don't: that is why a certificate then says what it
assumes.
"""

from dataclasses import replace

import pytest
from research.audits.claims import ATTACKS, expected, play, promised, task_of
from scipy.stats import norm

from precad.certify.intervals import clopper_pearson_lower

MOVED = sorted(set(ATTACKS) - {"no-claim-moved"})
ROUNDING = 1e-4
"""Of the exact pair, and of R' above R."""


def planned(name: str) -> int:
    return sum(ATTACKS[name].before)


@pytest.mark.parametrize("name", ATTACKS)
@pytest.mark.parametrize("off", [0.1, 1, 10])
def test_no_claim_size_or_addition_breaks_a_certificate_under_a_planned_denominator(
    name: str, off: float
) -> None:
    """However wrong the plan is; and the attack meets the bound, which can't be better."""
    attack = ATTACKS[name]
    task = task_of(attack, round(off * planned(name)))
    left = expected(attack, task)
    assert left > promised(attack, task) - ROUNDING
    if name != "small-claims-200":  # that one's honest update was shorter than C
        assert left < promised(attack, task) + ROUNDING


@pytest.mark.parametrize("name", MOVED)
def test_a_denominator_of_claims_breaks_certificates(name: str) -> None:
    attack = ATTACKS[name]
    task = task_of(attack, None)
    assert expected(attack, task) < promised(attack, task) - 0.2


def test_a_bad_owner_of_twenty_that_claims_twice_its_size_passes_what_was_certified() -> (
    None
):
    attack = replace(
        ATTACKS["claim-doubled"], noise_multiplier=4.0, share=float(norm.cdf(1.0))
    )
    for planned_units, left in ((20, 0.691), (None, 0.618)):
        task = task_of(attack, planned_units)
        assert promised(attack, task) == pytest.approx(0.691, abs=1e-3)
        assert expected(attack, task) == pytest.approx(left, abs=1e-3)


@pytest.mark.parametrize("name", ["small-claims-200", "three-joined"])
def test_simulated_trainings_vote_as_the_closed_form_says(name: str) -> None:
    """So few models can show at all, where the denominator is made of claims."""
    for planned_units, refuted in ((planned(name), False), (None, True)):
        found = play(ATTACKS[name], planned_units, models=20, seed=1)
        assert found.refuted is refuted
        least = clopper_pearson_lower(found.votes, found.models, 1e-4)
        assert least <= found.expected <= found.at_most
