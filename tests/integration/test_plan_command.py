"""`precad plan` as a person runs it."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from precad.cli.main import app
from precad.common.task import Task

DATA = ["--records", "6000", "--clients", "10", "--dimension", "7850", "--delta", "1e-5"]
PLAN = ["plan", *DATA, "--epsilon", "3"]
ONE = ["--record-rate", "0.05", "--client-rate", "1", "--rounds", "50"]
# So large that the rounding in R' counts.
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
OF_TASK = ["--records", "600", "--epsilon", "2"]
runner = CliRunner()


@pytest.fixture
def large_task(tmp_path: Path) -> str:
    path = tmp_path / "task.toml"
    path.write_text(LARGE)
    return str(path)


def planned(*arguments: str) -> Any:
    return runner.invoke(app, [*PLAN, *ONE, *arguments])


def said(*arguments: str) -> str:
    result = planned(*arguments)
    assert result.exit_code == 0, result.stderr
    return " ".join(result.stdout.split())


def document(*arguments: str) -> Any:
    result = planned(*arguments, "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout, parse_constant=pytest.fail)


def test_the_search_takes_the_setting_that_trains_and_prints_what_a_task_takes() -> None:
    """It called all too noisy once, for a malicious owner that nobody had asked about."""
    result = runner.invoke(app, PLAN)
    text = " ".join(result.stdout.split())
    assert result.exit_code == 0, result.stderr
    numbers = dict(re.findall(r"([a-z_.]+) = ([0-9.]+)", text))
    privacy = {name[8:]: float(n) for name, n in numbers.items() if name.startswith("privacy.")}
    assert (privacy["record_rate"], privacy["client_rate"], numbers["training.rounds"]) == (
        *(0.05, 1.0),
        "200",
    )
    Task.parse(
        {
            "name": "as-printed",
            "model": {"parameters": [{"name": "w", "shape": [10, 785]}]},
            "privacy": privacy,
            "training": {
                "learning_rate": float(numbers["training.learning_rate"]),
                "rounds": int(numbers["training.rounds"]),
            },
            "enrolment": {"clients": 10, "max_expected_records": 300.0},
            "fractional_bits": int(numbers["fractional_bits"]),
        }
    )


def test_all_that_is_shown_is_called_planned() -> None:
    text = said()
    assert text.startswith("Planned for 10 owners of 6,000 records")
    statements = re.findall(r"(\S+) ε = [\d.e+]+ \((\S+)\)", text)
    assert [before for before, _ in statements] == ["planned:"] * 3
    assert "planned, not a certificate" in text
    assert document()["status"] == "planned"


def test_no_robustness_is_a_choice_with_its_price_and_neither_is_hidden() -> None:
    undecided = said()
    assert "No robustness was chosen" in undecided
    assert "--malicious 1" in undecided
    assert "learns little" in undecided
    chosen = said("--no-robustness")
    assert "--malicious 1" not in chosen
    assert "no statement about a whole owner" in chosen
    robust = said("--malicious", "1")
    assert "No setting meets everything" in robust
    assert "What robustness costs: without it (--no-robustness)" in robust


def test_additions_and_replacements_are_both_shown() -> None:
    many = ["--malicious", "2", "--records", "600", "--clients", "1000"]
    text = said(*many)
    assert re.search(r"at most [\d.]+ by replacements, [\d.]+ by additions", text)
    best = document(*many)["best"]
    assert 0.2 < best["loss_additions"] < best["loss_replacements"] <= 0.5 + 1e-9
    joined = document(*many, "--change", "additions")["best"]
    assert joined["loss_additions"] <= 0.5 + 1e-9 < joined["loss_replacements"]


def test_json_is_json_even_where_a_mu_leaves_floating_point() -> None:
    whole = document("--client-clip", "3000", "--record-clip", "3", "--noise-multiplier", "0.9")
    assert whole["settings"][0]["client_mu"] is None
    assert list(whole) == [
        *("status", "wanted", "best", "statements", "other", "task", "settings", "refused"),
        *("tried", "plot"),
    ]
    assert "nan" not in said("--client-clip", "3000", "--record-clip", "3")


@pytest.mark.parametrize(
    ("records", "sizes"),
    [
        ("6000,6_000,500", [6000, 6000, 500]),
        ("2x500, 1_200,1x40", [500, 500, 1200, 40]),
    ],
)
def test_sizes_say_how_many_owners_and_may_be_counted(records: str, sizes: list[int]) -> None:
    arguments = ["plan", "--records", records, *DATA[4:], "--epsilon", "3", *ONE, "--json"]
    result = runner.invoke(app, arguments)
    assert result.exit_code == 0, result.stderr
    whole = json.loads(result.stdout)
    assert whole["wanted"]["records"] == sizes
    assert whole["best"]["gradients"] == 0.05 * max(sizes) * 50


def test_a_picture_is_written_and_named(tmp_path: Path) -> None:
    picture = tmp_path / "plan.png"
    assert document("--plot", str(picture))["plot"] == str(picture)
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("place", ["missing/plan.png", "."])
def test_an_unwritable_picture_is_said_before_the_search(tmp_path: Path, place: str) -> None:
    # The search would refuse this ε.
    result = planned("--plot", str(tmp_path / place), "--epsilon", "1e300", "--json")
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "plot" in result.stderr
    assert "can't be written" in result.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def of_tasks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What is planned for the large task, under either check of norms."""
    folder, found = tmp_path_factory.mktemp("tasks"), {}
    for check in ("crypten", "fss"):
        path = folder / f"{check}.toml"
        path.write_text(f'validation = "{check}"\n{LARGE}')
        result = runner.invoke(app, ["plan", "--task", str(path), *OF_TASK, "--json"])
        assert result.exit_code == 0, result.stderr
        found[check] = json.loads(result.stdout)
    return found


