"""The three guarantees: what enters each, and numbers that are known."""

import json
import math
from itertools import pairwise
from typing import Any

import pytest

from precad.common.account.accountant import AccountantName
from precad.common.account.guarantees import (
    Adversary,
    PrivacyStatement,
    Run,
    guarantees,
    planned_participations,
)
from precad.common.account.participations import (
    most_participations,
    record_epsilon,
)
from precad.common.errors import Misconfiguration

DEMO: dict[str, Any] = {
    "record_rate": 0.2,
    "client_rate": 1.0,
    "noise_multiplier": 2.0,
    "rounds": 60,
    "delta": 1e-5,
}
PAPER: dict[str, Any] = {
    "record_rate": 0.05,
    "client_rate": 0.1,
    "noise_multiplier": 1.0,
    "rounds": 5000,
    "delta": 1e-5,
}


def one(
    adversary: Adversary, accountant: AccountantName = AccountantName.EXACT, **values: Any
) -> PrivacyStatement:
    delta = values.pop("delta")
    (statement,) = guarantees(Run(**values), delta, [adversary], [accountant])
    return statement


def stated(values: dict[str, Any], **more: Any) -> tuple[PrivacyStatement, ...]:
    run = {**values, **more}
    delta = run.pop("delta")
    return guarantees(Run(**run), delta)


def test_the_demo_spends_3_83_where_the_clt_says_3_51() -> None:
    assert round(one(Adversary.ONE_SERVER, **DEMO).epsilon, 2) == 3.83
    clt = one(Adversary.ONE_SERVER, AccountantName.GDP_CLT, **DEMO)
    assert round(clt.epsilon, 2) == 3.51


def test_planning_takes_a_high_quantile_of_participations_not_the_mean() -> None:
    assert planned_participations(0.1, 5000) == 567
    assert one(Adversary.ONE_SERVER, **PAPER).compositions == 567
    assert one(Adversary.ONE_SERVER, **PAPER, participations=480).compositions == 480


def test_clients_only_is_an_atom_mixture_before_a_run_and_real_participations_after() -> None:
    planned = one(Adversary.CLIENTS_ONLY, **PAPER)
    assert (planned.compositions, round(planned.epsilon, 2)) == (5000, 4.15)
    after = one(Adversary.CLIENTS_ONLY, **PAPER, participations=567)
    assert after.compositions == 567
    assert after.noise_multiplier == pytest.approx(math.sqrt(2))
    alone = one(Adversary.ONE_SERVER, **PAPER | {"noise_multiplier": math.sqrt(2)})
    assert after.epsilon == pytest.approx(alone.epsilon)


def test_the_client_level_takes_both_noises_against_the_client_clip() -> None:
    statement = one(Adversary.CLIENT_LEVEL, **PAPER, sensitivity_ratio=0.5)
    assert statement.noise_multiplier == pytest.approx(math.sqrt(2) * 0.5)
    assert (statement.compositions, statement.adjacency) == (5000, "add-remove-client")


def test_without_clips_the_client_level_is_left_out_and_refused_when_asked_for() -> None:
    assert {s.adversary for s in stated(DEMO)} == {
        Adversary.ONE_SERVER,
        Adversary.CLIENTS_ONLY,
    }
    with pytest.raises(Misconfiguration, match="sensitivity_ratio"):
        one(Adversary.CLIENT_LEVEL, **DEMO)


def test_a_client_that_never_took_part_spent_nothing() -> None:
    spent = stated(PAPER, participations=0, sensitivity_ratio=0.5)
    assert all(s.epsilon == 0 for s in spent if s.adversary is not Adversary.CLIENT_LEVEL)


def test_exact_is_never_above_rdp_and_rdp_is_near() -> None:
    for values in (DEMO, PAPER, PAPER | {"participations": 480}):
        for ratio in (0.5, 0.05):
            exact, rdp = (
                {
                    s.adversary: s.epsilon
                    for s in stated(values, sensitivity_ratio=ratio)
                    if s.accountant is name
                }
                for name in (AccountantName.EXACT, AccountantName.RDP)
            )
            for adversary in Adversary:
                assert exact[adversary] <= rdp[adversary] < 1.2 * exact[adversary]


def test_json_has_the_agreed_keys_and_no_infinity() -> None:
    statements = stated(DEMO, sensitivity_ratio=0.01)
    assert any(s.mu == math.inf for s in statements)
    for statement in statements:
        document = json.loads(json.dumps(statement.to_json(), allow_nan=False))
        assert list(document) == [
            "adversary",
            "adjacency",
            "accountant",
            "record_rate",
            "client_rate",
            "noise_multiplier",
            "compositions",
            "delta",
            "epsilon",
            "mu",
        ]
        assert document["record_rate"] == 0.2
        if statement.accountant is not AccountantName.GDP_CLT:
            assert document["mu"] is None


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("record_rate", 1.5),
        ("client_rate", -0.5),
        ("noise_multiplier", 0.0),
        ("rounds", -1),
        ("delta", 1.0),
        ("participations", 61),
        ("participations", -1),
        ("sensitivity_ratio", -1.0),
        ("sensitivity_ratio", 0.0),
    ],
)
def test_a_wrong_value_is_named(field: str, value: float) -> None:
    with pytest.raises(Misconfiguration) as refused:
        stated(DEMO | {field: value})
    assert refused.value.field == field


def test_epsilon_by_participations_starts_at_zero_and_never_falls() -> None:
    curve = [
        record_epsilon(record_rate=0.2, noise_multiplier=2.0, delta=1e-5, participations=t)
        for t in range(61)
    ]
    assert curve[0] == 0
    assert all(later > earlier for earlier, later in pairwise(curve))
    assert curve[60] == one(Adversary.ONE_SERVER, **DEMO).epsilon


@pytest.mark.parametrize(("limit", "ceiling"), [(4.0, 1000), (4.0, 50), (0.5, 1000), (0.0, 10)])
def test_a_ledger_stops_exactly_before_its_limit(limit: float, ceiling: int) -> None:
    step: dict[str, float] = {"record_rate": 0.2, "noise_multiplier": 2.0, "delta": 1e-5}
    most = most_participations(**step, epsilon_limit=limit, ceiling=ceiling)
    assert 0 <= most <= ceiling
    assert record_epsilon(**step, participations=most) <= limit
    if most < ceiling:
        assert record_epsilon(**step, participations=most + 1) > limit
