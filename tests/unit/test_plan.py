"""The planner: what it calls feasible is, and its floor is one."""

from typing import Any

import numpy as np
import pytest

from precad.cli.trade_off_plot import draw
from precad.common.account.events import poisson_gaussian
from precad.common.account.exact import ExactAccountant
from precad.common.account.planning import (
    Plan,
    SettingVerdict,
    Wanted,
    plan,
    privacy_trade_off,
    robustness_trade_off,
)
from precad.common.errors import Misconfiguration

WANTED: dict[str, Any] = {
    "clients": 2000,
    "records": 600,
    "dimension": 7850,
    "epsilon": 2.0,
    "delta": 1e-5,
    "noise_to_signal": 0.1,
    "malicious": 1,
    "loss": 0.2,
    "tolerated_loss": 0.5,
    "loss_bound": 1.0,
}


def planned(
    record_rates: tuple[float, ...] = (0.05,),
    client_rates: tuple[float, ...] = (0.1, 1.0),
    rounds: tuple[int, ...] = (50,),
    noise_multiplier: float | None = None,
    clip_ratio: float | None = None,
    **changed: Any,
) -> Plan:
    return plan(
        Wanted(**WANTED | changed),
        record_rates=record_rates,
        client_rates=client_rates,
        rounds=rounds,
        noise_multiplier=noise_multiplier,
        clip_ratio=clip_ratio,
    )


def test_what_meets_everything_does() -> None:
    made = planned()
    assert made.best is made.settings[0]
    for setting in made.settings:
        assert setting.verdict is SettingVerdict.MEETS
        account = ExactAccountant()
        account.compose(
            poisson_gaussian(
                rate=setting.run.record_rate,
                noise_multiplier=setting.run.noise_multiplier,
                count=setting.participations,
            )
        )
        assert account.epsilon(1e-5) == setting.epsilon <= 2.0
        assert setting.epsilon_clients_only < setting.epsilon
        assert setting.worst_loss <= 0.5 * (1 + 1e-9)
        assert setting.noise_to_signal <= 0.1
    assert [s.upload_bytes for s in made.settings] == sorted(s.upload_bytes for s in made.settings)


def test_the_published_ratio_is_the_planners() -> None:
    """docs/privacy-accounting.md, "Planning": K=5, q=.01, T=1000, loss .5 from .2."""
    made = planned(client_rates=(0.01,), rounds=(1000,), malicious=5)
    (setting,) = made.settings
    assert round(setting.clip_ratio / setting.run.noise_multiplier, 3) == 0.706


def test_nothing_goes_below_the_floor_and_its_clients_suffice_in_the_limit() -> None:
    made = planned(client_rates=(0.1, 1.0), rounds=(50, 500), malicious=3)
    assert made.floor is not None
    assert all(s.noise_to_signal >= made.floor.noise_to_signal for s in made.settings)
    assert min(s.noise_to_signal for s in made.settings) < 1.01 * made.floor.noise_to_signal
    at_floor = planned(clients=made.floor.clients, malicious=3).floor
    assert at_floor is not None
    assert at_floor.noise_to_signal <= 0.1


def test_privacys_noise_alone_says_nothing_about_robustness_here() -> None:
    made = planned()
    assert all(s.unclipped_worst_loss > 0.99 for s in made.settings)
    (wide,) = planned(client_rates=(1.0,), clip_ratio=30.0).settings
    assert wide.verdict is SettingVerdict.SAYS_NOTHING
    (near,) = planned(client_rates=(1.0,), clip_ratio=0.3).settings
    assert near.verdict is SettingVerdict.LOSS_TOO_HIGH


def test_without_attackers_the_client_clip_never_acts() -> None:
    made = planned(malicious=0)
    assert made.floor is None
    assert all(s.clip_ratio == pytest.approx(0.05 * 600) for s in made.settings)
    assert all(s.worst_loss == pytest.approx(0.2) for s in made.settings)


def test_a_fixed_noise_that_is_too_small_is_not_private() -> None:
    made = planned(noise_multiplier=0.5)
    assert {s.verdict for s in made.settings} == {SettingVerdict.NOT_PRIVATE}
    assert made.best is None


def test_too_few_clients_are_too_noisy() -> None:
    assert {s.verdict for s in planned(clients=50).settings} == {SettingVerdict.TOO_NOISY}


def test_trade_offs_fall_and_rise() -> None:
    made = planned()
    noise, worst = robustness_trade_off(made.wanted, made.settings[0], 2)
    assert (np.diff(noise) <= 0).all()
    assert (np.diff(worst) >= 0).all()
    noise, epsilon = privacy_trade_off(made.wanted, made.settings[0])
    assert (np.diff(noise) > 0).all()
    assert (np.diff(epsilon) < 0).all()


@pytest.mark.parametrize("malicious", [0, 2])
def test_the_picture_is_a_png(tmp_path: Any, malicious: int) -> None:
    path = tmp_path / "plan.png"
    draw(planned(malicious=malicious), path)
    assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("clients", 0),
        ("records", 0),
        ("dimension", 0),
        ("epsilon", 0.0),
        ("delta", 1.0),
        ("noise_to_signal", 0.0),
        ("malicious", -1),
        ("loss", 0.0),
        ("tolerated_loss", 0.1),
        ("tolerated_loss", 1.0),
        ("noise_multiplier", 0.0),
        ("clip_ratio", -1.0),
    ],
)
def test_a_wrong_value_is_named(field: str, value: Any) -> None:
    with pytest.raises(Misconfiguration) as refused:
        planned(**{field: value})
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("field", "value"), [("record_rates", 0.0), ("client_rates", 1.5), ("rounds", 0)]
)
def test_a_wrong_candidate_is_named(field: str, value: Any) -> None:
    candidates: dict[str, Any] = {field: (value,)}
    with pytest.raises(Misconfiguration) as refused:
        planned(**candidates)
    assert refused.value.field in field
