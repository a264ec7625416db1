"""`precad account` and `precad plan` as a person runs them."""

import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.rig import commands
from tests.rig.tasks import LARGE, task_with

from precad.accounting.events import poisson_gaussian
from precad.accounting.exact import record_epsilon
from precad.certify.group_guarantees import ExactGroups
from precad.certify.guarantee import Direction, Replacements
from precad.certify.inefficacy import attack_bounds
from precad.cli.planning import Robustness, certified
from precad.cli.task_planning import least_noise

RUN = ["--record-rate", "0.2", "--client-rate", "1", "--noise-multiplier", "2", "--rounds", "60"]
ACCOUNT = [*RUN, "--delta", "1e-5"]
CLIPS = ["--record-clip", "1", "--client-clip", "20", "--dimension", "650"]
document = partial(commands.document, "account")
said = partial(commands.said, "account")
refused = commands.refused
planned = partial(commands.document, "plan")
SCHEDULE = ["--record-rate", "0.1", "--client-rate", "0.1", "--rounds", "200", "--delta", "1e-5"]
MODEL = ["--record-clip", "1", "--dimension", "7850"]
PLAN = ["plan", *SCHEDULE, *MODEL, "--epsilon", "2"]
LOOSE = [*PLAN, "--client-clip", "10"]


@pytest.fixture
def large_task(tmp_path: Path) -> str:
    return task_file(tmp_path, LARGE)


def task_file(folder: Path, text: str) -> str:
    path = folder / f"{len(list(folder.iterdir()))}.toml"
    path.write_text(text)
    return str(path)


def limited(tmp_path: Path) -> str:
    return task_file(tmp_path, f"{LARGE}epsilon_limit = 1.5\n")


def exact(statements: list[dict[str, Any]]) -> dict[str, float]:
    return {s["adversary"]: s["epsilon"] for s in statements if s["accountant"] == "exact"}


def client_level(*arguments: str) -> float:
    return exact(document(*arguments)["guarantees"])["client-level"]


def test_a_task_with_a_large_model_costs_a_client_5_505_under_covered_uploads(
    large_task: str, tmp_path: Path
) -> None:
    seen = client_level("--task", large_task)
    hidden = client_level("--task", task_file(tmp_path, f"{LARGE}cover_uploads = true\n"))
    assert hidden == pytest.approx(5.505, abs=5e-4)
    # Who uploads is seen: about twenty whole steps, and none of them amplified.
    assert seen > 3 * hidden
    numbers = [
        "--record-rate", "0.1", "--client-rate", "0.1", "--noise-multiplier", "2",
        "--rounds", "200", "--delta", "1e-5", "--record-clip", "1", "--client-clip", "2",
        "--dimension", "10000000", "--fractional-bits",
    ]  # fmt: skip
    assert client_level(*numbers, "20") == seen
    assert client_level(*numbers, "20", "--cover-uploads") == hidden
    assert client_level(*numbers, "16", "--cover-uploads") == pytest.approx(5.145, abs=5e-4)


def test_json_is_one_document_with_nine_statements() -> None:
    whole = document(*ACCOUNT, *CLIPS, "--fractional-bits", "16")
    assert list(whole) == ["guarantees", "at_cap"]
    found = {(g["adversary"], g["accountant"]): g for g in whole["guarantees"]}
    assert set(found) == {
        (adversary, accountant)
        for adversary in ("one-server", "clients-only", "client-level")
        for accountant in ("exact", "rdp", "gdp-clt")
    }
    epsilons = [found["one-server", by]["epsilon"] for by in ("exact", "gdp-clt")]
    assert epsilons == pytest.approx([3.83, 3.51], abs=0.005)
    expected = 2**0.5 * 2 * (1 + 650**0.5 / 65536 + 20 / 2**18) / 20
    assert found["client-level", "exact"]["noise_multiplier"] == pytest.approx(expected)