def test_a_task_by_gates_is_planned_against_a_server_that_cheats_too(
    of_tasks: dict[str, Any],
) -> None:
    *same, capped = of_tasks["fss"]["statements"]
    assert same == of_tasks["crypten"]["statements"]
    assert (capped["basis"], capped["malicious_server"]) == ("cap", True)
    assert capped["epsilon"] >= same[0]["epsilon"]


def test_a_task_is_judged_as_it_is_beside_what_was_found(of_tasks: dict[str, Any]) -> None:
    whole = of_tasks["crypten"]
    given = whole["task"]
    assert (given["noise_multiplier"], given["rounds"], given["client_clip"]) == (2.0, 200, 2.0)
    assert len(whole["wanted"]["records"]) == 50
    assert whole["best"]["forecast"]["accuracy"] >= given["forecast"]["accuracy"]


@pytest.mark.parametrize("left_out", ["--clients", "--dimension", "--delta"])
def test_it_assumes_no_number_that_a_task_has(left_out: str) -> None:
    at = PLAN.index(left_out)
    result = runner.invoke(app, PLAN[:at] + PLAN[at + 2 :])
    assert result.exit_code == 2
    assert f"give {left_out}" in result.stderr


@pytest.mark.parametrize(
    "twice",
    [["--clients", "50"], ["--client-clip", "2"], ["--rounds", "200"], ["--dimension", "3"]],
    ids=" ".join,
)
def test_a_number_beside_the_task_that_gives_it_is_refused(
    twice: list[str], large_task: str
) -> None:
    result = runner.invoke(app, ["plan", "--task", large_task, *OF_TASK, *twice])
    assert result.exit_code == 2
    assert f"leave {twice[0]} out" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "field", "remedy"),
    [
        (["--malicious", "0"], "malicious", "--no-robustness"),
        (["--malicious", "-3"], "malicious", "1 or more"),
        (["--malicious", "1", "--no-robustness"], "malicious", "leave it out"),
        (["--tolerated-loss", "0.1"], "tolerated_loss", "above 0.2"),
        (["--records", "6000;500"], "records", "commas"),
        (["--records", "6000,500"], "clients", "leave --clients out"),
        (["--records", "0"], "records", "1 or more"),
        (["--records", "5x6000"], "clients", "counts 5 owners itself: leave --clients out"),
        (["--records", "3x500,1200,0x40"], "records", "'0x40': give 1 or more"),
        (["--records", "3x500,twelve"], "records", "'twelve' is no size"),
        (["--records", "3*500"], "records", "like 10x6000"),
        (["--records", "1e3x500"], "records", "like 10x6000"),
        (["--records", "500x"], "records", "like 10x6000"),
        (["--records", "100001x5"], "records", "at most 100,000"),
        (["--records", "9" * 5000], "records", "like 10x6000"),
        (["--clients", "1000000000"], "clients", "at most 100,000"),
        (["--noise-multiplier", "1e300"], "noise_multiplier", "multiplier"),
        (["--noise-multiplier", "1e-300"], "noise_multiplier", ""),
        (["--rounds", "1000000000000"], "rounds", "at most 1,000,000"),
        (["--client-clip", "1e300"], "client_clip", ""),
        (["--client-clip", "0.1", "--record-clip", "1"], "record_clip", "privacy.client_clip"),
        (["--epsilon", "1e300"], "epsilon", "at most 100:"),
        (["--dimension", "1000000000000000"], "", ""),
    ],
)
def test_a_wrong_value_exits_2_and_names_the_field_and_the_remedy(
    arguments: list[str], field: str, remedy: str
) -> None:
    result = planned(*arguments, "--json")
    assert (result.exit_code, result.stdout) == (2, ""), result.exception
    assert result.stderr.count("\n") == 1
    assert field in result.stderr
    assert remedy in result.stderr
