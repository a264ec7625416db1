"""`precad plan` as a person runs it."""

import re
from pathlib import Path
from typing import Any

import pytest
from tests.rig.commands import document, refused, said
from tests.rig.tasks import LARGE

from precad.accounting.events import poisson_gaussian
from precad.accounting.exact import ExactAccountant
from precad.certify.group_guarantees import ExactGroups
from precad.certify.guarantee import Direction, Replacements
from precad.certify.inefficacy import attack_bounds
from precad.cli.planning import Robustness, certified
from precad.cli.task_planning import least_noise
from precad.common.task import Task

SCHEDULE = ["--record-rate", "0.1", "--client-rate", "0.1", "--rounds", "200", "--delta", "1e-5"]
MODEL = ["--record-clip", "1", "--dimension", "7850"]
PLAN = ["plan", *SCHEDULE, *MODEL, "--epsilon", "2"]
LOOSE = [*PLAN, "--client-clip", "10"]
ROBUST = [*PLAN, "--malicious", "2"]


@pytest.fixture
def large_task(tmp_path: Path) -> str:
    path = tmp_path / "task.toml"
    path.write_text(LARGE)
    return str(path)


def test_the_section_is_of_a_task_that_servers_take_with_the_least_noise_for_the_epsilon() -> None:
    text = said(*LOOSE)
    assert text.startswith("Planned: ")
    numbers = {k: float(v) for k, v in re.findall(r"([a-z_.]+) = ([0-9.]+) ", text)}
    privacy = {name[8:]: n for name, n in numbers.items() if name.startswith("privacy.")}
    Task.parse(
        {
            "name": "as-printed",
            "model": {"parameters": [{"name": "w", "shape": [10, 785]}]},
            "privacy": privacy,
            "training": {"learning_rate": 1.0, "rounds": int(numbers["training.rounds"])},
            "enrolment": {"clients": 10, "max_expected_records": 300.0},
            "fractional_bits": int(numbers["fractional_bits"]),
        }
    )
    sigma = privacy["noise_multiplier"]
    # The noise gives its ε again, and all is called planned.
    noise = ["--noise-multiplier", str(document(*LOOSE)["task"]["privacy"]["noise_multiplier"])]
    found = document("plan", *SCHEDULE, *MODEL, *noise, "--client-clip", "10")
    assert (found["status"], found["participations"]) == ("planned", 34)
    assert 1.99 < found["statements"][0]["epsilon"] <= 2
    assert [each["basis"] for each in found["statements"]] == ["planned"] * 3

    def epsilon(noise: float) -> float:
        accountant = ExactAccountant()
        accountant.compose(poisson_gaussian(rate=0.1, noise_multiplier=noise, count=34))
        return accountant.epsilon(1e-5)

    assert epsilon(sigma) <= 2 < epsilon(0.998 * sigma)


def test_a_clip_for_k_owners_keeps_the_loss_tolerated_and_as_many_are_certified() -> None:
    robust = document(*ROBUST)
    assert "planned, not a certificate" in said(*ROBUST, "--owners", "1000")
    asked, privacy = robust["robustness"], robust["task"]["privacy"]
    assert 0.2 < asked["loss_additions"] < asked["loss_replacements"] <= 0.5 + 1e-9
    most = asked["certified"]["clients_replaced"]
    assert most >= 2
    assert asked["certified"]["clients_added"] >= 2 * most
    # The certificate again, from the printed numbers.
    noise = 2**0.5 * privacy["noise_multiplier"] / privacy["client_clip"]
    one = poisson_gaussian(rate=0.1, noise_multiplier=noise, count=200)
    for k, holds in ((most, True), (most + 1, False)):
        certificate = Replacements(ExactGroups(one))
        bounds = attack_bounds(0.2, 1.0, certificate, k, (Direction.ADDITIONS,))
        assert (float(bounds.upper) <= 0.5) is holds


def test_the_worked_example_of_the_documents() -> None:
    """docs/privacy-accounting.md, "Planning": K=5, q=.01, T=1000, loss .5 from .2, additions."""
    five = Robustness(malicious=5, change="additions")
    clip, sigma = five.clip_and_noise(1.0, 2.0, 0.01, 1000)
    assert clip / sigma == pytest.approx(0.706, abs=5e-4)
    # C is never below R: σ is raised instead.
    assert five.clip_and_noise(1.0, 0.5, 0.01, 1000) == pytest.approx((1.0, 1 / 0.706), rel=1e-3)