def test_of_several_tasks_each_has_its_own_repeats_and_many_have_a_sum(large_task: str) -> None:
    two = ["--task", large_task, "--task", large_task]
    two += ["--participations", "30", "--participations", "20"]
    before, after = document(*two), document(*two, "--again", "none", "--again", "1:4")
    assert exact(before["runs"][0]["guarantees"]) == exact(after["runs"][0]["guarantees"])
    for place in ("guarantees", "at_cap"):
        lower, higher = (exact(found["runs"][1][place]) for found in (before, after))
        assert all(lower[each] < higher[each] for each in lower)
    joint, more = exact(before["together"]), exact(after["together"])
    assert all(joint[each] < more[each] for each in joint)

    many = document(*["--task", large_task] * 13)
    assert many["runs"] == [{"source": large_task}] * 13
    few = document(*["--task", large_task] * 12)
    assert all("guarantees" in run for run in few["runs"])
    whole, less = exact(many["together"]), exact(few["together"])
    assert all(whole[each] > less[each] for each in whole)


def test_repeats_lower_the_cap_that_a_limit_leaves(tmp_path: Path) -> None:
    def capped(*again: str) -> tuple[int, float]:
        found = document("--task", limited(tmp_path), *again)["at_cap"]
        (one,) = (g for g in found if (g["adversary"], g["accountant"]) == ("one-server", "exact"))
        return one["compositions"], one["epsilon"]

    counted = ("--participations", "20")
    plan, once, more = (capped(*again) for again in ((), counted, (*counted, "--again", "1:4")))
    assert more[0] < once[0] == plan[0] < 200
    assert 1.3 < more[1] <= 1.5
    assert 1.4 < plan[1] <= 1.5


def test_the_cap_stands_beside_the_real_count_and_each_says_when_it_holds() -> None:
    counted = [*ACCOUNT, "--participations", "20", "--cap", "45"]
    found = document(*counted)
    for where, basis in (("guarantees", ("counted", 20)), ("at_cap", ("cap", 45))):
        assert {(g["basis"], g["compositions"]) for g in found[where]} == {basis}
    shown = said(*counted)
    assert "20 participations (counted; holds if nothing but the servers' coin decided" in shown
    assert "at 45 participations, the cap; holds whatever decided" in shown
    assert {g["compositions"] for g in document(*ACCOUNT)["at_cap"]} == {60}


def test_a_cap_that_was_passed_holds_nobody_and_the_planned_rounds_do(tmp_path: Path) -> None:
    """An owner at a rate below the task's may have taken part more often than the cap."""
    for options in (
        [*ACCOUNT, "--participations", "50", "--cap", "40"],
        [*ACCOUNT, "--participations", "50", "--again", "1:3", "--cap", "40"],
        ["--task", limited(tmp_path), "--participations", "60"],
    ):
        found = document(*options)
        spent, cap = exact(found["guarantees"]), exact(found["at_cap"])
        assert all(cap[adversary] >= spent[adversary] for adversary in cap)
        assert not re.search("at [45]0 participations, the cap", said(*options))


def test_an_owners_tasks_are_added_up(large_task: str, tmp_path: Path) -> None:
    other = task_file(tmp_path, LARGE.replace("record_rate = 0.1", "record_rate = 0.05"))
    both = ["--task", large_task, "--task", other]
    both += ["--participations", "30", "--participations", "25"]
    found = document(*both)
    assert [run["source"] for run in found["runs"]] == [large_task, other]

    alone = [exact(run["guarantees"]) for run in found["runs"]]
    joint = exact(found["together"])
    for adversary, epsilon in joint.items():
        costs = [one[adversary] for one in alone]
        assert max(costs) < epsilon < sum(costs)
    assert joint["one-server"] < exact(found["together_at_cap"])["one-server"]
    assert {s["compositions"] for s in found["together"]} == {55, 400}
    assert "True of tasks that were fixed beforehand" in said(*both)
    assert "one for each of 2 tasks" in refused("account", *both, "--participations", "1")


