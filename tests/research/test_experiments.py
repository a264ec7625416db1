"""`python -m research`: cells are kept, taken up again, repeated and shown; parts are added."""

import errno
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from matplotlib.figure import Figure
from research.registry import Registry, load_plugins
from research.study import EXPERIMENTS, Experiment, Result, Scale, Settings, Surroundings
from research.study.environment import environment
from research.study.kept import Kept
from research.study.run import PARTIAL, _Place, run

from precad.common.errors import Misconfiguration

NAMES = tuple(EXPERIMENTS)


def squares(breaks: int | None = None) -> Experiment:
    def measure(settings: Settings, _around: Surroundings) -> dict[str, Any]:
        if settings["number"] == breaks:
            raise KeyboardInterrupt
        return {"square": settings["number"] ** 2}

    return replace(
        EXPERIMENTS["xie-fig9"],
        settings={scale: {"data": None} for scale in Scale},
        cells=lambda _: [{"number": n} for n in range(4)],
        measure=measure,
    )


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Puts an experiment of the test's own among the registered ones."""

    def put(one: Experiment) -> str:
        monkeypatch.setitem(EXPERIMENTS._parts, "squares", one)
        return "squares"

    return put


def squared(results: list[Result]) -> list[int]:
    return [result.values["square"] for result in results]


def test_a_run_that_was_broken_off_goes_on_where_it_was(tmp_path: Path, named: Any) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(named(squares(breaks=2)), Scale.SMALL, tmp_path)
    seen: list[int] = []
    found = run(
        named(squares()),
        Scale.SMALL,
        tmp_path,
        on_cell=lambda result, _done, _all: seen.append(result.settings["number"]),
    )
    assert (seen, squared(found)) == ([2, 3], [0, 1, 4, 9])
    assert run("squares", Scale.SMALL, tmp_path) == found
    with pytest.raises(Misconfiguration, match="no cell of squares"):
        run("squares", Scale.SMALL, tmp_path, only={"squared": 1})
    # The file says what it was measured with, and another experiment's is refused.
    document = json.loads((tmp_path / "squares-small.json").read_text())
    (environment,) = document["environments"]
    assert environment["versions"]["torch"]
    assert environment["device"]
    assert {cell["environment"] for cell in document["cells"]} == {0}
    (tmp_path / "squares-small.json").rename(tmp_path / "other-small.json")
    with pytest.raises(Misconfiguration, match="move it away"):
        Kept(tmp_path, "other", Scale.SMALL)


def test_a_cell_whose_result_cannot_be_written_goes_on_from_its_last_state(
    tmp_path: Path, named: Any, monkeypatch: pytest.MonkeyPatch
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

    def full(*_given: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    name = named(replace(squares(), measure=measure))
    with monkeypatch.context() as disk:
        disk.setattr(Kept, "add", full)
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
    found = kept.of([{"number": number} for number in numbers])
    assert squared(found) == [number**2 for number in numbers]
    document = json.loads(kept.path.read_text())
    devices = [each["device"] for each in document["environments"]]
    assert sorted(devices) == ["elsewhere", "here"]
    for row in document["cells"]:
        place = places[row["settings"]["number"] // 100 * 100]
        assert devices[row["environment"]] == place


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


@pytest.mark.parametrize("name", NAMES)
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
