"""`python -m research`: cells are kept, taken up again, repeated and shown; parts are added.

DP-CERT's experiments, each on a small cell: what CI can run of them.
"""

import errno
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from research.papers.dpcert_models import WEIGHTS, training_of, weights_of
from research.registry import Registry, load_plugins
from research.robustness.budget import measured as measured_budget
from research.robustness.federated import task_of
from research.robustness.train import first_vector, module_of
from research.study import EXPERIMENTS, Result, Scale, Settings, Surroundings
from research.study.environment import environment
from research.study.kept import Kept
from research.study.run import PARTIAL, _Place, run
from safetensors.numpy import save

from precad.client.gradients.torch_models import model_section
from precad.common.errors import Misconfiguration
from precad.common.model import tensors
from precad.common.task_schema import ModelSection
from precad.simulation.datasets import load


def square(settings: Settings, _around: Surroundings) -> dict[str, Any]:
    return {"square": settings["number"] ** 2}


def breaks(settings: Settings, around: Surroundings) -> dict[str, Any]:
    if settings["number"] == 2:
        raise KeyboardInterrupt
    return square(settings, around)


@pytest.fixture
def squares(monkeypatch: pytest.MonkeyPatch) -> Any:
    def put(measure: Any = square) -> str:
        of: Any = {"settings": {scale: {"data": None} for scale in Scale}, "measure": measure}
        of["cells"] = lambda _: [{"number": n} for n in range(4)]
        one = replace(EXPERIMENTS["xie-fig9"], **of)
        monkeypatch.setitem(EXPERIMENTS._parts, "squares", one)
        return "squares"

    return put


def squared(results: list[Result]) -> list[int]:
    return [result.values["square"] for result in results]


def test_a_run_that_was_broken_off_goes_on_where_it_was(tmp_path: Path, squares: Any) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(squares(breaks), Scale.SMALL, tmp_path)
    told = Mock()
    found = run(squares(), Scale.SMALL, tmp_path, on_cell=told)
    seen = [each.args[0].settings["number"] for each in told.call_args_list]
    assert (seen, squared(found)) == ([2, 3], [0, 1, 4, 9])
    assert run("squares", Scale.SMALL, tmp_path) == found
    with pytest.raises(Misconfiguration, match="no cell of squares"):
        run("squares", Scale.SMALL, tmp_path, only={"squared": 1})
    # The file says what it was measured with, and another experiment's is refused.
    document = json.loads((tmp_path / "squares-small.json").read_text())
    (environment,) = document["environments"]
    assert all((environment["versions"]["torch"], environment["device"]))
    assert {cell["environment"] for cell in document["cells"]} == {0}
    (tmp_path / "squares-small.json").rename(tmp_path / "other-small.json")
    with pytest.raises(Misconfiguration, match="move it away"):
        Kept(tmp_path, "other", Scale.SMALL)


