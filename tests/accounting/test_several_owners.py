"""What a unit costs that is at several owners, and where limits end because of it."""

import math
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from dp_accounting.pld.pld_pmf import DensePLDPmf
from dp_accounting.pld.privacy_loss_distribution import (
    PrivacyLossDistribution,
    from_mixture_gaussian_mechanism,
)
from scipy.optimize import brentq
from scipy.stats import norm
from tests.rig.accounts import composed
from tests.rig.documents import Document
from tests.rig.tasks import task_with

from precad.accounting.adversaries import Adversary, Run
from precad.accounting.events import (
    AccountantName,
    SampledGaussian,
    poisson_gaussian,
    steps_as_chosen,
)
from precad.accounting.exact import ExactAccountant, epsilon_spent
from precad.accounting.gdp import epsilon_of_delta
from precad.accounting.guarantees import cap_of, guarantees, planned_guarantees, spent
from precad.accounting.losses import log_binomial
from precad.aggregator.rounds.privacy_cap import PrivacyCap
from precad.certify.group_guarantees import ExactGroups
from precad.client.account_file import AccountCharge, AccountFile
from precad.client.check_before_enrolling import covered
from precad.client.data_set_account import at_owners_of
from precad.client.own_account import OwnAccount
from precad.common.errors import BudgetExceeded, Misconfiguration
from precad.common.task import Task
from precad.common.terminal import upper

DELTA = 1e-5
SERVER = Adversary.ONE_SERVER


def theirs(
    rate: float, sigma: float, count: int, owners: int, coin: float, *, above: bool
) -> float:
    """Return dp-accounting's ε, from above or from below.

    Of each number of owners that are there it has the mixture; these are averaged by
    their probabilities, an atom at 0 for nobody. Cells are far below a loss's deviation.
    """
    cell = 5e-3 * owners**2
    parts = {
        there: from_mixture_gaussian_mechanism(
            sigma,
            list(range(there + 1)),
            np.exp(log_binomial(there, rate)).tolist(),
            pessimistic_estimate=above,
            value_discretization_interval=cell,
            log_mass_truncation_bound=-35,
            use_connect_dots=above,
        )
        for there in range(1, owners + 1)
    }
    chances = np.exp(log_binomial(owners, coin))

    def averaged(name: str) -> DensePLDPmf:
        dense = {
            there: getattr(part, name).to_dense_pmf() for there, part in parts.items()
        }
        low = min(0, *(pmf._lower_loss for pmf in dense.values()))
        high = max(pmf._lower_loss + pmf.size for pmf in dense.values())
        masses = np.zeros(high - low)
        masses[-low] = chances[0]
        infinite = 0.0
        for there, pmf in dense.items():
            at = pmf._lower_loss - low
            masses[at : at + pmf.size] += chances[there] * pmf._probs
            infinite += chances[there] * pmf._infinity_mass
        return DensePLDPmf(cell, low, masses, infinite, above)

    one = PrivacyLossDistribution(averaged("_pmf_remove"), averaged("_pmf_add"))
    return float(one.self_compose(count).get_epsilon_for_delta(DELTA))


@pytest.mark.parametrize("owners", [1, 2, 3])
@pytest.mark.parametrize("coin", [1.0, 0.3])
def test_a_unit_at_several_owners_costs_what_dp_accounting_says(
    owners: int, coin: float
) -> None:
    """Within a relative 1e-3 of its bound from above, and never below that from below."""
    event = poisson_gaussian(
        rate=0.2, noise_multiplier=1.0, count=20, participation=coin, owners=owners
    )
    ours = spent(event, DELTA)
    assert ours == pytest.approx(
        theirs(0.2, 1.0, 20, owners, coin, above=True), rel=1e-3
    )
    assert ours >= theirs(0.2, 1.0, 20, owners, coin, above=False)


def test_the_number_of_the_page_on_several_tasks() -> None:
    """dp-accounting's mixture with cells of 1e-4 says 7.562."""
    event = poisson_gaussian(rate=0.1, noise_multiplier=2.0, count=200, owners=2)
    assert spent(event, DELTA) == pytest.approx(7.562, rel=1e-3)


def exact_delta(event: SampledGaussian, epsilon: float, *, reverse: bool) -> float:
    """δ(ε) of one round in closed form: where the loss passes ε, by normal tails."""
    sigma = event.noise_multiplier
    delta = 0.0
    for there, chance in enumerate(
        np.exp(log_binomial(event.owners, event.participation))
    ):
        weights = np.exp(log_binomial(there, event.rate))
        shifts = np.arange(there + 1)

        def loss(
            x: float, weights: np.ndarray = weights, shifts: np.ndarray = shifts
        ) -> float:
            return math.log(
                float(weights @ np.exp((2 * x * shifts - shifts**2) / (2 * sigma**2)))
            )

        wanted = -epsilon if reverse else epsilon
        if not there:
            delta += chance * max(0.0, -math.expm1(epsilon))
            continue
        if loss(-60 * sigma) >= wanted:
            border = -math.inf
        else:
            border = brentq(
                lambda x, loss=loss, wanted=wanted: loss(x) - wanted,
                -60 * sigma,
                60 * sigma,
                xtol=1e-13,
            )
        p_above = float(weights @ norm.sf((border - shifts) / sigma))
        q_above = float(norm.sf(border / sigma))
        if reverse:
            delta += chance * ((1 - q_above) - math.exp(epsilon) * (1 - p_above))
        else:
            delta += chance * (p_above - math.exp(epsilon) * q_above)
    return delta


