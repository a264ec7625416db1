"""`precad experiment`: cells are kept, taken up again, repeated to the bit, and parts are added."""

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from precad.common.errors import Misconfiguration
from precad.experiments.registry import Registry, load_plugins
from precad.experiments.study import (
    EXPERIMENTS,
    Experiment,
    Result,
    Scale,
    Settings,
    Surroundings,
    Table,
)
from precad.experiments.study.kept import Kept
from precad.experiments.study.run import estimated_hours, run

NAMES = tuple(EXPERIMENTS)


def counted(settings: Settings, around: Surroundings) -> dict[str, Any]:
    if settings["number"] == settings["breaks"]:
        raise KeyboardInterrupt
    for step in range(10):
        around.progress(step + 1, 10)
    return {"square": settings["number"] ** 2}


def table(results: Sequence[Result]) -> Table:
    return Table(["square"], [[str(result.values["square"])] for result in results])


def squares(breaks: int | None = None) -> Experiment:
    return Experiment(
        paper="none",
        figure="none",
        claim="Squares are squares.",
        does="Squares.",
        settings={scale: {"breaks": None} for scale in Scale},
        cells=lambda _: [{"number": n} for n in range(4)],
        measure=lambda s, around: counted({**s, "breaks": breaks}, around),
        table=table,
        plot=lambda results, figure: figure.subplots().plot([r.values["square"] for r in results]),
    )


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Puts an experiment of the test's own among the registered ones."""
    assert NAMES

    def put(one: Experiment) -> str:
        monkeypatch.setitem(EXPERIMENTS._parts, "squares", one)
        return "squares"

    return put


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
    assert seen == [2, 3]
    assert [result.values["square"] for result in found] == [0, 1, 4, 9]
    assert run("squares", Scale.SMALL, tmp_path) == found


def test_chosen_cells_are_measured_alone(tmp_path: Path, named: Any) -> None:
    name = named(squares())
    assert estimated_hours(name, Scale.SMALL, tmp_path, None, only={"number": 3})[0] == 1
    (one,) = run(name, Scale.SMALL, tmp_path, only={"number": 3, "breaks": None})
    assert one.values["square"] == 9
    found = run(name, Scale.SMALL, tmp_path, only={"number": 1})
    assert [result.values["square"] for result in found] == [1, 9]
    for nothing in ({"number": 4}, {"squared": 1}):
        with pytest.raises(Misconfiguration, match="no cell of squares"):
            run(name, Scale.SMALL, tmp_path, only=nothing)


def test_results_say_what_they_were_measured_with(tmp_path: Path, named: Any) -> None:
    run(named(squares()), Scale.SMALL, tmp_path)
    document = json.loads((tmp_path / "squares-small.json").read_text())
    (environment,) = document["environments"]
    assert environment["versions"]["torch"]
    assert environment["device"]
    assert {cell["environment"] for cell in document["cells"]} == {0}


def test_a_file_of_another_experiment_is_refused(tmp_path: Path, named: Any) -> None:
    run(named(squares()), Scale.SMALL, tmp_path)
    (tmp_path / "squares-small.json").rename(tmp_path / "other-small.json")
    with pytest.raises(Misconfiguration, match="move it away"):
        Kept(tmp_path, "other", Scale.SMALL)


def test_the_estimate_counts_what_is_missing(tmp_path: Path, named: Any) -> None:
    name = named(squares())
    assert estimated_hours(name, Scale.SMALL, tmp_path, None)[0] == 4
    run(name, Scale.SMALL, tmp_path)
    assert estimated_hours(name, Scale.SMALL, tmp_path, None) == (0, 0.0)


def test_the_estimate_tries_every_algorithm(tmp_path: Path, named: Any) -> None:
    tried: list[tuple[str, int]] = []
    cells: list[Settings] = [
        {"algorithm": algorithm, "clients": clients, "seed": seed}
        for seed in range(2)
        for clients in (1, 2, 3)
        for algorithm in ("fast", "slow")
    ]

    def measure(settings: Settings, _: Surroundings) -> dict[str, Any]:
        tried.append((settings["algorithm"], settings["clients"]))
        if settings["algorithm"] == "slow":
            time.sleep(0.02)
        return {"square": 0}

    name = named(replace(squares(), cells=lambda _: cells, measure=measure))
    missing, hours = estimated_hours(name, Scale.SMALL, tmp_path, None)
    assert (missing, tried) == (12, [("fast", 2), ("slow", 2)])
    assert 3600 * hours > 6 * 0.02
    run(name, Scale.SMALL, tmp_path, only={"algorithm": "slow", "seed": 1})
    tried.clear()
    missing, hours = estimated_hours(name, Scale.SMALL, tmp_path, None)
    assert (missing, tried) == (9, [("fast", 2)])
    assert 3600 * hours > 3 * 0.02


def test_two_parts_of_one_name_and_an_unknown_one_are_refused(tmp_path: Path) -> None:
    parts: Registry[int] = Registry("part")
    parts.register("one")(1)
    with pytest.raises(Misconfiguration, match="registered already"):
        parts.register("one")(2)
    with pytest.raises(Misconfiguration, match="use one of one"):
        parts["two"]
    with pytest.raises(Misconfiguration, match="Python file of your own"):
        load_plugins((tmp_path / "gone.py",))


def test_a_file_of_ones_own_is_run_once(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("from pathlib import Path\nPath(__file__).with_name('ran').mkdir()\n")
    load_plugins((file,))
    load_plugins((file, tmp_path / "." / "mine.py"))


@pytest.mark.parametrize("scale", Scale)
@pytest.mark.parametrize("name", NAMES)
def test_every_cell_is_told_from_all_others_and_can_be_kept(name: str, scale: Scale) -> None:
    cells = EXPERIMENTS[name].all_cells(scale)
    assert len({json.dumps(cell, sort_keys=True) for cell in cells}) == len(cells) > 0
    assert all("seed" in cell for cell in cells)
    assert EXPERIMENTS[name].claim.endswith(".")
