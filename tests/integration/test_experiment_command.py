"""`python -m research`, own parts, cells broken off; killed ones:
soak/test_experiments.py.

And `python -m research audit`: a sound build isn't refuted, broken ones are, and the exit status
says so.
"""

import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from click.testing import CliRunner
from distributed import LocalCluster
from research.__main__ import experiments
from research.algorithms import ALGORITHMS, Problem
from research.audits import builds, canary_training
from research.audits.builds import Build, less_noise
from research.audits.canary_owners import require_own
from research.audits.canary_training import audit, designed, planned
from research.audits.command import REFUTED
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
from research.study import EXPERIMENTS, Scale, Settings, Surroundings
from research.study.run import run
from tests.rig.refusals import refused

from precad.common.ring import RingVector
from precad.common.task import Task
from precad.simulation.rounds import Draws

PAGE = Path(__file__).parents[2] / "docs" / "experiments.md"
TINY = """
from research.study import EXPERIMENTS, Experiment, Scale, Table

def squares(results):
    return [each.values["square"] for each in results]

EXPERIMENTS.register("tiny")(
    Experiment(
        paper="none",
        figure="Fig. 0",
        claim="Squares grow.",
        does="Squares some numbers.",
        settings={scale: {"data": "none", "seed": 0} for scale in Scale},
        cells=lambda scale: [{"number": n} for n in range(3)],
        measure=lambda settings, around: {"square": settings["number"] ** 2},
        table=lambda results: Table(["square"], [[str(n)] for n in squares(results)]),
        plot=lambda results, figure: figure.subplots().plot(squares(results)),
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
def test_an_experiment_of_ones_own_is_shown_run_by_two_and_taken_up(
    tmp_path: Path,
) -> None:
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
    # The list has all, and what is wrong is refused.
    assert [one["name"] for one in json.loads(said("list", "--json"))] == list(
        EXPERIMENTS
    )
    assert "precad-fig3" in said("list")
    for words in (["show", "precad-fig9"], ["show", "precad-fig3", "--scale", "huge"]):
        said(*words, code=2)
    said("run", "precad-fig3", "--scale", "paper", *output, code=2)


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
    shares = iid(len(data.train_y), 8, 0)
    problem = Problem(
        data=data,
        shares=shares,
        model="wide-mlp",
        seed=1,
        attackers=2,
        attack=ATTACKS["backwards"](),
        defence=DEFENCES["clipped-mean"],
    )
    settings = {
        "rounds": 3,
        "learning_rate": 0.5,
        "record_rate": 0.5,
        "client_rate": 1.0,
    }
    moved = ALGORITHMS["non-private"](problem, settings).theta
    stood = ALGORITHMS["standing-still"](problem, settings).theta
    assert moved.shape == stood.shape == (8 * 128 + 128 + 128 * 8 + 8,)
    assert not np.array_equal(moved, stood)


DASKS_ADDRESS = "DASK_SCHEDULER_ADDRESS"


def test_a_wrong_cluster_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a cluster of both kinds computes: tests/soak/test_experiments.py."""
    started = partial(run, "xie-fig9", Scale.SMALL, tmp_path, backend="dask", workers=2)
    monkeypatch.delenv(DASKS_ADDRESS, raising=False)
    refused(DASKS_ADDRESS, started)
    local = {"processes": False, "dashboard_address": "127.0.0.1:0"}
    with LocalCluster(n_workers=2, threads_per_worker=2, **local) as cluster:
        monkeypatch.setenv(DASKS_ADDRESS, cluster.scheduler_address)
        refused("workers there of one thread each", started)


