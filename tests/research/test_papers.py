"""The papers' experiments: Xie et al.'s attack inefficacy and algorithms, and DP-CERT's
cells."""

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, rdp
from research.algorithms.instance_level import exact_epsilon
from research.datasets import load
from research.papers import xie_inefficacy as xie
from research.papers.dpcert_fig5 import correlation, split
from research.papers.dpcert_models import training_of
from research.papers.xie_levels import TWEETERS, USER_SETTINGS, USERS, two_labels
from research.poisoning import ATTACKS, poisoned
from research.printed import algorithms
from research.printed.fixed_size import fixed_size_epsilon, mironov_epsilon
from research.printed.printed_certificates import xie_corollary_1
from research.printed.printed_privacy import xie_proposition_1, xie_table
from research.robustness.budget import measured as measured_budget
from research.robustness.federated import task_of
from research.study import EXPERIMENTS, Result, Scale, Settings, Surroundings

from precad.accounting.events import Sampling, poisson_gaussian
from precad.accounting.exact import ExactAccountant
from precad.accounting.rdp import RdpAccountant

SETTINGS: Settings = {
    **USER_SETTINGS[Scale.SMALL],
    "noise_multiplier": 2.5,
    "bound": 4.0,
}
exact = partial(exact_epsilon, delta=1e-5)


def clean(losses: list[float]) -> Result:
    return Result(SETTINGS, {"losses": losses, "accuracy": 0.9}, 1.0)


def test_the_printed_bound_is_the_papers_and_corollary_1_inverts_it() -> None:
    assert xie.published_bound(0.4, 0.5, 0.0029, 0.5, 0) == 0.4
    k = xie.published_fewest(0.4, 0.5, 0.0029, 0.5, 2.0)
    assert k == pytest.approx(xie_corollary_1(0.4, 0.5, 2.0, 0.5, 0.0029))
    scaled = np.exp(-k * 0.5)
    reached = scaled * 0.4 - (1 - scaled) / np.expm1(0.5) * 0.0029 * 0.5
    assert (reached, xie.published_bound(0.4, 0.5, 0.0029, 0.5, 100)) == (
        pytest.approx(0.2),
        0,
    )


def test_the_sound_bound_pays_for_what_is_not_known_and_ends_the_fewest() -> None:
    few, many = clean([2.0, 2.2] * 20), clean([2.0, 2.2] * 500)
    for k in (0, 1, 3):
        assert xie.sound_bound(few, USERS, k) < xie.sound_bound(many, USERS, k) < 2.1
    fewest = xie.sound_fewest(many, USERS, 2.0)
    assert fewest is not None
    start, before, there = (
        xie.sound_bound(many, USERS, k) for k in (0, fewest - 1, fewest)
    )
    assert there <= start / 2 < before


def test_an_attack_by_many_lowers_the_measured_loss_and_stays_above_the_bound() -> None:
    figure = EXPERIMENTS["xie-fig4"]
    small = {"models": 20, "bad_share": 1.0, "noise_multiplier": 0.5}
    found = {}
    for k in (0, 60):
        cell = {**figure.all_cells(Scale.SMALL)[0], **small, "bad": k}
        found[k] = Result(cell, figure.measure(cell, Surroundings()), 1.0)
    losses = {k: float(np.mean(r.values["losses"])) for k, r in found.items()}
    assert losses[60] < 0.9 * losses[0]
    assert xie.sound_bound(found[0], USERS, 60) < losses[60]


def test_so_many_records_are_poisoned_and_those_of_other_labels_first() -> None:
    data = two_labels(load("digits"))
    x, y = data.train_x[:10], data.train_y[:10]
    for name, attack in ATTACKS.items():
        bad_x, bad_y = poisoned(attack(), x, y, 3, 0, 2)
        assert len(bad_x) == len(bad_y) == 10, name
        changed = (bad_y != y) | (bad_x != x).any(axis=1)
        assert changed.sum() <= 3, name
    marked, _ = poisoned(ATTACKS["pixel-backdoor"](), x, y, 3, 0, 2)
    assert (marked != x).any(axis=1).sum() == 3
    # Sorted records begin with the target's: a pattern there would teach the model
    # little.
    order = np.argsort(data.train_y, stable=True)
    x, y = data.train_x[order], data.train_y[order]
    zeros = int((y == 0).sum())
    for name in ("pixel-backdoor", "scaled-pixel-backdoor", "distributed-backdoor"):
        marked, named = poisoned(ATTACKS[name](), x, y, 4, 0, 2)
        assert np.flatnonzero(named != y).tolist() == list(range(zeros, zeros + 4)), (
            name
        )
        assert np.array_equal(marked[:zeros], x[:zeros]), name
        everything, _ = poisoned(ATTACKS[name](), x, y, len(y), 0, 2)
        assert (everything != x).any(axis=1).all(), name