@pytest.mark.parametrize("rate", [0.05, 0.4, 1.0])
@pytest.mark.parametrize("coin", [1.0, 0.2])
@pytest.mark.parametrize("owners", [2, 3])
def test_one_round_is_never_below_the_truth(
    rate: float, coin: float, owners: int
) -> None:
    event = poisson_gaussian(
        rate=rate, noise_multiplier=1.3, participation=coin, owners=owners
    )
    accountant = ExactAccountant()
    accountant.compose(event)
    for epsilon in (0.0, 0.1, 0.7, 2.0):
        truth = max(
            exact_delta(event, epsilon, reverse=False),
            exact_delta(event, epsilon, reverse=True),
        )
        found = accountant.delta(epsilon)
        assert truth * (1 - 1e-9) <= found <= truth * 1.01 + 1e-12


@pytest.mark.parametrize("coin", [1.0, 0.2])
def test_renyis_cross_check_is_above_the_exact_number(coin: float) -> None:
    for rate in (0.1, 1.0):
        event = poisson_gaussian(
            rate=rate, noise_multiplier=3.0, count=100, participation=coin, owners=2
        )
        exact = spent(event, DELTA)
        by_renyi = composed(event, by=AccountantName.RDP).epsilon(DELTA)
        assert exact < by_renyi < 1.2 * exact


def test_who_samples_all_its_units_adds_one_shift_for_each_owner() -> None:
    """So does a further release: a version's records are known by then."""
    event = poisson_gaussian(rate=1.0, noise_multiplier=30.0, count=50, owners=3)
    assert spent(event, DELTA) == pytest.approx(
        epsilon_of_delta(3 * math.sqrt(50) / 30, DELTA)
    )
    step = poisson_gaussian(rate=0.1, noise_multiplier=30.0, owners=3)
    further = steps_as_chosen(step, versions=0, further=50)
    assert [spent(each, DELTA) for each in further] == [spent(event, DELTA)]


def test_one_sum_with_both_costs_more_than_two_sums_with_one_each() -> None:
    """Hence "in the same versions" is the worst case, for any numbers."""
    for rate, sigma in ((0.05, 1.0), (0.3, 2.0), (1.0, 20.0)):
        both = poisson_gaussian(rate=rate, noise_multiplier=sigma, count=30, owners=2)
        apart = poisson_gaussian(rate=rate, noise_multiplier=sigma, count=60)
        assert spent(both, DELTA) > spent(apart, DELTA)


TASK: Document = {
    "privacy.record_rate": 0.1,
    "privacy.noise_multiplier": 2.0,
    "privacy.client_rate": 1.0,
    "training.rounds": 200,
}


def declared(owners: int | None, **privacy: object) -> Task:
    more = {f"privacy.{name}": value for name, value in privacy.items()}
    if owners is not None:
        more["privacy.owners_per_unit"] = owners
    return task_with(TASK | more)


def test_a_task_that_declares_nothing_keeps_its_digest_and_its_numbers() -> None:
    assert b"owners_per_unit" not in declared(None).canonical
    assert declared(2).digest != declared(None).digest
    numbers = [[s.epsilon for s in planned_guarantees(declared(m))] for m in (None, 1)]
    assert numbers[0] == numbers[1]
    for wrong in (0, 101, 1.5):
        with pytest.raises(Misconfiguration, match="owners_per_unit"):
            declared(None, owners_per_unit=wrong)


@pytest.mark.parametrize("owners", [1, 2, 3])
def test_the_servers_limit_ends_where_the_units_number_says(owners: int) -> None:
    task = declared(owners, epsilon_limit=3.0)
    cap = cap_of(task)
    costs = [
        spent(
            poisson_gaussian(rate=0.1, noise_multiplier=2.0, count=n, owners=owners),
            DELTA,
        )
        for n in (cap, cap + 1)
    ]
    assert costs[0] <= 3.0 < costs[1]
    held = PrivacyCap(task)
    # The others' rates may be larger than an owner's own.
    for rate in (0.1, 0.1 / 64) if owners > 1 else (0.1,):
        assert held.most(rate) == cap
        for charged, admitted in ((cap - 1, True), (cap, False)):
            assert admitted == held.admits(
                rate, spent=charged, re_releases={}, charges=0
            )