def test_a_task_is_judged_as_it_is_and_gets_another_sigma_for_an_epsilon(large_task: str) -> None:
    as_it_is, other = (
        document("plan", "--task", large_task, *wish) for wish in ((), ("--epsilon", "1"))
    )
    found, wanted = (each["task"]["privacy"] for each in (as_it_is, other))
    assert (found["noise_multiplier"], wanted["client_clip"]) == (2, 2)
    assert wanted["noise_multiplier"] == least_noise(1.0, 1e-5, 0.1, 34)
    assert other["statements"][0]["epsilon"] <= 1 < as_it_is["statements"][0]["epsilon"]


def test_with_proofs_a_task_is_planned_against_a_cheating_server(
    tmp_path: Path, large_task: str
) -> None:
    path = tmp_path / "proofs.toml"
    path.write_text(f'validation = "proof"\n{LARGE}')
    *same, capped = document("plan", "--task", str(path))["statements"]
    # All but what the range test adds, whose rows and half-width are others.
    known = document("plan", "--task", large_task)["statements"]
    for each in (*same, *known):
        each.pop("rejection_delta")
    assert (same, capped["basis"], capped["malicious_server"]) == (known, "cap", True)
    assert capped["epsilon"] >= same[0]["epsilon"]


def test_where_norms_are_proved_a_plan_allows_for_hashes(
    monkeypatch: pytest.MonkeyPatch, make_task: Any
) -> None:
    """As a certificate does: with so many that a row is found, no owner's update is bounded."""
    robustness = Robustness(malicious=1)
    changes = {"privacy.noise_multiplier": 40.0, "privacy.client_clip": 1.0}
    shares, proofs = (make_task(8, changes | {"validation": v}) for v in ("crypten", "proof"))
    assert certified(proofs, robustness) == certified(shares, robustness)
    assert certified(proofs, robustness)["clients_added"] > 0
    monkeypatch.setattr("precad.certify.guarantee.HASHES", 2.0**100)
    assert certified(proofs, robustness)["clients_added"] == 0
    assert certified(shares, robustness)["clients_added"] > 0


@pytest.mark.parametrize("left_out", [*SCHEDULE[::2], *MODEL[::2]])
def test_it_assumes_no_number_that_a_task_has(left_out: str) -> None:
    at = LOOSE.index(left_out)
    assert f"give {left_out}" in refused(*LOOSE[:at], *LOOSE[at + 2 :])


@pytest.mark.parametrize(
    "twice", ["--owners", "--client-clip", "--noise-multiplier", "--dimension", "--from"]
)
def test_a_number_beside_the_task_that_gives_it_is_refused(twice: str, large_task: str) -> None:
    assert f"leave {twice} out" in refused("plan", "--task", large_task, twice, "3")
    wishes = ["--records", "3x400", "--epsilon", "3", "--dimension", "7850"]
    model = ["--architecture", "logistic", "--features", "30", "--classes", "2"]
    assert "leave --architecture out" in refused("plan", *wishes, *model)


@pytest.mark.parametrize(
    ("arguments", "field", "remedy"),
    [
        (["--malicious", "0"], "malicious", "1 or more"),
        (["--malicious", "1", "--tolerated-loss", "0.1"], "tolerated_loss", "above 0.2"),
        ([], "client_clip", "or --malicious"),
        (["--client-clip", "9", "--noise-multiplier", "2"], "epsilon", "or --noise-multiplier"),
        (["--client-clip", "1e300"], "client_clip", ""),
        (["--client-clip", "0.1"], "record_clip", "privacy.client_clip"),
        (["--client-clip", "9", "--epsilon", "1e300"], "epsilon", "at most 100:"),
        (["--client-clip", "9", "--rounds", "1000000000000"], "rounds", "at most"),
        (["--client-clip", "9", "--dimension", "1000000000000000"], "", ""),
        (["--client-clip", "9", "--record-rate", "2"], "rate", "0 to 1"),
    ],
)
def test_a_wrong_value_names_the_field_and_the_remedy(
    arguments: list[str], field: str, remedy: str
) -> None:
    told = refused(*PLAN, *arguments, "--json")
    assert (told.count("\n"), field in told, remedy in told) == (1, True, True), told
