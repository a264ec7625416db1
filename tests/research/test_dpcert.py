"""DP-CERT's experiments, each of them on a small cell: what CI can run of them."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from research.papers.dpcert_models import WEIGHTS, training_of, weights_of
from research.robustness.budget import measured as measured_budget
from research.robustness.federated import task_of
from research.robustness.train import first_vector, module_of
from research.study import EXPERIMENTS, Result, Scale, Settings, Surroundings
from safetensors.numpy import save

from precad.client.gradients.torch_models import model_section
from precad.common.errors import Misconfiguration
from precad.common.model import tensors
from precad.common.task_schema import ModelSection
from precad.simulation.datasets import load

NAMES = tuple(name for name in EXPERIMENTS if name.startswith("dpcert"))
SMALL = {"rounds": 2, "copies": 60, "selection": 10, "every": 60, "steps": 2}


def some_cells(name: str) -> list[Settings]:
    """One of each method, the last cell too, all of them made small."""
    cells = EXPERIMENTS[name].all_cells(Scale.SMALL)
    first = {cell["method"]: cell for cell in reversed(cells)}
    return [{**cell, **SMALL} for cell in [*first.values(), cells[-1]]]


def measured(name: str, cells: Sequence[Settings], keep: Path) -> list[Result]:
    measure = EXPERIMENTS[name].measure
    return [Result(cell, measure(cell, Surroundings(keep=keep)), 0.0) for cell in cells]


@pytest.mark.parametrize("name", NAMES)
def test_a_small_cell_of_each_gives_a_table_and_the_same_again(name: str, tmp_path: Path) -> None:
    cells = some_cells(name)
    results = measured(name, cells, tmp_path)
    table = EXPERIMENTS[name].table(results)
    assert len(table.rows) >= len({cell["method"] for cell in cells})
    assert all(len(row) == len(table.headings) for row in table.rows)
    json.dumps([result.values for result in results], allow_nan=False)
    for keep in (tmp_path / "elsewhere", tmp_path):
        assert measured(name, cells[:1], keep)[0].values == results[0].values


def test_every_private_method_has_the_same_noise_and_epsilon(tmp_path: Path) -> None:
    cells = [c for c in some_cells("dpcert-table2") if c["method"] != "regular"]
    (noise,) = {training_of(cell).noise_multiplier for cell in cells}
    for cell in cells:
        how = training_of(cell)
        task = task_of(how, load("digits"), cell["clients"])
        assert (task.privacy.noise_multiplier, task.objective) == (noise, how.objective)
    results = measured("dpcert-table2", cells, tmp_path)
    assert {each.settings["trained"] for each in results} == {"centrally", "federated"}
    epsilons = [each.values["epsilon"] for each in results]
    assert epsilons == pytest.approx([3.0] * len(results), abs=0.02)


def test_a_metric_that_falls_with_the_radius_correlates_with_it() -> None:
    from research.papers.dpcert_fig5 import correlation, split  # noqa: PLC0415

    values: dict[str, Any] = {"radius": [0.0, 0.1, 0.2, 0.4], "gradient": [10.0, 1.0, 0.1, 1e-3]}
    result = Result({}, values, 0.0)
    assert correlation(result, "gradient") == pytest.approx(-1.0)
    below, above = split(result, "gradient", 0.2)
    assert (below, above) == pytest.approx((0.5, -2.0))


def test_fine_tuning_starts_from_weights_of_the_models_own_shapes(tmp_path: Path) -> None:
    data = load("digits")
    described = model_section(module_of("mlp", data), "mlp", "uniform", 1)
    section = ModelSection.model_validate(described)
    drawn = tensors(first_vector(section, None), section.parameters)
    names = list(drawn)
    given = {names[0]: np.full(drawn[names[0]].shape, 0.5), names[-1]: np.zeros(1000)}
    (tmp_path / WEIGHTS).write_bytes(save(given))
    digest, weights = weights_of(tmp_path)
    started = tensors(first_vector(section, weights), section.parameters)
    assert len(digest) == 12
    for name in names:
        assert (started[name] == (0.5 if name == names[0] else drawn[name])).all()
    with pytest.raises(Misconfiguration, match="put public weights"):
        weights_of(tmp_path / "nowhere")


def test_the_pictures_budget_is_measured_again() -> None:
    root = Path(__file__).parents[2] / "research" / "robustness" / "results"
    kept = json.loads((root / "budget.json").read_text("utf-8"))[-1]
    (row,) = measured_budget((kept["noise_multiplier"],), seeds=(0,))
    assert row["epsilon"] == pytest.approx(kept["epsilon"], rel=1e-3)
    assert row["poisoned_records"] == kept["poisoned_records"]
    assert row["accuracy"] == pytest.approx(kept["accuracy"], abs=0.1)
    assert row["acr"] == pytest.approx(kept["acr"], abs=0.1)
