"""`precad account` as a person runs it."""

import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.rig import commands
from tests.rig.tasks import LARGE

from precad.accounting.events import poisson_gaussian
from precad.accounting.exact import ExactAccountant

RUN = ["--record-rate", "0.2", "--client-rate", "1", "--noise-multiplier", "2", "--rounds", "60"]
ACCOUNT = [*RUN, "--delta", "1e-5"]
CLIPS = ["--record-clip", "1", "--client-clip", "20", "--dimension", "650"]
document = partial(commands.document, "account")
said = partial(commands.said, "account")
refused = partial(commands.refused, "account")


@pytest.fixture
def large_task(tmp_path: Path) -> str:
    return task_file(tmp_path / "task.toml")


def task_file(path: Path, more: str = "") -> str:
    path.write_text(LARGE + more)
    return str(path)


def exact(statements: list[dict[str, Any]]) -> dict[str, float]:
    return {s["adversary"]: s["epsilon"] for s in statements if s["accountant"] == "exact"}


def client_level(*arguments: str) -> float:
    return exact(document(*arguments)["guarantees"])["client-level"]


def limited(tmp_path: Path) -> str:
    return task_file(tmp_path / "limited.toml", "epsilon_limit = 1.5\n")


def test_a_task_with_a_large_model_costs_a_client_5_505_under_covered_uploads(
    large_task: str, tmp_path: Path
) -> None:
    seen = client_level("--task", large_task)
    covered = task_file(tmp_path / "covered.toml", "cover_uploads = true\n")
    hidden = client_level("--task", covered)
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


@pytest.mark.parametrize("left_out", [*ACCOUNT[::2], *CLIPS[::2], "--fractional-bits"])
def test_account_assumes_no_number_that_a_task_has(left_out: str) -> None:
    whole = [*ACCOUNT, *CLIPS, "--fractional-bits", "20"]
    at = whole.index(left_out)
    told = refused(*whole[:at], *whole[at + 2 :])
    assert f"give {left_out}" in told
    assert "--task" in told


@pytest.mark.parametrize("twice", ["--noise-multiplier", "--fractional-bits"])
def test_a_number_beside_the_task_that_gives_it_is_refused(twice: str, large_task: str) -> None:
    assert f"leave {twice} out" in refused("--task", large_task, twice, "2")


def test_json_is_one_document_with_nine_statements() -> None:
    whole = document(*ACCOUNT, *CLIPS, "--fractional-bits", "16")
    assert list(whole) == ["guarantees", "at_cap"]
    found = {(g["adversary"], g["accountant"]): g for g in whole["guarantees"]}
    assert set(found) == {
        (adversary, accountant)
        for adversary in ("one-server", "clients-only", "client-level")
        for accountant in ("exact", "rdp", "gdp-clt")
    }
    assert round(found["one-server", "exact"]["epsilon"], 2) == 3.83
    assert round(found["one-server", "gdp-clt"]["epsilon"], 2) == 3.51
    expected = 2**0.5 * 2 * (1 + 650**0.5 / 65536 + 20 / 2**18) / 20
    assert found["client-level", "exact"]["noise_multiplier"] == pytest.approx(expected)


def composed(noises: dict[float, int]) -> float:
    accountant = ExactAccountant()
    for noise, count in noises.items():
        accountant.compose(poisson_gaussian(rate=0.2, noise_multiplier=noise, count=count))
    return accountant.epsilon(1e-5)


def test_a_version_released_m_more_times_costs_a_step_with_the_noise_divided() -> None:
    """By √(1+m), as X is the same."""
    counted = ["--participations", "40", "--again", "1:5,3:2"]
    found = exact(document(*ACCOUNT, *counted)["guarantees"])
    for adversary, noise in (("one-server", 2.0), ("clients-only", 2.0 * 2**0.5)):
        expected = composed({noise: 33, noise / 2**0.5: 5, noise / 2: 2})
        assert found[adversary] == pytest.approx(expected, rel=1e-3)
        assert found[adversary] > composed({noise: 51}) * 1.01


def test_of_several_tasks_each_has_its_own_repeats(large_task: str) -> None:
    two = ["--task", large_task, "--task", large_task]
    two += ["--participations", "30", "--participations", "20"]
    before, after = document(*two), document(*two, "--again", "none", "--again", "1:4")
    assert exact(before["runs"][0]["guarantees"]) == exact(after["runs"][0]["guarantees"])

    def costs(found: Any) -> list[dict[str, float]]:
        own = found["runs"][1]
        return [exact(each) for each in (own["guarantees"], own["at_cap"], found["together"])]

    for lower, higher in zip(costs(before), costs(after), strict=True):
        assert all(lower[each] < higher[each] for each in lower)


def test_of_many_tasks_only_the_sum_is_computed(large_task: str) -> None:
    arguments = ["--task", large_task] * 13
    many, few = document(*arguments), document(*arguments[:-2])
    assert many["runs"] == [{"source": large_task}] * 13
    assert all("guarantees" in run for run in few["runs"])
    whole, less = exact(many["together"]), exact(few["together"])
    assert all(whole[each] > less[each] for each in whole)
    assert "the account of each is left out" in said(*arguments)


