"""`precad account` as a person runs it."""

import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.rig import commands
from tests.rig.tasks import LARGE

RUN = ["--record-rate", "0.2", "--client-rate", "1", "--noise-multiplier", "2", "--rounds", "60"]
ACCOUNT = [*RUN, "--delta", "1e-5"]
CLIPS = ["--record-clip", "1", "--client-clip", "20", "--dimension", "650"]
document = partial(commands.document, "account")
said = partial(commands.said, "account")
refused = partial(commands.refused, "account")


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


@pytest.mark.parametrize("left_out", [*ACCOUNT[::2], *CLIPS[::2], "--fractional-bits"])
def test_account_assumes_no_number_that_a_task_has(left_out: str) -> None:
    whole = [*ACCOUNT, *CLIPS, "--fractional-bits", "20"]
    at = whole.index(left_out)
    told = refused(*whole[:at], *whole[at + 2 :])
    assert f"give {left_out}" in told
    assert "--task" in told


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
    assert "one for each of 2 tasks" in refused(*both, "--participations", "1")


def test_the_clt_is_called_no_guarantee_and_a_delta_beyond_exact_leaves_the_other_rows() -> None:
    for delta, words in (
        ("1e-5", ("one curious server", "both servers honest", "not a guarantee", "3.833")),
        ("1e-40", ("no answer at so small a δ", "upper bound, cross-check")),
    ):
        shown = said(*RUN, "--delta", delta)
        assert [each for each in words if each not in shown] == []


AGAIN = ("--participations", "20", "--again")


@pytest.mark.parametrize(
    ("wrong", "field", "remedy"),
    [
        (("--noise-multiplier", "0"), "noise_multiplier", "above 0"),
        (("--noise-multiplier", "1e300"), "noise_multiplier", "give 1e-06 to 1e+09"),
        (("--rounds", str(10**15)), "rounds", "at most"),
        (("--record-rate", "1.5"), "record_rate", "0 to 1"),
        (("--client-rate", "-0.1"), "client_rate", "0 to 1"),
        (("--delta", "1"), "delta", "below 1"),
        (("--rounds", "-1"), "rounds", "whole number"),
        (("--participations", "61"), "participations", "at most 60"),
        (("--sampling", "shuffle"), "sampling", "'poisson'"),
        (("--sampling", "fixed-size"), "sampling", "2 clips"),
        (("--record-clip", "1"), "client_clip", "give --client-clip"),
        (("--client-clip", "1"), "record_clip", "give --record-clip"),
        (("--again", "1:3"), "again", "give --participations too"),
        ((*AGAIN, "3"), "again", "give M:COUNT"),
        ((*AGAIN, "0:3"), "again", "M at least 1"),
        ((*AGAIN, "1:3;2:1"), "again", "like 1:3 or 1:3,2:1"),
        ((*AGAIN, "1:3,1:2"), "again", "twice"),
        ((*AGAIN, "1:30"), "again", "of more versions than"),
        ((*AGAIN, "1:3", "--again", "2:1"), "again", "give one for each of 1"),
    ],
)
def test_a_wrong_value_names_the_field_and_the_remedy(
    wrong: tuple[str, ...], field: str, remedy: str
) -> None:
    told = refused(*ACCOUNT, *wrong, "--json")
    assert (field in told, remedy in told) == (True, True), told


@pytest.mark.parametrize("twice", ["--noise-multiplier", "--fractional-bits"])
def test_a_number_beside_the_task_that_gives_it_is_refused(twice: str, large_task: str) -> None:
    assert f"leave {twice} out" in refused("--task", large_task, twice, "2")