def test_a_limit_of_three_admits_no_twice_as_much_for_a_person_at_two_owners() -> None:
    at_one = cap_of(declared(None, epsilon_limit=3.0))
    as_two = poisson_gaussian(rate=0.1, noise_multiplier=2.0, owners=2)
    assert spent(as_two.times(at_one), DELTA) == pytest.approx(6.71, abs=0.01)
    assert (at_one, cap_of(declared(2, epsilon_limit=3.0))) == (161, 34)


@pytest.mark.parametrize("whole", [True, False])
def test_an_owners_own_limit_counts_the_declared_number(
    tmp_path: Path, *, whole: bool
) -> None:
    """By the exact number where the limit goes to one task, else by the filter."""
    changes = TASK | {"privacy.owners_per_unit": 2}
    changes |= {"training.rounds": 30 if whole else 20}
    task = task_with(changes)
    path = tmp_path / "participations.log"
    limit = 2.85 if whole else 3.5
    account = OwnAccount(task, 0.1 / 8, limit, path)
    assert account.whole_task() == whole
    taken = account.rounds_left(200)
    for version in range(taken):
        account.charge(version)
    with pytest.raises(BudgetExceeded):
        account.charge(taken)
    assert account.participations == taken
    step = poisson_gaussian(rate=0.1, noise_multiplier=2.0, owners=2)
    costs = [spent(step.times(n), DELTA) for n in (taken, taken + 1)]
    assert costs[0] <= limit
    if whole:
        assert limit < costs[1]
    assert account.spent() == Counter({step: taken})
    assert account.epsilon() == pytest.approx(costs[0])
    at_one = upper(spent(replace(step, owners=1).times(taken), DELTA))
    said = f" at up to 2 owners (ε = {at_one} at one)"
    assert at_owners_of(account.spent(), DELTA) == said
    assert covered(task, account)[0].startswith(
        f"ε = {limit:g} at up to 2 owners allows"
    )
    # It is what another process reads.
    entries = AccountFile(path).new_entries()
    charges = [entry for entry in entries if isinstance(entry, AccountCharge)]
    assert [charge.owners for charge in charges] == [2] * taken
    again = OwnAccount(task, 0.1 / 8, None, path)
    assert (again.participations, again.epsilon()) == (taken, account.epsilon())


def test_a_charge_keeps_its_unit_and_its_owners_on_one_line(tmp_path: Path) -> None:
    path = tmp_path / "participations.log"
    task = declared(2)
    own = OwnAccount(task, 0.1, None, None)
    plain = own._charge(0, 0)
    charges = [
        replace(plain, version=version, unit=unit, owners=owners)
        for version, (unit, owners) in enumerate(
            [("record", 1), ("record", 2), ("patient", 1), ("patient", 3)]
        )
    ]
    for charge in charges:
        AccountFile(path).append(charge)
    assert [*AccountFile(path).new_entries()] == charges
    lines = path.read_text().splitlines()
    kinds = [line.split()[0] for line in lines]
    assert kinds == ["charge3", "charge4", "charge4", "charge4"]


def test_what_is_stated_names_the_declared_number_and_one() -> None:
    at_two = planned_guarantees(declared(2))
    at_one = planned_guarantees(declared(None))
    for two, one in zip(at_two, at_one, strict=True):
        whole_owner = two.adversary is Adversary.CLIENT_LEVEL
        assert two.owners_per_unit == (1 if whole_owner else 2)
        assert two.epsilon_at_one == one.epsilon == one.epsilon_at_one
        assert (two.epsilon > one.epsilon) != whole_owner
        assert one.at_owners == ""
        assert ("at up to 2 owners (" in two.at_owners) != whole_owner


def test_tasks_that_declare_unlike_numbers_are_added_up_each_by_its_own() -> None:
    runs = [Run.of(declared(owners), participations=40) for owners in (1, 2)]
    (together,) = guarantees(runs, DELTA, (SERVER,), (AccountantName.EXACT,))
    accountant = ExactAccountant()
    for owners in (1, 2):
        accountant.compose(
            poisson_gaussian(rate=0.1, noise_multiplier=2.0, count=40, owners=owners)
        )
    assert together.epsilon == accountant.epsilon(DELTA)
    assert together.owners_per_unit == 2
    step = poisson_gaussian(rate=0.1, noise_multiplier=2.0)
    assert together.epsilon_at_one == pytest.approx(
        epsilon_spent(step, delta=DELTA, counts={0: 80}), rel=1e-3
    )


def test_a_certificate_for_k_records_is_for_all_their_owners() -> None:
    """K records at two owners each shift a sum by up to 2K."""
    event = Run.of(declared(2), participations=50).event(Adversary.CLIENTS_ONLY)
    alone = Run.of(declared(None), participations=50).event(Adversary.CLIENTS_ONLY)
    for k in (1, 3):
        found = ExactGroups(event).sticks(k)
        expected = ExactGroups(alone).sticks(2 * k)
        for ours, theirs_ in zip(found, expected, strict=True):
            assert np.array_equal(ours.deltas, theirs_.deltas)