TRAINING: Settings = {
    **BACKDOOR[Scale.SMALL],
    "rounds": 20,
    "noise_multiplier": 1.0,
    "client_clip": 5.0,
    "attackers": 3,
    "seed": 2,
}
CHECK = {**TRAINING, "algorithm": "precad", "check": "published"}
VOTES = {
    **liu_fig1.SETTINGS[Scale.SMALL],
    "models": 12,
    "steps": 40,
    "seed": 1,
    "tested": 50,
}
BAGGING = {"arm": "bagging", "bag": 2000, "plain_steps": 20}
CELLS: dict[str, tuple[Callable[..., Settings], Settings, int]] = {
    "precad": (train, {**TRAINING, "algorithm": "precad"}, 15),
    "local-dp": (train, {**TRAINING, "algorithm": "local-dp"}, 15),
    "non-private": (train, {**TRAINING, "algorithm": "non-private"}, 15),
    "check": (precad_check.measure, CHECK, 15),
    "dp": (liu_votes.measure, {**VOTES, "arm": "dp", "noise_multiplier": 1.0}, 27),
    "bagging": (liu_votes.measure, VOTES | BAGGING, 220),
}
"""What measures, the settings, and after which of its steps it is broken off."""


@pytest.mark.parametrize("name", CELLS)
def test_a_cell_that_is_broken_off_goes_on_to_the_same_values(
    tmp_path: Path, name: str
) -> None:
    measure, settings, stops = CELLS[name]
    told, around = (
        Mock(),
        partial(Surroundings, checkpoint=Checkpoint(tmp_path / "cell.npz")),
    )

    def stop(done: int, _all: int) -> None:
        if done == stops:
            raise KeyboardInterrupt

    whole = measure(settings, Surroundings())
    with pytest.raises(KeyboardInterrupt):
        measure(settings, around(progress=stop))
    assert measure(settings, around(progress=told)) == whole
    assert 1 < told.call_args_list[0].args[0] <= stops


CANARIES, ROUNDS = 400, 4
SEED = 5


@pytest.mark.parametrize(
    ("build", "rounds", "refuted"),
    [
        (Build.SOUND, ROUNDS, (False, False)),
        # The other server alone finds that one has no noise.
        (Build.OTHER_SILENT, ROUNDS, (False, True)),
        (Build.OTHER_SILENT, 1, (False, True)),
        # Whoever sees the models finds records that aren't clipped.
        (Build.UNCLIPPED, ROUNDS, (True, True)),
        # The server that looks again finds noise that is drawn anew.
        (Build.REDRAWN, 10, (False, True)),
    ],
)
def test_a_fault_is_found_by_whom_it_concerns(
    build: Build, rounds: int, refuted: tuple[bool, bool]
) -> None:
    """Of real processes: tests/soak/test_audit_processes.py."""
    made = designed(CANARIES, rounds, SEED)
    plans = planned(made, 1, less=less_noise(build))
    found = audit(plans, [(builds.train(made, build, SEED), made)])
    # Who sees the models, and one server.
    verdicts = {verdict.statement.name: verdict.refuted for verdict in found}
    assert verdicts == dict(zip(("models", "one server"), refuted, strict=True))


def test_the_command_says_what_is_stated_and_learnt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def nothing(_draws: Draws, _version: int, d: int) -> tuple[RingVector, RingVector]:
        return np.zeros(d, np.int64), np.zeros(d, np.int64)

    silent = partial(canary_training.train, server_a_noise=nothing)
    monkeypatch.setattr(canary_training, "train", silent)
    words = ["audit", "--canaries", str(CANARIES), "--seed", str(SEED), "--json"]
    done = CliRunner().invoke(experiments, words)
    assert done.exit_code == REFUTED, done.output
    document = json.loads(done.stdout)
    (one,) = (each for each in document["verdicts"] if each["view"] == "one server")
    assert (one["refuted"], document["simulated"]) == (True, True)
    assert one["epsilon_at_least"] >= one["epsilon_stated"]
    assert "half the noise" in done.stderr


def test_what_watches_refuses_a_task_that_is_not_an_audits() -> None:
    task = designed(50, 1, SEED).task
    require_own(task, "127.0.0.1:7301")
    refused(r"other\.example", require_own, task, "other.example:7301")
    refused(
        "wards",
        require_own,
        Task.parse(task.model_dump(mode="json") | {"name": "wards"}),
    )
