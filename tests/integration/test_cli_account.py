"""`precad account` as a person runs it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

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


def test_a_task_with_a_large_model_costs_a_client_5_505(large_task: str) -> None:
    assert client_level("--task", large_task) == pytest.approx(5.505, abs=5e-4)
    numbers = [
        "--record-rate", "0.1", "--client-rate", "0.1", "--noise-multiplier", "2",
        "--rounds", "200", "--delta", "1e-5", "--record-clip", "1", "--client-clip", "2",
        "--dimension", "10000000", "--fractional-bits",
    ]  # fmt: skip
    assert client_level(*numbers, "20") == client_level("--task", large_task)
    assert client_level(*numbers, "16") == pytest.approx(5.145, abs=5e-4)


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
    assert list(document) == ["guarantees"]
    found = {(g["adversary"], g["accountant"]): g for g in document["guarantees"]}
    assert set(found) == {
        (adversary, accountant)
        for adversary in ("one-server", "clients-only", "client-level")
        for accountant in ("exact", "rdp", "gdp-clt")
    }
    assert round(found["one-server", "exact"]["epsilon"], 2) == 3.83
    assert round(found["one-server", "gdp-clt"]["epsilon"], 2) == 3.51
    expected = 2**0.5 * 2 * (1 + 650**0.5 / 65536) / 20
    assert found["client-level", "exact"]["noise_multiplier"] == pytest.approx(expected)


def test_participations_replace_the_plan() -> None:
    result = runner.invoke(app, [*ACCOUNT, "--participations", "20", "--json"])
    document = json.loads(result.stdout)
    assert {g["compositions"] for g in document["guarantees"]} == {20}


def test_the_table_names_each_adversary_in_words_and_the_clt_as_no_guarantee() -> None:
    shown = runner.invoke(app, ACCOUNT).stdout
    for words in ("one curious server", "both servers honest", "not a guarantee", "3.832"):
        assert words in shown
    assert "give --record-clip" in shown


@pytest.mark.parametrize(
    ("option", "value", "field", "remedy"),
    [
        ("--noise-multiplier", "0", "noise_multiplier", "above 0"),
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
        "import sys; from typer.testing import CliRunner; from precad.cli.main import app\n"
        "assert CliRunner().invoke(app, ['--help']).exit_code == 0\n"
        "loaded = {'numpy', 'scipy', 'torch', 'dp_accounting', 'matplotlib'} & set(sys.modules)\n"
        "sys.exit(str(loaded) if loaded else 0)"
    )
    path = os.pathsep.join(sys.path)
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ | {"PYTHONPATH": path})
