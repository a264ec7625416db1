"""`python -m research`, own parts, cells broken off; killed ones: soak/test_experiments.py."""

import json
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from click.testing import CliRunner
from distributed import LocalCluster
from research.__main__ import experiments
from research.algorithms import ALGORITHMS, Problem
from research.checkpoint import Checkpoint
from research.datasets import DATASETS, load
from research.datasets.partition import iid
from research.defences import DEFENCES
from research.models import MODELS
from research.papers import liu_fig1, liu_votes, precad_check
from research.papers.precad_backdoor import BACKDOOR
from research.papers.precad_common import train
from research.papers.xie_table9 import cells
from research.poisoning import ATTACKS
from research.registry import load_plugins
from research.study import EXPERIMENTS, Scale, Surroundings
from research.study.run import run

from precad.common.errors import Misconfiguration

PAGE = Path(__file__).parents[2] / "docs" / "experiments.md"
TINY = """
from research.study import EXPERIMENTS, Experiment, Scale, Table

EXPERIMENTS.register("tiny")(
    Experiment(
        paper="none",
        figure="Fig. 0",
        claim="Squares grow.",
        does="Squares some numbers.",
        settings={scale: {"data": "none", "seed": 0} for scale in Scale},
        cells=lambda scale: [{"number": n} for n in range(3)],
        measure=lambda settings, around: {"square": settings["number"] ** 2},
        table=lambda results: Table(["square"], [[str(r.values["square"])] for r in results]),
        plot=lambda results, figure: figure.subplots().plot([r.values["square"] for r in results]),
    )
)
"""


@pytest.fixture
def restored(monkeypatch: pytest.MonkeyPatch) -> None:
    for registry in (EXPERIMENTS, ATTACKS, DEFENCES, DATASETS, MODELS, ALGORITHMS):
        assert len(registry) > 0
        monkeypatch.setattr(registry, "_parts", dict(registry._parts))


def said(*arguments: str, code: int = 0) -> str:
    ended = CliRunner().invoke(experiments, arguments)
    assert ended.exit_code == code, ended.output
    return ended.stdout


@pytest.mark.usefixtures("restored")
def test_an_experiment_of_ones_own_is_shown_run_by_two_and_taken_up(tmp_path: Path) -> None:
    (tmp_path / "tiny.py").write_text(TINY)
    output = ("--output", str(tmp_path / "kept"))
    plugin = ("--plugin", str(tmp_path / "tiny.py"))
    shown = said("show", "tiny", *plugin, *output)
    assert "0 of 3 cells are measured.\nAbout 0 s left" in shown
    alone = said("run", "tiny", "--only", "number=1", "--only", "data=none", *output)
    assert "1 of 1 cells to measure" in alone
    assert "cell 1/1" in alone
    for wrong in ("number=7", "number", "=1"):
        said("run", "tiny", "--only", wrong, *output, code=2)
    first = said("run", "tiny", *plugin, *output, "--workers", "2")
    assert "cell 3/3" in first
    assert (tmp_path / "kept" / "tiny-small.png").stat().st_size > 1000
    before = (tmp_path / "kept" / "tiny-small.json").read_bytes()
    document = json.loads(said("run", "tiny", "--json", "--no-plot", *output))
    assert document["table"] == [{"square": "0"}, {"square": "1"}, {"square": "4"}]
    assert (tmp_path / "kept" / "tiny-small.json").read_bytes() == before
    assert "3 of 3 cells are measured" in said("show", "tiny", *output)


def test_the_list_has_all_and_what_is_wrong_is_refused(tmp_path: Path) -> None:
    names = [one["name"] for one in json.loads(said("list", "--json"))]
    assert names == list(EXPERIMENTS)
    assert "precad-fig3" in said("list")
    said("show", "precad-fig9", code=2)
    said("show", "precad-fig3", "--scale", "huge", code=2)
    said("run", "precad-fig3", "--scale", "paper", "--output", str(tmp_path), code=2)


