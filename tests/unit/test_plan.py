"""The planner: what it recommends is a task, keeps what was asked, and trains."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure

from precad.accounting.events import poisson_gaussian
from precad.accounting.exact import ExactAccountant
from precad.accounting.planning import (
    Change,
    Robustness,
    Setting,
    SettingVerdict,
    Wanted,
    setting_of,
)
from precad.accounting.search import Choices, Plan, fractional_bits, plan, template_of
from precad.accounting.sizes import MOST_OWNERS, owners_sizes, written
from precad.cli.plan import plot
from precad.cli.plan.plot import draw, figure_of
from precad.common.errors import Misconfiguration

MNIST = Wanted(records=(6000,) * 10, epsilon=3.0, delta=1e-5, robust=False)
MANY = Wanted(records=(600,) * 500, epsilon=2.0, delta=1e-5, robust=True)
FEW = Choices(record_rates=(0.05, 0.2), client_rates=(0.1, 1.0), rounds=(50, 200))


def planned(wanted: Wanted = MNIST, choices: Choices = FEW, **given: Any) -> Plan:
    return plan(wanted, choices, template_of(7850, wanted.delta), **given)


def schedule(setting: Setting) -> tuple[float, float, int]:
    privacy = setting.task.privacy
    return privacy.record_rate, privacy.client_rate, setting.task.training.rounds


@pytest.fixture(scope="module")
def mnist() -> Plan:
    told: list[tuple[int, int]] = []
    found = planned(other=True, progress=lambda done, steps: told.append((done, steps)))
    assert told == [(done, 9) for done in range(10)]
    return found


@pytest.fixture(scope="module")
def robust() -> Plan:
    return planned(MANY, replace(FEW, record_rates=(0.5,)), other=True)


def test_on_mnist_it_chooses_the_setting_that_trains_best(mnist: Plan) -> None:
    """The old planner took p = .2, q = .1, T = 50 there: 3 points less at the same ε."""
    assert mnist.best
    assert schedule(mnist.best) == (0.05, 1.0, 200)
    (cheapest,) = (s for s in mnist.settings if schedule(s) == (0.2, 0.1, 50))
    assert cheapest.upload_bytes < mnist.best.upload_bytes
    assert cheapest.forecast.accuracy < mnist.best.forecast.accuracy - 0.02


def test_the_noise_is_the_least_that_epsilon_allows_over_a_high_quantile(mnist: Plan) -> None:
    for setting in mnist.settings:
        privacy = setting.task.privacy
        account = ExactAccountant()
        account.compose(
            poisson_gaussian(
                rate=privacy.record_rate,
                noise_multiplier=privacy.noise_multiplier,
                count=setting.participations,
            )
        )
        assert account.epsilon(1e-5) == setting.epsilon
        assert 2.99 < setting.epsilon <= 3
        assert setting.epsilon_clients_only < setting.epsilon
        assert setting.participations >= privacy.client_rate * setting.task.training.rounds


def test_without_robustness_the_clip_is_ample_and_far_below_all_agreeing(mnist: Plan) -> None:
    for setting in mnist.settings:
        privacy = setting.task.privacy
        assert setting.forecast.kept == pytest.approx(1.0)
        assert privacy.client_clip < privacy.record_rate * 6000 * privacy.record_clip / 5
        assert privacy.client_clip >= 1.4 * setting.forecast.update_norm


def test_giving_up_robustness_and_asking_for_it_have_their_price(mnist: Plan, robust: Plan) -> None:
    assert mnist.best
    assert mnist.other
    # One of ten owners: nothing learns under noise that hides an owner.
    assert mnist.other.loss_replacements <= 0.5 + 1e-9
    assert mnist.other.verdict is SettingVerdict.LEARNS_LITTLE
    assert robust.best
    assert robust.other
    assert robust.other.forecast.accuracy > robust.best.forecast.accuracy
    assert robust.other.loss_replacements > 0.99


def test_robust_settings_bound_the_loss_for_replacements_and_are_looser_for_additions(
    robust: Plan,
) -> None:
    assert robust.best
    for setting in robust.settings:
        assert setting.verdict is SettingVerdict.MEETS
        assert setting.loss_additions < setting.loss_replacements <= 0.5 * (1 + 1e-9)
        assert setting.task.privacy.client_clip >= setting.task.privacy.record_clip


def test_replacements_shift_twice_as_far_as_the_certifier_has_it() -> None:
    """Φ(Φ⁻¹(.2) + 2·5·.05) = Φ(−.34162) = .36632."""
    wish = Robustness(malicious=5)
    assert wish.worst_loss(0.05, Change.REPLACEMENTS) == pytest.approx(0.366318, abs=1e-6)
    assert wish.worst_loss(0.1, Change.ADDITIONS) == pytest.approx(0.366318, abs=1e-6)
    assert wish.worst_loss(wish.largest_mu(), Change.REPLACEMENTS) == pytest.approx(0.5)


def test_the_published_ratio_is_the_planners() -> None:
    """docs/privacy-accounting.md, "Planning": K=5, q=.01, T=1000, loss .5 from .2, additions."""
    wish = Robustness(malicious=5, change=Change.ADDITIONS)
    wanted = Wanted(records=(600,) * 2000, epsilon=2.0, delta=1e-5, robust=True, robustness=wish)
    made = planned(
        wanted, Choices(record_rates=(0.2,), client_rates=(0.01,), rounds=(1000,))
    ).settings[0]
    privacy = made.task.privacy
    ratio = privacy.client_clip / (made.task.effective_record_clip * privacy.noise_multiplier)
    assert 0.70 < ratio <= 0.7061


def test_where_robustness_needs_a_clip_below_r_the_noise_is_raised_instead() -> None:
    """C < R was recommended once, which no task takes."""
    made = planned(
        replace(MANY, robustness=Robustness(malicious=5)),
        Choices(record_rates=(0.05,), client_rates=(1.0,), rounds=(200,), record_clips=(1.0,)),
    ).settings[0]
    assert made.task.privacy.client_clip == 1.0
    assert made.epsilon < 0.2
    assert made.loss_replacements <= 0.5 * (1 + 1e-9)


@pytest.mark.parametrize(
    ("dimension", "sizes"), [(1, (1,)), (650, (6000, 6000, 500)), (10_000_000, (1_000_000,) * 3)]
)
def test_whatever_the_sizes_and_the_model_the_task_stands(
    dimension: int, sizes: tuple[int, ...]
) -> None:
    wanted = replace(MNIST, records=sizes)
    choices = Choices(record_rates=(0.01, 0.5), client_rates=(0.5,), rounds=(20,))
    made = plan(wanted, choices, template_of(dimension, 1e-5))
    assert len(made.settings) == 2
    for setting in made.settings:
        task = setting.task
        assert task.dimension == dimension
        assert task.enrolment.clients == len(sizes)
        assert task.enrolment.max_expected_records >= task.privacy.record_rate * max(sizes)


def test_the_list_of_sizes_counts_and_not_the_mean() -> None:
    even, uneven = (
        planned(replace(MNIST, records=sizes)).settings
        for sizes in ((1000,) * 10, (9991,) + (1,) * 9)
    )
    assert max(s.task.privacy.client_clip for s in uneven) > 2 * max(
        s.task.privacy.client_clip for s in even
    )
    assert max(s.gradients for s in uneven) > 9 * max(s.gradients for s in even)


def test_what_a_task_refuses_is_said_and_not_recommended() -> None:
    choices = replace(FEW, client_clip=0.5, record_clips=(1.0,))
    with pytest.raises(Misconfiguration, match="must be at most privacy\\.client_clip"):
        planned(choices=choices)
    some = planned(choices=replace(choices, record_clips=(0.3, 1.0)))
    assert all(s.task.privacy.record_clip == 0.3 for s in some.settings)


def test_a_fixed_noise_that_is_too_small_is_not_private() -> None:
    made = planned(choices=replace(FEW, noise_multiplier=0.5))
    assert {s.verdict for s in made.settings} == {SettingVerdict.NOT_PRIVATE}
    assert made.best is None


def test_a_loose_clip_says_nothing_and_a_tighter_one_too_little() -> None:
    one = Choices(record_rates=(0.5,), client_rates=(1.0,), rounds=(200,), noise_multiplier=20.0)
    for clip, verdict in ((60.0, "says nothing"), (4.0, "loss too high")):
        fixed = replace(one, client_clip=clip, record_clips=(3.0,))
        assert planned(MANY, fixed).settings[0].verdict.value == verdict


def test_what_is_given_is_kept() -> None:
    choices = Choices(
        record_rates=(0.1,),
        client_rates=(0.5,),
        rounds=(70,),
        record_clips=(0.7,),
        learning_rate=1.234,
        noise_multiplier=3.21,
        client_clip=12.3,
    )
    task = planned(choices=choices).settings[0].task
    privacy = task.privacy
    assert schedule(planned(choices=choices).settings[0]) == (0.1, 0.5, 70)
    assert (privacy.record_clip, privacy.client_clip, privacy.noise_multiplier) == (0.7, 12.3, 3.21)
    assert (task.training.learning_rate, task.fractional_bits) == (1.234, 20)


def test_everything_else_of_a_task_stays_and_the_task_is_judged_beside() -> None:
    first = planned().settings[0].task
    task = first.model_copy(update={"name": "wards", "projections": 60})
    template = task.model_dump(mode="json")
    made = plan(MNIST, replace(FEW, rounds=(50,)), template, given=task)
    assert made.given == setting_of(MNIST, task)
    assert {(s.task.name, s.task.projections) for s in made.settings} == {("wards", 60)}


def test_an_owner_that_could_not_enrol_is_refused() -> None:
    task = planned().settings[0].task
    with pytest.raises(Misconfiguration, match="max_expected_records"):
        setting_of(replace(MNIST, records=(6_000_000,)), task)
    with pytest.raises(Misconfiguration, match="takes 10 clients"):
        setting_of(replace(MNIST, records=(600,) * 11), task)


def test_nothing_is_planned_beyond_the_epsilon_at_which_servers_stop() -> None:
    template = template_of(7850, 1e-5)
    template["privacy"]["epsilon_limit"] = 2.5
    with pytest.raises(Misconfiguration, match=r"epsilon_limit lets nobody pass 2\.5"):
        plan(MNIST, FEW, template)


def test_covered_uploads_are_made_in_every_round(mnist: Plan) -> None:
    task = next(s.task for s in mnist.settings if schedule(s)[1] == 0.1)
    covered = task.model_copy(
        update={"privacy": task.privacy.model_copy(update={"cover_uploads": True})}
    )
    uploads = [setting_of(MNIST, each).upload_bytes / (8 * 7850 + 32) for each in (task, covered)]
    assert uploads[0] < task.training.rounds / 2
    assert uploads[1] == task.training.rounds


@pytest.mark.parametrize(("epsilon", "delta"), [(100.0, 1e-5), (0.01, 1e-10)])
def test_little_and_much_privacy_are_planned(epsilon: float, delta: float) -> None:
    wanted = replace(MNIST, epsilon=epsilon, delta=delta)
    one = Choices(record_rates=(0.05,), client_rates=(0.1,), rounds=(50,))
    (made,) = planned(wanted, one).settings
    assert made.epsilon <= epsilon


@pytest.mark.parametrize(
    ("clip", "bits"), [(1.0, 20), (32.0, 20), (33.0, 19), (2.0**25, 1), (1e30, 1)]
)
def test_the_bits_are_the_most_that_keep_the_bound_in_range(clip: float, bits: int) -> None:
    assert fractional_bits(clip) == bits
    if clip < 2**24:
        assert clip * 2**bits <= 2**25


def test_a_long_search_judges_few_settings_exactly_and_none_is_dominated() -> None:
    made = planned(choices=Choices(rounds=(20, 50, 100)))
    assert made.tried == 72
    assert len(made.settings) <= 12
    by_uploads = sorted(made.settings, key=lambda s: s.upload_bytes)
    accuracies = [s.forecast.accuracy for s in by_uploads]
    assert all(b > a - 0.004 for a, b in pairwise(accuracies))


def test_the_chosen_point_lies_on_every_curve(robust: Plan, mnist: Plan) -> None:
    for made in (robust, mnist):
        points = 0
        for axes in figure_of(made).axes:
            lines = [np.array(line.get_data(), np.float64).T for line in axes.lines]
            curves = np.concatenate([line for line in lines if len(line) > 2])
            for point in (line[0] for line in lines if len(line) == 1):
                assert np.isclose(curves, point, rtol=1e-9).all(axis=1).any(), point
                points += 1
        assert points == 5


def test_the_picture_is_a_png_whatever_its_name(
    tmp_path: Path, mnist: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "plan.picture"
    draw(mnist, path)
    assert path.read_bytes().startswith(b"\x89PNG")
    monkeypatch.setattr(plot, "figure_of", lambda _: Figure())
    with pytest.raises(Misconfiguration, match="plot"):
        draw(mnist, tmp_path)


@pytest.mark.parametrize(
    ("of", "field", "value"),
    [
        (MNIST, "records", ()),
        (MNIST, "records", (600, 0)),
        (MNIST, "epsilon", 0.0),
        (MNIST, "delta", 1.0),
        (MNIST, "gradient_norm", float("inf")),
        (Robustness(), "malicious", 0),
        (Robustness(), "loss", 0.0),
        (Robustness(), "tolerated_loss", 0.1),
        (Choices(), "record_rates", (0.0,)),
        (Choices(), "client_rates", (1.5,)),
        (Choices(), "rounds", (0,)),
        (Choices(), "rounds", (10**15,)),
        (Choices(), "record_clips", (-1.0,)),
        (Choices(), "learning_rate", 0.0),
        (Choices(), "noise_multiplier", 0.0),
        (Choices(), "client_clip", float("nan")),
    ],
)
def test_a_wrong_wish_or_choice_is_named(of: Any, field: str, value: Any) -> None:
    with pytest.raises(Misconfiguration) as refused:
        replace(of, **{field: value})
    assert refused.value.field in field


@pytest.mark.parametrize("noise", [1e300, 1e-300])
def test_an_absurd_noise_is_refused_as_a_value(noise: float) -> None:
    with pytest.raises(Misconfiguration):
        planned(choices=replace(FEW, noise_multiplier=noise))


# --- sizes of owners, as a person writes them -----------------------------------------------------


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("6000", (6000,)),
        ("6000,6_000,500", (6000, 6000, 500)),
        ("10x6000", (6000,) * 10),
        ("3x500,1200,6x40", (500,) * 3 + (1200,) + (40,) * 6),
        (" 2 × 1_000 , 3X7 ", (1000, 1000, 7, 7, 7)),
    ],
)
def test_a_count_before_an_x_repeats_a_size(text: str, sizes: tuple[int, ...]) -> None:
    assert owners_sizes(text) == sizes


@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=30))
def test_what_is_written_is_read_back(sizes: list[int]) -> None:
    assert owners_sizes(written(tuple(sizes))) == tuple(sizes)


def test_what_is_written_is_short() -> None:
    assert written((6000,) * 100_000) == "100000x6000"
    assert written((500, 500, 40, 500)) == "2x500,40,500"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "whole numbers like 10x6000"),
        ("6000,", "'' is no size"),
        ("6000;500", "separated by commas"),
        ("10x", "10x6000"),
        ("x6000", "10x6000"),
        ("2x3x4", "10x6000"),
        ("-3", "10x6000"),
        ("1.5", "10x6000"),
        ("٣", "10x6000"),
        ("0", "1 or more"),
        ("3x500,0x40", "'0x40'"),
        ("3x0", "1 or more"),
        (f"{MOST_OWNERS}x1,1", "at most 100,000 owners"),
        ("9" * 16 + "x1", "at most 100,000 owners"),
        ("9" * 5000, "10x6000"),
    ],
)
def test_anything_else_names_what_is_wrong_and_the_form(text: str, said: str) -> None:
    with pytest.raises(Misconfiguration, match=said) as refused:
        owners_sizes(text)
    assert refused.value.field == "records"