def test_the_rounds_of_fig_2_are_those_that_give_the_printed_budget() -> None:
    """The paper names ε and σ and no rounds; ε is RDP's with the conversion of 2017."""
    orders = [1 + x / 10 for x in range(1, 100)] + list(range(11, 64))
    printed = {"xie-fig2": 0.6319, "xie-fig2-cifar": 0.5346, "xie-fig2-text": 0.4089}
    for name, epsilon in printed.items():
        cell = EXPERIMENTS[name].all_cells(Scale.PAPER)[0]
        step = PoissonSampledDpEvent(
            cell["user_rate"], GaussianDpEvent(cell["noise_multiplier"])
        )
        delta, right = TWEETERS.delta if "text" in name else USERS.delta, cell["rounds"]
        off = {}
        for rounds in (right - 1, right, right + 1):
            accountant = rdp.RdpAccountant(orders).compose(step, rounds)
            costs = accountant.rdp - np.log(delta) / (np.array(accountant.orders) - 1)
            off[rounds] = abs(costs.min() - epsilon)
        assert off[right] == min(off.values()) < 1e-4, name


def test_userdp_fedavg_costs_what_its_sampling_costs() -> None:
    step: Settings = {"user_rate": 0.1, "noise_multiplier": 1.0, "rounds": 3}
    poisson = algorithms.userdp_fedavg(sampling=Sampling.POISSON, **step)
    fixed = algorithms.userdp_fedavg(sampling=Sampling.FIXED_SIZE, **step)
    assert poisson.effective_noise_multiplier == 1.0
    assert fixed.effective_noise_multiplier == 0.5
    attained = algorithms.attained_epsilon(
        rate=0.1, clip_noise_multiplier=1.0, steps=3, delta=1e-5
    )
    printed = xie_table(rate=0.1, noise_multiplier=1.0, steps=3, delta=1e-5)
    assert (
        exact(poisson)
        < printed.value
        < attained.lower
        <= fixed_size_epsilon(fixed, 1e-5)
    )


def test_insdp_fedsgd_as_printed_is_below_what_holds_and_dopamine_above() -> None:
    common: Settings = {
        "batch_rate": 0.4,
        "users_per_round": 10,
        "rounds": 200,
        "noise_multiplier": 3.0,
    }
    printed = xie_proposition_1(**common, user_rate=1 / 3, delta=1e-5)
    poisson, fixed = (
        algorithms.insdp_fedsgd(**common, sampling=sampling, users=30)
        for sampling in (Sampling.POISSON, Sampling.FIXED_SIZE)
    )
    assert poisson.noise_multiplier == pytest.approx(3 * 10**0.5)
    assert exact(poisson) < exact_epsilon(
        algorithms.dopamine(**common, sampling=Sampling.POISSON), 1e-5
    )
    assert printed.value < fixed_size_epsilon(fixed, 1e-5)
    assert "drawn together" in printed.flaw


def test_insdp_fedavg_is_the_maximum_over_users_and_spends_only_on_who_ran() -> None:
    step = poisson_gaussian(rate=0.04, noise_multiplier=2.0)
    account = algorithms.ParallelAccount()
    assert account.epsilon(1e-5) == 0
    for user in "abb":
        account.charge(user, step.times(25))
    by_user = account.epsilon_by_user(1e-5)
    assert by_user == {"a": exact(step.times(25)), "b": exact(step.times(50))}
    assert account.epsilon(1e-5) == by_user["b"]