def test_a_cell_whose_result_cannot_be_written_goes_on_from_its_last_state(
    tmp_path: Path, squares: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[int] = []

    def measure(_: Settings, around: Surroundings) -> dict[str, Any]:
        file = around.checkpoint
        assert file is not None
        first, theta, _ = file.found(torch.zeros(1), ())
        for step in range(first, 3):
            steps.append(step)
            theta += 1
            file.keep(step + 1, theta, ())
        return {"square": int(theta.item())}

    name = squares(measure)
    with monkeypatch.context() as disk:
        full = OSError(errno.ENOSPC, "No space left on device")
        disk.setattr(Kept, "add", Mock(side_effect=full))
        with pytest.raises(OSError, match="No space"):
            run(name, Scale.SMALL, tmp_path, only={"number": 3})
    (found,) = run(name, Scale.SMALL, tmp_path, only={"number": 3})
    assert (found.values, steps) == ({"square": 3}, [0, 1, 2])
    assert not list((tmp_path / PARTIAL).iterdir())


def test_runs_that_write_at_the_same_moment_lose_nothing(tmp_path: Path) -> None:
    """In threads, which the file's lock keeps apart as it does processes."""
    places = {0: "here", 100: "elsewhere", 200: "here"}

    def write(first: int) -> None:
        kept = Kept(tmp_path, "squares", Scale.SMALL)
        for number in range(first, first + 20):
            result = Result({"number": number}, {"square": number**2}, 0.1)
            kept.add(result, {"device": places[first]})

    with ThreadPoolExecutor(3) as threads:
        list(threads.map(write, places))
    kept = Kept(tmp_path, "squares", Scale.SMALL)
    numbers = [first + n for first in places for n in range(20)]
    assert squared(kept.of([{"number": n} for n in numbers])) == [n**2 for n in numbers]
    document = json.loads(kept.path.read_text())
    devices = [each["device"] for each in document["environments"]]
    assert sorted(devices) == ["elsewhere", "here"]
    for row in document["cells"]:
        assert devices[row["environment"]] == places[row["settings"]["number"] // 100 * 100]


def test_half_a_cell_of_another_processor_is_begun_anew(tmp_path: Path) -> None:
    """It may add in another order, so that what goes on there has other last bits."""
    at = _Place(None, "cpu", tmp_path)
    here, cell = environment("cpu"), {"number": 0}
    file = at.checkpoint("squares", cell, here)
    assert at.around("squares", cell).checkpoint == file
    others: list[Settings] = [{"device": "another"}, {"instructions": "DEFAULT"}, {"versions": {}}]
    for other in others:
        assert at.checkpoint("squares", cell, {**here, **other}) != file
    assert at.checkpoint("squares", cell, {**here, "cores": 1}) == file


def test_two_parts_of_one_name_and_an_unknown_one_are_refused(tmp_path: Path) -> None:
    parts: Registry[int] = Registry("part")
    parts.register("one")(1)
    with pytest.raises(Misconfiguration, match="registered already"):
        parts.register("one")(2)
    with pytest.raises(Misconfiguration, match="use one of one"):
        parts["two"]
    with pytest.raises(Misconfiguration, match="Python file of your own"):
        load_plugins((tmp_path / "gone.py",))


@pytest.mark.parametrize("name", list(EXPERIMENTS))
def test_every_cell_is_told_from_all_others_and_can_be_kept(name: str) -> None:
    for cells in map(EXPERIMENTS[name].all_cells, Scale):
        assert len({json.dumps(cell, sort_keys=True) for cell in cells}) == len(cells) > 0
        assert all("seed" in cell for cell in cells)
    assert EXPERIMENTS[name].claim.endswith(".")


RESULTS = Path(__file__).parents[2] / "benchmarks/results/papers"
MEASURED = [name for name in EXPERIMENTS if (RESULTS / f"{name}-small.json").exists()]


@pytest.mark.parametrize("name", MEASURED)
def test_any_part_of_an_experiment_has_a_table_and_a_picture(name: str) -> None:
    """One cell, or all that have the value of a setting of the first or of the last."""
    one = EXPERIMENTS[name]
    results = Kept(RESULTS, name, Scale.SMALL).of(one.all_cells(Scale.SMALL))
    parts: set[tuple[int, ...]] = {(0,), (len(results) - 1,)}
    for setting in {name for result in results for name in result.settings}:
        values = [json.dumps(result.settings.get(setting)) for result in results]
        for end in (values[0], values[-1]):
            parts.add(tuple(i for i, value in enumerate(values) if value == end))
    for part in sorted(parts, key=len)[:3]:
        some = [results[i] for i in part]
        table = one.table(some)
        assert all(len(row) == len(table.headings) for row in table.rows)
        one.plot(some, Figure())


DPCERT = tuple(name for name in EXPERIMENTS if name.startswith("dpcert"))
SMALL = {"rounds": 2, "copies": 60, "selection": 10, "every": 60, "steps": 2}


def some_cells(name: str) -> list[Settings]:
    """One of each method, the last cell too, all of them made small."""
    cells = EXPERIMENTS[name].all_cells(Scale.SMALL)
    first = {cell["method"]: cell for cell in reversed(cells)}
    return [{**cell, **SMALL} for cell in [*first.values(), cells[-1]]]


def measured(name: str, cells: Sequence[Settings], keep: Path) -> list[Result]:
    measure = EXPERIMENTS[name].measure
    return [Result(cell, measure(cell, Surroundings(keep=keep)), 0.0) for cell in cells]


@pytest.mark.parametrize("name", DPCERT)
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
    for cell, how in ((cell, training_of(cell)) for cell in cells):
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
    found = correlation(result, "gradient"), *split(result, "gradient", 0.2)
    assert found == pytest.approx((-1.0, 0.5, -2.0))


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
