"""The gallery: each example runs by itself, and shows what it says."""

import json
import re
from pathlib import Path

import pytest
from tests.rig.commands import printed

EXAMPLES = Path(__file__).parents[2] / "examples"


def output(name: str, folder: Path, *arguments: str) -> str:
    return printed(EXAMPLES / name, *arguments, cwd=folder, env={"COLUMNS": "120"})


def percents(pattern: str, text: str) -> list[float]:
    return [float(found) for found in re.findall(pattern, text)]


def test_an_attack_is_held_by_the_bound_alone(tmp_path: Path) -> None:
    said = output("attack_study.py", tmp_path)
    honest, *attacked = percents(r"of 10 bad: ([\d.]+)%", said)
    assert honest > 80
    assert attacked[-1] < honest - 30
    (beyond,) = percents(r"beyond the bound: ([\d.]+)%", said)
    assert "rejected {'norm-exceeded': 3}" in said
    assert beyond > 70
    assert len(re.findall(r"^C = ", said, re.MULTILINE)) == 3


def test_a_small_cnn_learns_and_batch_norm_is_refused(tmp_path: Path) -> None:
    said = output("images.py", tmp_path)
    assert percents(r"round 50: ([\d.]+)%", said)[0] > 70
    assert "ε = 4.0" in said
    assert "batch norm mixes records; use nn.GroupNorm" in said


def test_a_model_and_a_loss_of_ones_own_beat_the_median(tmp_path: Path) -> None:
    said = output("own_model_and_loss.py", tmp_path)
    [ours], [guess] = (
        percents(rf"{words} ([\d.]+)", said) for words in ("off by", "median:")
    )
    assert ours < 0.8 * guess


def test_fixed_features_beat_a_cnn_at_the_same_epsilon(tmp_path: Path) -> None:
    said = output("fixed_features.py", tmp_path, "--out", "figures.json")
    features, cnn = percents(r"weights, ([\d.]+)% of held-out", said)
    assert features > cnn + 3
    assert said.count("ε = 3.00") == 2
    figures = json.loads((tmp_path / "figures.json").read_text("utf-8"))
    assert (
        round(100 * figures["models"]["features, 40 rounds"]["accuracy"], 1) == features
    )


@pytest.mark.timeout(900)
def test_three_hospitals_train_on_their_tables(tmp_path: Path) -> None:
    said = output("hospital_csv.py", tmp_path)
    (right,) = percents(r"([\d.]+)% right, of 500 records", said)
    assert right > 80
    (epsilon,) = percents(r"exact ε of all together ([\d.]+)", said)
    assert epsilon <= 3


@pytest.mark.timeout(900)
def test_of_three_organisations_the_one_with_the_lowest_limit_leaves_first(
    tmp_path: Path,
) -> None:
    said = output("three_organisations.py", tmp_path)
    counted = dict(re.findall(r"(\w+): counted in (\d+) rounds", said))
    assert counted["north"] == counted["south"] == "8"
    assert 0 < int(counted["east"]) < 8
    assert min(percents(r"([\d.]+)% right, of", said)) > 80