def test_repeats_lower_the_cap_that_a_limit_leaves(tmp_path: Path) -> None:
    def capped(*again: str) -> dict[str, Any]:
        found = document("--task", limited(tmp_path), *again)["at_cap"]
        (one,) = (g for g in found if (g["adversary"], g["accountant"]) == ("one-server", "exact"))
        return dict(one)

    plan, once, more = (
        capped(*again)
        for again in ((), ("--participations", "20"), ("--participations", "20", "--again", "1:4"))
    )
    assert more["compositions"] < once["compositions"] == plan["compositions"] < 200
    assert 1.3 < more["epsilon"] <= 1.5
    assert 1.4 < plan["epsilon"] <= 1.5


@pytest.mark.parametrize(
    ("again", "remedy"),
    [
        (["--again", "1:3"], "give --participations too"),
        (["--participations", "20", "--again", "3"], "give M:COUNT"),
        (["--participations", "20", "--again", "0:3"], "M at least 1"),
        (["--participations", "20", "--again", "1:3;2:1"], "like 1:3 or 1:3,2:1"),
        (["--participations", "20", "--again", "1:3,1:2"], "twice"),
        (["--participations", "20", "--again", "1:30"], "of more versions than"),
        (["--participations", "20", "--again", "1:3", "--again", "2:1"], "give one for each of 1"),
    ],
)
def test_wrong_repeats_name_the_remedy(again: list[str], remedy: str) -> None:
    told = refused(*ACCOUNT, *again)
    assert "again" in told
    assert remedy in told


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
        shown = said(*options)
        assert "at 40 participations, the cap" not in shown
        assert "at 50 participations, the cap" not in shown


def test_an_owners_tasks_are_added_up(large_task: str, tmp_path: Path) -> None:
    other = tmp_path / "other.toml"
    other.write_text(LARGE.replace("record_rate = 0.1", "record_rate = 0.05"))
    both = ["--task", large_task, "--task", str(other)]
    both += ["--participations", "30", "--participations", "25"]
    found = document(*both)
    assert [run["source"] for run in found["runs"]] == [large_task, str(other)]

    alone = [exact(run["guarantees"]) for run in found["runs"]]
    joint = exact(found["together"])
    for adversary, epsilon in joint.items():
        costs = [one[adversary] for one in alone]
        assert max(costs) < epsilon < sum(costs)
    assert joint["one-server"] < exact(found["together_at_cap"])["one-server"]
    assert {s["compositions"] for s in found["together"]} == {55, 400}
    shown = said(*both)
    assert "All 2 together" in shown
    assert "True of tasks that were fixed beforehand" in shown
    assert "one for each of 2 tasks" in refused(*both, "--participations", "1")


def test_honest_rejection_is_counted_where_a_task_says_how_often_updates_are_tested(
    large_task: str,
) -> None:
    known = document("--task", large_task)["guarantees"]
    assert all(0 < g["rejection_delta"] < 1e-8 for g in known if g["epsilon"] < 10)
    told = said("--task", large_task)
    (line,) = re.findall(r"Honest rejection adds to δ at most (.*)\.", told)
    added = {who: float(value) for value, who in re.findall(r"(\S+) \(([\w-]+)\)", line)}
    assert added["one-server"] < 1e-8 < added["client-level"]
    assert "Honest rejection isn't in δ" in said(*ACCOUNT)


def test_the_table_names_each_adversary_in_words_and_the_clt_as_no_guarantee() -> None:
    shown = said(*ACCOUNT)
    for words in ("one curious server", "both servers honest", "not a guarantee", "3.833"):
        assert words in shown
    assert "give --record-clip" in shown
    # A δ beyond the exact accountant leaves the other rows.
    shown = said(*ACCOUNT[:-1], "1e-40")
    for words in ("no answer at so small a δ", "upper bound, cross-check"):
        assert words in shown


@pytest.mark.parametrize(
    ("option", "value", "field", "remedy"),
    [
        ("--noise-multiplier", "0", "noise_multiplier", "above 0"),
        ("--noise-multiplier", "1e300", "noise_multiplier", "give 1e-06 to 1e+09"),
        ("--rounds", str(10**15), "rounds", "at most"),
        ("--record-rate", "1.5", "record_rate", "0 to 1"),
        ("--client-rate", "-0.1", "client_rate", "0 to 1"),
        ("--delta", "1", "delta", "below 1"),
        ("--rounds", "-1", "rounds", "whole number"),
        ("--participations", "61", "participations", "at most 60"),
        ("--sampling", "shuffle", "sampling", "'poisson'"),
        ("--sampling", "fixed-size", "sampling", "2 clips"),
        ("--record-clip", "1", "client_clip", "give --client-clip"),
        ("--client-clip", "1", "record_clip", "give --record-clip"),
    ],
)
def test_a_wrong_value_exits_2_and_names_the_field_and_the_remedy(
    option: str, value: str, field: str, remedy: str
) -> None:
    told = refused(*ACCOUNT, option, value, "--json")
    assert field in told
    assert remedy in told