def test_rdp_says_zero_where_the_total_variation_is_below_delta() -> None:
    account, truth = RdpAccountant(), ExactAccountant()
    step = poisson_gaussian(rate=1e-3, noise_multiplier=100.0, count=3)
    account.compose(step)
    truth.compose(step)
    assert account.epsilon(1e-4) == 0 < mironov_epsilon(account, 1e-4)[0]
    assert account.epsilon(1e-5) > 0
    assert truth.delta(0.0) <= account.delta(0.0) < 1e-4
    assert account.delta(0.0) == pytest.approx(account.delta(1e-9), rel=1e-3)


@pytest.mark.parametrize("name", list(EXPERIMENTS))
def test_every_cell_is_told_from_all_others_and_can_be_kept(name: str) -> None:
    for cells in map(EXPERIMENTS[name].all_cells, Scale):
        assert (
            len({json.dumps(cell, sort_keys=True) for cell in cells}) == len(cells) > 0
        )
        assert all("seed" in cell for cell in cells)
    assert EXPERIMENTS[name].claim.endswith(".")


DPCERT = tuple(name for name in EXPERIMENTS if name.startswith("dpcert"))
SMALL = {"rounds": 2, "copies": 60, "selection": 10, "every": 60, "steps": 2}


def some_cells(name: str) -> list[Settings]:
    """One of each method, the last cell too, all of them made small."""
    cells = EXPERIMENTS[name].all_cells(Scale.SMALL)
    first = {cell["method"]: cell for cell in reversed(cells)}
    return [{**cell, **SMALL} for cell in [*first.values(), cells[-1]]]


def measured(name: str, cells: Sequence[Settings], keep: Path) -> list[Result]:
    measure = EXPERIMENTS[name].measure
    return [Result(cell, measure(cell, Surroundings(keep=keep)), 0.0) for cell in cells]


@pytest.mark.parametrize("name", DPCERT)
def test_a_small_cell_of_each_gives_a_table_and_the_same_again(
    name: str, tmp_path: Path
) -> None:
    cells = some_cells(name)
    results = measured(name, cells, tmp_path)
    table = EXPERIMENTS[name].table(results)
    assert len(table.rows) >= len({cell["method"] for cell in cells})
    assert all(len(row) == len(table.headings) for row in table.rows)
    json.dumps([result.values for result in results], allow_nan=False)
    for keep in (tmp_path / "elsewhere", tmp_path):
        assert measured(name, cells[:1], keep)[0].values == results[0].values


def test_every_private_method_has_the_same_noise_and_epsilon(tmp_path: Path) -> None:
    cells = [c for c in some_cells("dpcert-table2") if c["method"] != "regular"]
    (noise,) = {training_of(cell).noise_multiplier for cell in cells}
    for cell, how in ((cell, training_of(cell)) for cell in cells):
        task = task_of(how, load("digits"), cell["clients"])
        assert (task.privacy.noise_multiplier, task.objective) == (noise, how.objective)
    results = measured("dpcert-table2", cells, tmp_path)
    assert {each.settings["trained"] for each in results} == {"centrally", "federated"}
    epsilons = [each.values["epsilon"] for each in results]
    assert epsilons == pytest.approx([3.0] * len(results), abs=0.02)


def test_a_metric_that_falls_with_the_radius_correlates_with_it() -> None:
    values: Settings = {
        "radius": [0.0, 0.1, 0.2, 0.4],
        "gradient": [10.0, 1.0, 0.1, 1e-3],
    }
    result = Result({}, values, 0.0)
    found = correlation(result, "gradient"), *split(result, "gradient", 0.2)
    assert found == pytest.approx((-1.0, 0.5, -2.0))


def test_the_pictures_budget_is_measured_again() -> None:
    root = Path(__file__).parents[2] / "research" / "robustness" / "results"
    kept = json.loads((root / "budget.json").read_text("utf-8"))[-1]
    (row,) = measured_budget((kept["noise_multiplier"],), seeds=(0,))
    assert row["epsilon"] == pytest.approx(kept["epsilon"], rel=1e-3)
    assert row["poisoned_records"] == kept["poisoned_records"]
    assert row["accuracy"] == pytest.approx(kept["accuracy"], abs=0.1)
    assert row["acr"] == pytest.approx(kept["acr"], abs=0.1)
