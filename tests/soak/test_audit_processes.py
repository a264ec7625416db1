"""Audits of real processes: each fault is found where it is, and nothing else.

How likely that is, is computed before: at these sizes each fault showed in all trials.
"""

import numpy as np
import pytest
from research.audits import deployed, presence
from research.audits.builds import RELEASES, Build, less_noise
from research.audits.canary_training import SIGNIFICANCE, audit, designed, planned
from tests.rig.warm import forked

SEED, HALF, OWNERS = 5, (1000, 4), (20, 25)
FAULTS = {
    # Who sees the models alone has the other server's noise before it: that half is
    # sound.
    Build.OTHER_SILENT: (400, 1, {"models": False, "one server": True}),
    # The last release is what the model is made of: it has noise once.
    Build.REDRAWN: (1000, 6, {"models": False, "one server": True}),
    Build.UNCLIPPED: (400, 4, {"models": True, "one server": True}),
}


def test_half_of_the_noise_shows_in_what_is_proved() -> None:
    # To refute it takes two hundred rounds, which research/audits plays.
    made = designed(*HALF, SEED)
    plans = planned(made, 1, less=less_noise(Build.HALF_NOISE))
    trained = deployed.train(made, build_of=Build.HALF_NOISE, popen=forked)
    found = audit(plans, [(trained, made)])
    for verdict in found:
        plan = verdict.power
        assert verdict.by_family > (plan.expected + plan.expected_of_half) / 2
    units = made.task.mechanism.noise_units
    assert np.std(trained.known_noise) == pytest.approx(units / 2, rel=0.05)


@pytest.mark.parametrize("build", FAULTS)
def test_a_fault_is_found_by_whom_it_concerns(build: Build) -> None:
    canaries, rounds, found = FAULTS[build]
    made = designed(canaries, rounds, SEED)
    plans = planned(made, 1, less=less_noise(build))
    power = {statement.name: plan.caught for statement, plan in plans.items()}
    assert all(power[name] == 1.0 for name, refuted in found.items() if refuted)
    verdicts = audit(
        plans, [(deployed.train(made, build_of=build, popen=forked), made)]
    )
    assert {each.statement.name: each.refuted for each in verdicts} == found


def test_a_server_that_breaks_the_link_to_look_again_sees_the_same_noise() -> None:
    made = designed(*FAULTS[Build.REDRAWN][:2], SEED)
    trained = deployed.train(made, looks=RELEASES, popen=forked)
    assert not any(each.refuted for each in audit(planned(made, 1), [(trained, made)]))


def test_owners_who_are_eight_times_too_long_are_found_where_nobody_checks_norms() -> (
    None
):
    made = presence.present(*OWNERS, SEED)
    power = made.plan(SIGNIFICANCE, Build.UNCHECKED)
    assert power.caught == 1.0
    models = deployed.train_present(made, build_of=Build.UNCHECKED, popen=forked)
    assert presence.audit(made, power, models, SIGNIFICANCE).refuted
    # Of real owners who is there shows no more than stated; guessing would be right
    # half the time.
    models = deployed.train_present(made, popen=forked)
    found = presence.audit(made, made.plan(SIGNIFICANCE), models, SIGNIFICANCE)
    assert not found.refuted
    assert found.guesses.correct > 0.6 * found.guesses.made