@pytest.mark.usefixtures("restored")
def test_the_pages_parts_take_part(tmp_path: Path) -> None:
    (block,) = re.findall(
        r"^```python\n(.*?)^```", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL
    )
    (tmp_path / "mine.py").write_text(block)
    load_plugins((tmp_path / "mine.py",))
    mine = [cell for cell in cells(Scale.SMALL) if cell["attack"] == "backwards"]
    assert "clipped-mean" in {cell.get("defence") for cell in mine}
    data = load("stripes")
    problem = Problem(
        data=data,
        shares=iid(len(data.train_y), 8, 0),
        model="wide-mlp",
        seed=1,
        attack=ATTACKS["backwards"](),
        attackers=2,
        defence=DEFENCES["clipped-mean"],
    )
    settings = {"rounds": 3, "learning_rate": 0.5, "record_rate": 0.5, "client_rate": 1.0}
    moved = ALGORITHMS["non-private"](problem, settings).theta
    stood = ALGORITHMS["standing-still"](problem, settings).theta
    assert moved.shape == stood.shape == (8 * 128 + 128 + 128 * 8 + 8,)
    assert not np.array_equal(moved, stood)


DASKS_ADDRESS = "DASK_SCHEDULER_ADDRESS"


def test_a_cluster_that_is_not_there_or_has_several_threads_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a cluster of both kinds computes: tests/soak/test_experiments.py."""
    started = partial(run, "xie-fig9", Scale.SMALL, tmp_path, backend="dask", workers=2)
    monkeypatch.delenv(DASKS_ADDRESS, raising=False)
    with pytest.raises(Misconfiguration, match=DASKS_ADDRESS):
        started()
    local = {"processes": False, "dashboard_address": "127.0.0.1:0"}
    with LocalCluster(n_workers=2, threads_per_worker=2, **local) as cluster:
        monkeypatch.setenv(DASKS_ADDRESS, cluster.scheduler_address)
        with pytest.raises(Misconfiguration, match="workers there of one thread each"):
            started()


TRAINING = {
    **BACKDOOR[Scale.SMALL],
    "rounds": 20,
    "noise_multiplier": 1.0,
    "client_clip": 5.0,
    "attackers": 3,
    "seed": 2,
}
CHECK = {**TRAINING, "algorithm": "precad", "check": "published"}
VOTES = {**liu_fig1.SETTINGS[Scale.SMALL], "models": 12, "steps": 40, "seed": 1, "tested": 50}
CELLS: dict[str, tuple[Callable[..., Mapping[str, Any]], dict[str, Any], int]] = {
    "precad": (train, {**TRAINING, "algorithm": "precad"}, 15),
    "local-dp": (train, {**TRAINING, "algorithm": "local-dp"}, 15),
    "non-private": (train, {**TRAINING, "algorithm": "non-private"}, 15),
    "check": (precad_check.measure, CHECK, 15),
    "dp": (liu_votes.measure, {**VOTES, "arm": "dp", "noise_multiplier": 1.0}, 27),
    "bagging": (
        liu_votes.measure,
        {**VOTES, "arm": "bagging", "bag": 2000, "plain_steps": 20},
        220,
    ),
}
"""What measures, the settings, and after which of its steps it is broken off."""


@pytest.mark.parametrize("name", CELLS)
def test_a_cell_that_is_broken_off_goes_on_to_the_same_values(tmp_path: Path, name: str) -> None:
    measure, settings, stops = CELLS[name]
    told, around = Mock(), partial(Surroundings, checkpoint=Checkpoint(tmp_path / "cell.npz"))

    def stop(done: int, _all: int) -> None:
        if done == stops:
            raise KeyboardInterrupt

    whole = measure(settings, Surroundings())
    with pytest.raises(KeyboardInterrupt):
        measure(settings, around(progress=stop))
    assert measure(settings, around(progress=told)) == whole
    assert 1 < told.call_args_list[0].args[0] <= stops
