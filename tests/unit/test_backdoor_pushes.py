"""What docs/papers/precad.md says of benchmarks/backdoor_pushes.py, and how that measures."""

import json
import re
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest

from precad.experiments.data import load
from precad.experiments.poisoning import ATTACKS

ROOT = Path(__file__).parents[2]
PAGE = " ".join((ROOT / "docs/papers/precad.md").read_text("utf-8").split())
FOUND: dict[str, Any] = json.loads(
    (ROOT / "benchmarks" / "results" / "backdoor_pushes.json").read_text("utf-8")
)["trainings"]
MNIST, LONGER, DIGITS, STAMPLESS = (
    FOUND[name] for name in ("MNIST", "MNIST, learning longer", "digits", "MNIST, no stamp")
)


def each(training: dict[str, Any], what: str) -> list[float]:
    """Of a bad client, in each round that was looked at."""
    return [row[what] / row["bad_clients"] for row in training["rounds"]]


def honest(training: dict[str, Any]) -> list[float]:
    return sorted(row["push_honest"] for row in training["rounds"])


def main_task(number_of_bad: int) -> float:
    """Fig. 4's, after 1,500 rounds, in per cent."""
    results = ROOT / "benchmarks" / "results" / "papers" / "precad-fig4-paper.json"
    (curve,) = (
        cell["values"]["curve"]
        for cell in json.loads(results.read_text("utf-8"))["cells"]
        if (cell["settings"]["algorithm"], cell["settings"]["noise_multiplier"]) == ("precad", 1.5)
        and cell["settings"]["attackers"] == number_of_bad
    )
    return float(next(100 * accuracy for at, accuracy, _ in curve if at == 1500))


@pytest.mark.parametrize(
    ("pattern", "values"),
    [
        (r"for every 25th, (\d+) in all", [len(MNIST["rounds"])]),
        (
            r"that way by (\d+) to (\d+) R of its 15",
            [min(each(MNIST, "push_bad")), max(each(MNIST, "push_bad"))],
        ),
        (
            r"by (\d+) to (\d+) R and by (\d+) once",
            [-honest(MNIST)[9], -honest(MNIST)[1], -honest(MNIST)[0]],
        ),
        (
            r"nowhere: (−[\d.]+) to ([\d.]+) R each",
            [min(each(MNIST, "stamp_alone_bad")), max(each(MNIST, "stamp_alone_bad"))],
        ),
        (
            r"moves it by (\d+) to (\d+) R and",
            [min(each(LONGER, "push_bad")), max(each(LONGER, "push_bad"))],
        ),
        (
            r"R and by (−[\d.]+) to ([\d.]+) R in",
            [min(each(LONGER, "stamp_alone_bad")), max(each(LONGER, "stamp_alone_bad"))],
        ),
        (r"and has ([\d.]+) % after 800 rounds", [100 * LONGER["curve"][-1][2]]),
        (
            r"the cosine is ([\d.]+) in",
            [median(each_row["alike"] for each_row in DIGITS["rounds"])],
        ),
        (
            r"move the model by ([\d.]+) to (\d+) R each",
            [min(each(DIGITS, "stamp_alone_bad")), max(each(DIGITS, "stamp_alone_bad"))],
        ),
        (r"either way \(([\d.]+) R", [DIGITS["median"]["stamp_alone_honest"]]),
        (r"without any stamp have ([\d.]+) % after", [100 * STAMPLESS["curve"][-1][1]]),
        (
            r"four with it ([\d.]+), and without bad clients it is ([\d.]+)",
            [main_task(4), main_task(0)],
        ),
    ],
)
def test_the_page_states_what_was_measured(pattern: str, values: list[float]) -> None:
    found = re.search(pattern, PAGE)
    assert found, pattern
    for said, value in zip(found.groups(), values, strict=True):
        digits = len(said.partition(".")[2])
        assert float(said.replace("−", "-")) == round(value, digits), (said, value)


def test_honest_clients_move_the_model_back_in_ten_rounds_and_the_step_is_everything_zero() -> None:
    assert "back in ten of the thirteen rounds" in PAGE
    assert sum(push < 0 for push in honest(MNIST)) == 10
    assert "with a cosine over .9999" in PAGE
    assert min(row["alike"] for row in MNIST["rounds"]) > 0.9999


def test_a_push_is_how_far_a_sum_goes_along_the_backdoors_step() -> None:
    path = ROOT / "benchmarks" / "backdoor_pushes.py"
    spec = spec_from_file_location("backdoor_pushes", path)
    assert spec is not None
    assert spec.loader is not None
    pushes, attacks = module_from_spec(spec), list(ATTACKS)
    spec.loader.exec_module(pushes)
    assert list(ATTACKS) == attacks, "other tests of this process go through all attacks"
    sight = pushes.Sight(load("digits"), "mlp")
    theta = np.random.default_rng(0).normal(size=sight._learner.dimension) * 0.1
    step = sight._step(theta, *sight._goal)
    found = sight.measure(theta, 3 * step / np.linalg.norm(step), -step / np.linalg.norm(step))
    assert found["push_bad"] == pytest.approx(3, abs=1e-3)
    assert found["push_honest"] == pytest.approx(-1, abs=1e-3)
    across = np.sqrt(1 - found["alike"] ** 2)
    assert found["stamp_alone_bad"] == pytest.approx(3 * across, abs=1e-2)
    zeros = sight._step(theta, *sight._zeros)
    only_zeros = sight.measure(theta, zeros, zeros)
    assert only_zeros["stamp_alone_bad"] == pytest.approx(0, abs=1e-3)