def test_the_clt_is_called_no_guarantee_and_a_delta_beyond_exact_leaves_the_other_rows() -> None:
    for delta, words in (
        ("1e-5", ("one curious server", "both servers honest", "not a guarantee", "3.833")),
        ("1e-40", ("no answer at so small a δ", "upper bound, cross-check")),
    ):
        shown = said(*RUN, "--delta", delta)
        assert [each for each in words if each not in shown] == []


def test_the_section_is_of_a_task_that_servers_take_with_the_least_noise_for_the_epsilon() -> None:
    text = commands.said(*LOOSE)
    assert text.startswith("Planned: ")
    numbers = {k: float(v) for k, v in re.findall(r"([a-z_.]+) = ([0-9.]+) ", text)}
    privacy = {name[8:]: n for name, n in numbers.items() if name.startswith("privacy.")}
    bits, rounds = (int(numbers[name]) for name in ("fractional_bits", "training.rounds"))
    changes = {"privacy": privacy, "fractional_bits": bits, "training.rounds": rounds}
    task_with(changes | {"enrolment.max_expected_records": 300.0}, 7850)
    sigma = privacy["noise_multiplier"]
    epsilons = [
        record_epsilon(record_rate=0.1, noise_multiplier=noise, delta=1e-5, participations=34)
        for noise in (sigma, 0.998 * sigma)
    ]
    assert epsilons[0] <= 2 < epsilons[1]
    # The noise gives its ε again, and all is called planned.
    noise = ("--noise-multiplier", commands.document(*LOOSE)["task"]["privacy"]["noise_multiplier"])
    found = planned(*SCHEDULE, *MODEL, *noise, "--client-clip", "10")
    assert (found["status"], found["participations"]) == ("planned", 34)
    assert 1.99 < found["statements"][0]["epsilon"] <= 2
    assert [each["basis"] for each in found["statements"]] == ["planned"] * 3


def test_a_clip_for_k_owners_keeps_the_loss_tolerated_and_as_many_are_certified() -> None:
    robust = (*PLAN, "--malicious", "2")
    assert "planned, not a certificate" in commands.said(*robust, "--owners", "1000")
    found = commands.document(*robust)
    asked, privacy = found["robustness"], found["task"]["privacy"]
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
    as_it_is, other = (planned("--task", large_task, *wish) for wish in ((), ("--epsilon", "1")))
    found, wanted = (each["task"]["privacy"] for each in (as_it_is, other))
    assert (found["noise_multiplier"], wanted["client_clip"]) == (2, 2)
    assert wanted["noise_multiplier"] == least_noise(1.0, 1e-5, 0.1, 34)
    assert other["statements"][0]["epsilon"] <= 1 < as_it_is["statements"][0]["epsilon"]


def test_with_proofs_a_task_is_planned_against_a_cheating_server(
    tmp_path: Path, large_task: str
) -> None:
    proofs = task_file(tmp_path, f'validation = "proof"\n{LARGE}')
    *same, capped = planned("--task", proofs)["statements"]
    # All but what the range test adds, whose rows and half-width are others.
    known = planned("--task", large_task)["statements"]
    for each in (*same, *known):
        each.pop("rejection_delta")
    assert (same, capped["basis"], capped["malicious_server"]) == (known, "cap", True)
    assert capped["epsilon"] >= same[0]["epsilon"]


def test_where_norms_are_proved_a_plan_allows_for_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a certificate does: with so many that a row is found, no owner's update is bounded."""
    robustness = Robustness(malicious=1)
    changes = {"privacy.noise_multiplier": 40.0, "privacy.client_clip": 1.0}
    shares, proofs = (task_with(changes | {"validation": v}) for v in ("crypten", "proof"))
    assert certified(proofs, robustness) == certified(shares, robustness)
    assert certified(proofs, robustness)["clients_added"] > 0
    monkeypatch.setattr("precad.certify.guarantee.HASHES", 2.0**100)
    assert certified(proofs, robustness)["clients_added"] == 0
    assert certified(shares, robustness)["clients_added"] > 0


