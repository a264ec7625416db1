"""The accounting cases of golden.json; the certifier's are tested beside the certifier."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from research.printed.algorithms import attained_epsilon
from research.printed.fixed_size import XIE_ORDERS, fixed_size_rdp, mironov_epsilon
from research.printed.printed_privacy import (
    Reproduction,
    precad_case_2_by_pld,
    precad_theorem_1_case_2,
    xie_table,
)

from precad.accounting import gdp
from precad.accounting.events import poisson_gaussian
from precad.accounting.exact import ExactAccountant
from precad.accounting.rdp import RdpAccountant, sampled_gaussian_rdp

Case = dict[str, Any]
CASES: list[Case] = json.loads((Path(__file__).parent / "golden.json").read_text())


def named(*prefixes: str) -> pytest.MarkDecorator:
    cases = [c for c in CASES if c["name"].startswith(prefixes)]
    assert cases
    return pytest.mark.parametrize("case", cases, ids=[c["name"] for c in cases])


def close(case: Case, field: str, value: float) -> None:
    assert value == pytest.approx(case["expected"][field], rel=case["tolerance"]), field


def exact_epsilon(rate: float, sigma: float, count: int, delta: float) -> float:
    accountant = ExactAccountant()
    accountant.compose(poisson_gaussian(rate=rate, noise_multiplier=sigma, count=count))
    return accountant.epsilon(delta)


@named("precad_thm1_server")
def test_theorem_1_case_1_as_the_clt_has_it(case: Case) -> None:
    i = case["inputs"]
    mu = gdp.clt_mu(i["p"], i["sigma"], i["T_i"])
    close(case, "mu", mu)
    close(case, "eps_clt", gdp.epsilon_of_delta(mu, i["delta"]))


@named("precad_thm1_client")
def test_theorem_1_case_2_is_a_labelled_reproduction_below_the_truth(case: Case) -> None:
    i = case["inputs"]
    printed = precad_theorem_1_case_2(
        record_rate=i["p"],
        client_rate=i["q"],
        noise_multiplier=i["sigma"],
        rounds=i["T"],
        delta=i["delta"],
    )
    assert isinstance(printed, Reproduction)
    assert printed.mu is not None
    close(case, "mu", printed.mu)
    close(case, "eps_clt", printed.value)
    assert printed.value < mixture_epsilon(case) / 3


def mixture_epsilon(case: Case) -> float:
    i = case["inputs"]
    accountant = ExactAccountant()
    step = poisson_gaussian(rate=i["p"], noise_multiplier=math.sqrt(2) * i["sigma"])
    accountant.compose(replace(step, participation=i["q"], count=i["T"]))
    return accountant.epsilon(i["delta"])


@named("precad_exact_server")
def test_exact_server(case: Case) -> None:
    i = case["inputs"]
    epsilon = exact_epsilon(i["sampling_prob"], i["sigma"], i["T"], i["delta"])
    close(case, "eps_upper", epsilon)
    assert epsilon > case["expected"]["eps_lower"]


@named("precad_exact_client")
def test_rate_qp_is_a_labelled_reproduction_even_with_an_exact_accountant(case: Case) -> None:
    i = case["inputs"]
    printed = precad_case_2_by_pld(
        record_rate=0.05,
        client_rate=i["sampling_prob"] / 0.05,
        noise_multiplier=i["sigma"] / math.sqrt(2),
        rounds=i["T"],
        delta=i["delta"],
    )
    assert isinstance(printed, Reproduction)
    close(case, "eps_upper", printed.value)


@named("precad_case2_mixture")
def test_atom_mixture(case: Case) -> None:
    i = case["inputs"]
    epsilon = mixture_epsilon(case)
    close(case, "eps_upper", epsilon)
    printed = precad_case_2_by_pld(
        record_rate=i["p"],
        client_rate=i["q"],
        noise_multiplier=i["sigma"],
        rounds=i["T"],
        delta=i["delta"],
    )
    close(case, "eps_claimed_by_paper_exact_qp", printed.value)
    if i["q"] < 1:
        assert printed.value < epsilon


@named("clt_vs_exact")
def test_clt_against_exact(case: Case) -> None:
    i = case["inputs"]
    mu = gdp.clt_mu(i["p"], i["sigma"], i["T"])
    close(case, "mu", mu)
    close(case, "eps_clt", gdp.epsilon_of_delta(mu, i["delta"]))
    close(case, "eps_exact_upper", exact_epsilon(i["p"], i["sigma"], i["T"], i["delta"]))


@named("xie_Table")
def test_xie_tables_reproduce_as_poisson_with_mironovs_conversion(case: Case) -> None:
    i, expected = case["inputs"], case["expected"]
    rate, sigma, delta = i["q"], i["sigma"], i["delta"]
    steps = i.get("T", i.get("steps"))
    printed = xie_table(rate=rate, noise_multiplier=sigma, steps=steps, delta=delta)
    assert isinstance(printed, Reproduction)
    close(case, "eps_recomputed", printed.value)
    published = pytest.approx(expected["eps_published"], rel=5e-4)
    assert (printed.value == published) == ("MISMATCH" not in case["name"])
    if "best_order" in expected:
        event = poisson_gaussian(rate=rate, noise_multiplier=sigma, count=steps)
        accountant = RdpAccountant(XIE_ORDERS)
        accountant.compose(event)
        assert mironov_epsilon(accountant, delta)[1] == expected["best_order"]
        close(case, "eps_balle_same_orders", accountant.epsilon(delta))


@named("wor_lowerbound")
def test_fixed_size_sampling_costs_more_than_was_published(case: Case) -> None:
    i, expected = case["inputs"], case["expected"]
    attained = attained_epsilon(
        rate=i["q"], clip_noise_multiplier=i["sigma"], steps=i["T"], delta=i["delta"]
    )
    close(case, "eps_pair_upper", attained.upper)
    assert attained.lower <= attained.upper
    assert (attained.lower > expected["published"]) == (
        expected["eps_pair_lower"] > expected["published"]
    )
    close(case, "exact_poisson_add_remove", exact_epsilon(i["q"], i["sigma"], i["T"], i["delta"]))


@named("wang_rdp")
def test_wang_bound_nests_its_minimum(case: Case) -> None:
    i, expected = case["inputs"], case["expected"]
    close(case, "rdp_wor_nested_min", fixed_size_rdp(i["gamma"], i["sigma"], i["alpha"]))
    order = (float(i["alpha"]),)
    close(case, "rdp_poisson", sampled_gaussian_rdp(i["gamma"], i["sigma"], order)[0])
    assert expected["rdp_wor_product_reading"] >= expected["rdp_wor_nested_min"]
