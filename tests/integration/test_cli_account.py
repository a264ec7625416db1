"""`precad account` as a person runs it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from scipy.optimize import brentq

from precad.cli.main import app

RUN = ["--record-rate", "0.2", "--client-rate", "1", "--noise-multiplier", "2", "--rounds", "60"]
ACCOUNT = ["account", *RUN, "--delta", "1e-5"]
CLIPS = ["--record-clip", "1", "--client-clip", "20", "--dimension", "650"]
# A model so large that the rounding in R' counts. It takes 20 fractional bits, as every task does
# that doesn't say otherwise; 16 would make R' 4.5 % larger, and with it the noise per client.
LARGE = """
name = "large"
model.parameters = [{ name = "w", shape = [10_000_000] }]
training = { learning_rate = 1.0, rounds = 200 }
enrolment = { clients = 50, max_expected_records = 60.0 }
[privacy]
record_clip = 1.0
client_clip = 2.0
noise_multiplier = 2.0
record_rate = 0.1
client_rate = 0.1
"""
runner = CliRunner()


@pytest.fixture
def large_task(tmp_path: Path) -> str:
    path = tmp_path / "task.toml"
    path.write_text(LARGE)
    return str(path)


def client_level(*arguments: str) -> float:
    result = runner.invoke(app, ["account", *arguments, "--json"])
    assert result.exit_code == 0, result.stderr
    (epsilon,) = (
        statement["epsilon"]
        for statement in json.loads(result.stdout)["guarantees"]
        if (statement["adversary"], statement["accountant"]) == ("client-level", "exact")
    )
    return float(epsilon)


def test_a_task_with_a_large_model_costs_a_client_5_505_under_covered_uploads(
    large_task: str, tmp_path: Path
) -> None:
    seen = client_level("--task", large_task)
    covered = tmp_path / "covered.toml"
    covered.write_text(f"{LARGE}cover_uploads = true\n")
    hidden = client_level("--task", str(covered))
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


def numbers_of(command: list[str]) -> list[str]:
    return [argument for argument in command if argument.startswith("--")]


@pytest.mark.parametrize(
    "left_out", [*numbers_of(ACCOUNT), *numbers_of(CLIPS), "--fractional-bits"]
)
def test_account_assumes_no_number_that_a_task_has(left_out: str) -> None:
    whole = [*ACCOUNT, *CLIPS, "--fractional-bits", "20"]
    at = whole.index(left_out)
    result = runner.invoke(app, whole[:at] + whole[at + 2 :])
    assert result.exit_code == 2
    assert result.stdout == ""
    assert f"give {left_out}" in result.stderr
    assert "--task" in result.stderr


@pytest.mark.parametrize(
    "twice", [["--noise-multiplier", "2"], ["--fractional-bits", "20"]], ids=" ".join
)
def test_a_number_beside_the_task_that_gives_it_is_refused(
    twice: list[str], large_task: str
) -> None:
    result = runner.invoke(app, ["account", "--task", large_task, *twice])
    assert result.exit_code == 2
    assert f"leave {twice[0]} out" in result.stderr


def test_json_is_one_document_with_nine_statements() -> None:
    result = runner.invoke(app, [*ACCOUNT, *CLIPS, "--fractional-bits", "16", "--json"])
    assert result.exit_code == 0
    document = json.loads(result.stdout)
    assert list(document) == ["guarantees", "at_cap"]
    found = {(g["adversary"], g["accountant"]): g for g in document["guarantees"]}
    assert set(found) == {
        (adversary, accountant)
        for adversary in ("one-server", "clients-only", "client-level")
        for accountant in ("exact", "rdp", "gdp-clt")
    }
    assert round(found["one-server", "exact"]["epsilon"], 2) == 3.83
    assert round(found["one-server", "gdp-clt"]["epsilon"], 2) == 3.51
    expected = 2**0.5 * 2 * (1 + 650**0.5 / 65536 + 20 / 2**18) / 20
    assert found["client-level", "exact"]["noise_multiplier"] == pytest.approx(expected)


def test_participations_replace_the_plan() -> None:
    result = runner.invoke(app, [*ACCOUNT, "--participations", "20", "--json"])
    document = json.loads(result.stdout)
    assert {g["compositions"] for g in document["guarantees"]} == {20}


def plain_epsilon(delta: float, rate: float, steps: dict[float, int]) -> float:
    """ε of removing a record, by a plain Fourier transform: {σ: how many Poisson(rate) steps}."""
    cell, size = 1e-4, 2**20
    product = np.ones(size // 2 + 1, dtype=complex)
    for sigma, count in steps.items():
        x = np.linspace(-9 * sigma, 1 + 9 * sigma, 400_001)
        ratio = 1 - rate + rate * np.exp((2 * x - 1) / (2 * sigma**2))
        weights = ratio * np.exp(-0.5 * (x / sigma) ** 2)
        weights /= weights.sum()
        place = np.log(ratio) / cell
        below = np.floor(place).astype(np.int64)
        places = np.concatenate([below, below + 1]) % size
        parts = np.concatenate([weights * (1 + below - place), weights * (place - below)])
        product *= np.fft.rfft(np.bincount(places, parts, size).astype(np.float64)) ** count
    masses = np.roll(np.fft.irfft(product, size), size // 4)
    losses = (np.arange(size) - size // 4) * cell

    def passed(epsilon: float) -> float:
        above = losses > epsilon
        return float((masses[above] * -np.expm1(epsilon - losses[above])).sum()) - delta

    return float(brentq(passed, 0.0, 20.0))


def exact(statements: list[dict[str, object]]) -> dict[str, float]:
    return {
        str(s["adversary"]): float(str(s["epsilon"]))
        for s in statements
        if s["accountant"] == "exact"
    }


def test_versions_released_again_cost_what_an_independent_composition_says() -> None:
    """m further releases of the same X: one step with σ/√(1+m)."""
    counted = [*ACCOUNT, "--participations", "40", "--again", "1:5,3:2", "--json"]
    result = runner.invoke(app, counted)
    assert result.exit_code == 0, result.stderr
    found = exact(json.loads(result.stdout)["guarantees"])
    for adversary, noise in (("one-server", 2.0), ("clients-only", 2.0 * 2**0.5)):
        steps = {noise: 33, noise / 2**0.5: 5, noise / 2: 2}
        truth = plain_epsilon(1e-5, 0.2, steps)
        assert truth * (1 - 1e-4) <= found[adversary] <= truth * 1.003
        seven_more = plain_epsilon(1e-5, 0.2, {noise: 51})
        assert found[adversary] > seven_more * 1.01


def test_of_several_tasks_each_has_its_own_repeats(large_task: str) -> None:
    two = ["--task", large_task, "--task", large_task]
    two += ["--participations", "30", "--participations", "20"]
    once = runner.invoke(app, ["account", *two, "--json"])
    again = runner.invoke(app, ["account", *two, "--again", "none", "--again", "1:4", "--json"])
    assert again.exit_code == 0, again.stderr
    before, after = json.loads(once.stdout), json.loads(again.stdout)
    assert exact(before["runs"][0]["guarantees"]) == exact(after["runs"][0]["guarantees"])
    for name in ("guarantees", "at_cap"):
        lower, higher = exact(before["runs"][1][name]), exact(after["runs"][1][name])
        assert all(lower[each] < higher[each] for each in lower)
    lower, higher = exact(before["together"]), exact(after["together"])
    assert all(lower[each] < higher[each] for each in lower)


def test_of_many_tasks_only_the_sum_is_computed(large_task: str) -> None:
    arguments = ["account", *["--task", large_task] * 13]
    document = json.loads(runner.invoke(app, [*arguments, "--json"]).stdout)
    assert document["runs"] == [{"source": large_task}] * 13
    few = json.loads(runner.invoke(app, [*arguments[:-2], "--json"]).stdout)
    assert all("guarantees" in run for run in few["runs"])
    whole, less = exact(document["together"]), exact(few["together"])
    assert all(whole[each] > less[each] for each in whole)
    shown = " ".join(runner.invoke(app, arguments).stdout.split())
    assert "All 13 together" in shown
    assert "the account of each is left out" in shown


def test_repeats_lower_the_cap_that_a_limit_leaves(tmp_path: Path) -> None:
    limited = tmp_path / "limited.toml"
    limited.write_text(f"{LARGE}epsilon_limit = 1.5\n")

    def capped(*again: str) -> dict[str, object]:
        arguments = ["--task", str(limited), "--participations", "30", *again, "--json"]
        result = runner.invoke(app, ["account", *arguments])
        assert result.exit_code == 0, result.stderr
        (found,) = (
            g
            for g in json.loads(result.stdout)["at_cap"]
            if (g["adversary"], g["accountant"]) == ("one-server", "exact")
        )
        return dict(found)

    once, more = capped(), capped("--again", "1:4")
    assert int(str(more["compositions"])) < int(str(once["compositions"]))
    assert 1.3 < float(str(more["epsilon"])) <= 1.5


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
    result = runner.invoke(app, [*ACCOUNT, *again])
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "again" in result.stderr
    assert remedy in result.stderr


def test_the_cap_stands_beside_the_real_count_and_each_says_when_it_holds() -> None:
    counted = [*ACCOUNT, "--participations", "20", "--cap", "45"]
    document = json.loads(runner.invoke(app, [*counted, "--json"]).stdout)
    assert {g["basis"] for g in document["guarantees"]} == {"counted"}
    assert {(g["basis"], g["compositions"]) for g in document["at_cap"]} == {("cap", 45)}
    shown = " ".join(runner.invoke(app, counted).stdout.split())
    assert "20 participations (counted; holds if nothing but the servers' coin decided" in shown
    assert "at 45 participations, the cap; holds whatever decided" in shown
    unlimited = json.loads(runner.invoke(app, [*ACCOUNT, "--json"]).stdout)
    assert {g["compositions"] for g in unlimited["at_cap"]} == {60}


def test_a_tasks_limit_is_its_cap(tmp_path: Path) -> None:
    limited = tmp_path / "limited.toml"
    limited.write_text(f"{LARGE}epsilon_limit = 1.5\n")
    result = runner.invoke(app, ["account", "--task", str(limited), "--json"])
    (exact,) = (
        g
        for g in json.loads(result.stdout)["at_cap"]
        if (g["adversary"], g["accountant"]) == ("one-server", "exact")
    )
    assert 1.4 < exact["epsilon"] <= 1.5
    assert exact["compositions"] < 200


def test_an_owners_tasks_are_added_up(large_task: str, tmp_path: Path) -> None:
    other = tmp_path / "other.toml"
    other.write_text(LARGE.replace("record_rate = 0.1", "record_rate = 0.05"))
    both = ["account", "--task", large_task, "--task", str(other)]
    both += ["--participations", "30", "--participations", "25"]
    document = json.loads(runner.invoke(app, [*both, "--json"]).stdout)
    assert [run["source"] for run in document["runs"]] == [large_task, str(other)]

    alone = [exact(run["guarantees"]) for run in document["runs"]]
    joint = exact(document["together"])
    for adversary, epsilon in joint.items():
        costs = [one[adversary] for one in alone]
        assert max(costs) < epsilon < sum(costs)
    assert joint["one-server"] < exact(document["together_at_cap"])["one-server"]
    assert {s["compositions"] for s in document["together"]} == {55, 400}
    shown = " ".join(runner.invoke(app, both).stdout.split())
    assert "All 2 together" in shown
    assert "True of tasks that were fixed beforehand" in shown
    short = runner.invoke(app, [*both, "--participations", "1"])
    assert short.exit_code == 2
    assert "one for each of 2 tasks" in short.stderr


def test_honest_rejection_is_counted_where_a_task_says_how_often_updates_are_tested(
    large_task: str,
) -> None:
    known = json.loads(runner.invoke(app, ["account", "--task", large_task, "--json"]).stdout)
    assert all(0 < g["rejection_delta"] < 1e-8 for g in known["guarantees"] if g["epsilon"] < 10)
    assert (
        "Honest rejection adds at most"
        in runner.invoke(app, ["account", "--task", large_task]).stdout
    )
    typed = runner.invoke(app, ACCOUNT)
    assert "Honest rejection isn't in δ" in typed.stdout


def test_a_finished_run_counts_every_round_and_its_attempts(tmp_path: Path) -> None:
    inputs = {
        "task_digest": "ab" * 32, "noise_multiplier": 2.0, "record_clip": 1.0,
        "effective_record_clip": 1.002, "client_clip": 2.0, "client_rate": 0.2,
        "record_rate": 0.1, "rounds": 30, "delta": 1e-5, "clients": 10,
        "malicious_submission_soundness_bits": 40, "attempts": 60,
    }  # fmt: skip
    (tmp_path / "summary.json").write_text(json.dumps({"certificate_inputs": inputs}))
    result = runner.invoke(app, ["account", "--run", str(tmp_path), "--json"])
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)["guarantees"]
    assert {(g["basis"], g["compositions"]) for g in found} == {("cap", 30)}
    assert all(0 < g["rejection_delta"] <= 1 for g in found)
    refused = runner.invoke(app, ["account", "--run", str(tmp_path), "--delta", "1e-5"])
    assert refused.exit_code == 2
    assert "leave --delta out" in refused.stderr


def test_a_delta_beyond_the_exact_accountant_leaves_the_other_rows() -> None:
    result = runner.invoke(app, [*ACCOUNT[:-1], "1e-40"])
    assert result.exit_code == 0, result.stderr
    assert "no answer at so small a δ" in result.stdout
    assert "upper bound, cross-check" in result.stdout


def test_the_table_names_each_adversary_in_words_and_the_clt_as_no_guarantee() -> None:
    shown = runner.invoke(app, ACCOUNT).stdout
    for words in ("one curious server", "both servers honest", "not a guarantee", "3.832"):
        assert words in shown
    assert "give --record-clip" in shown


@pytest.mark.parametrize(
    ("option", "value", "field", "remedy"),
    [
        ("--noise-multiplier", "0", "noise_multiplier", "above 0"),
        ("--noise-multiplier", "1e300", "noise_multiplier", "give 1e-06 to 1e+09"),
        ("--noise-multiplier", "1e-300", "noise_multiplier", "give 1e-06 to 1e+09"),
        ("--rounds", str(10**15), "rounds", "at most"),
        ("--record-rate", "1.5", "record_rate", "0 to 1"),
        ("--client-rate", "-0.1", "client_rate", "0 to 1"),
        ("--delta", "1", "delta", "below 1"),
        ("--rounds", "-1", "rounds", "whole number"),
        ("--participations", "61", "participations", "at most 60"),
        ("--sampling", "shuffle", "sampling", "poisson or fixed-size"),
        ("--sampling", "fixed-size", "sampling", "2 clips"),
        ("--record-clip", "1", "client_clip", "give --client-clip"),
        ("--client-clip", "1", "record_clip", "give --record-clip"),
    ],
)
def test_a_wrong_value_exits_2_and_names_the_field_and_the_remedy(
    option: str, value: str, field: str, remedy: str
) -> None:
    result = runner.invoke(app, [*ACCOUNT, option, value, "--json"])
    assert result.exit_code == 2
    assert result.stdout == ""
    assert field in result.stderr
    assert remedy in result.stderr


def test_help_needs_no_numerics() -> None:
    code = (
        "import sys; from click.testing import CliRunner; from precad.cli.main import app\n"
        "assert CliRunner().invoke(app, ['--help']).exit_code == 0\n"
        "loaded = {'numpy', 'scipy', 'torch', 'dp_accounting', 'matplotlib'} & set(sys.modules)\n"
        "sys.exit(str(loaded) if loaded else 0)"
    )
    path = os.pathsep.join(sys.path)
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ | {"PYTHONPATH": path})