WHOLE = ["account", *ACCOUNT, *CLIPS, "--fractional-bits", "20"]


@pytest.mark.parametrize(
    ("line", "left_out"),
    [*((WHOLE, each) for each in WHOLE[1::2]), *((LOOSE, each) for each in LOOSE[1:13:2])],
)
def test_no_number_is_assumed_that_a_task_has(line: list[str], left_out: str) -> None:
    at = line.index(left_out)
    told = refused(*line[:at], *line[at + 2 :])
    assert (f"give {left_out}" in told, "--task" in told) == (True, True), told


@pytest.mark.parametrize(
    ("command", "twice"),
    [
        *(("account", each) for each in ("--noise-multiplier", "--fractional-bits")),
        *(("plan", each) for each in ("--owners", "--client-clip", "--dimension", "--from")),
        ("plan", "--noise-multiplier"),
    ],
)
def test_a_number_beside_the_task_that_gives_it_is_refused(
    command: str, twice: str, large_task: str
) -> None:
    assert f"leave {twice} out" in refused(command, "--task", large_task, twice, "3")
    wishes = ["--records", "3x400", "--epsilon", "3", "--dimension", "7850"]
    model = ["--architecture", "logistic", "--features", "30", "--classes", "2"]
    assert "leave --architecture out" in refused("plan", *wishes, *model)


AGAIN = "--participations 20 --again"


@pytest.mark.parametrize(
    ("command", "wrong", "field", "remedy"),
    [
        *(
            (WHOLE[:11], *row)
            for row in (
                ("--noise-multiplier 0", "noise_multiplier", "above 0"),
                ("--noise-multiplier 1e300", "noise_multiplier", "give 1e-06 to 1e+09"),
                (f"--rounds {10**15}", "rounds", "at most"),
                ("--record-rate 1.5", "record_rate", "0 to 1"),
                ("--client-rate -0.1", "client_rate", "0 to 1"),
                ("--delta 1", "delta", "below 1"),
                ("--rounds -1", "rounds", "whole number"),
                ("--participations 61", "participations", "at most 60"),
                ("--sampling shuffle", "sampling", "'poisson'"),
                ("--sampling fixed-size", "sampling", "2 clips"),
                ("--record-clip 1", "client_clip", "give --client-clip"),
                ("--client-clip 1", "record_clip", "give --record-clip"),
                ("--again 1:3", "again", "give --participations too"),
                (f"{AGAIN} 3", "again", "give M:COUNT"),
                (f"{AGAIN} 0:3", "again", "M at least 1"),
                (f"{AGAIN} 1:3;2:1", "again", "like 1:3 or 1:3,2:1"),
                (f"{AGAIN} 1:3,1:2", "again", "twice"),
                (f"{AGAIN} 1:30", "again", "of more versions than"),
                (f"{AGAIN} 1:3 --again 2:1", "again", "give one for each of 1"),
            )
        ),
        *(
            (PLAN, *row)
            for row in (
                ("--malicious 0", "malicious", "1 or more"),
                ("--malicious 1 --tolerated-loss 0.1", "tolerated_loss", "above 0.2"),
                ("", "client_clip", "or --malicious"),
                ("--client-clip 9 --noise-multiplier 2", "epsilon", "or --noise-multiplier"),
                ("--client-clip 1e300", "client_clip", ""),
                ("--client-clip 0.1", "record_clip", "privacy.client_clip"),
                ("--client-clip 9 --epsilon 1e300", "epsilon", "at most 100:"),
                (f"--client-clip 9 --rounds {10**12}", "rounds", "at most"),
                (f"--client-clip 9 --dimension {10**15}", "", ""),
                ("--client-clip 9 --record-rate 2", "rate", "0 to 1"),
            )
        ),
    ],
)
def test_a_wrong_value_names_the_field_and_the_remedy(
    command: list[str], wrong: str, field: str, remedy: str
) -> None:
    told = refused(*command, *wrong.split(), "--json")
    assert (told.count("\n"), field in told, remedy in told) == (1, True, True), told
