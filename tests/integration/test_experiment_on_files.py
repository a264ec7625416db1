"""`python -m research run` trains on a data set as published."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from research.__main__ import experiments
from research.study import EXPERIMENTS

RECORDS = 8
PLUGIN = """
from research.papers.precad_common import SETTINGS, train
from research.study import EXPERIMENTS, Experiment, Scale, Table

OWN = {"data": "fashion-mnist", "model": "lenet5", "clients": 2, "rounds": 2, "client_rate": 1.0,
       "record_rate": 0.5, "learning_rate": 0.1, "noise_multiplier": 1.0, "seed": 0}

EXPERIMENTS.register("on-files")(
    Experiment(
        paper="none",
        figure="none",
        claim="It trains.",
        does="Two rounds by PRECAD.",
        settings={scale: {**SETTINGS[Scale.SMALL], **OWN} for scale in Scale},
        cells=lambda scale: [{"algorithm": "precad"}],
        measure=train,
        table=lambda results: Table(["accuracy"], [[str(r.values["accuracy"])] for r in results]),
        plot=lambda results, figure: None,
    )
)
"""


def fashion(folder: Path) -> None:
    """IDX, packed by gzip."""
    generator = np.random.default_rng(0)
    for part, count in (("train", RECORDS), ("t10k", 2)):
        pixels = generator.integers(0, 256, (count, 28, 28), np.uint8)
        labels = (np.arange(count) % 10).astype(np.uint8)
        for name, values in ((f"{part}-images-idx3", pixels), (f"{part}-labels-idx1", labels)):
            head = bytes((0, 0, 8, values.ndim)) + np.array(values.shape, ">u4").tobytes()
            packed = gzip.compress(head + values.tobytes())
            (folder / f"{name}-ubyte.gz").write_bytes(packed)


def test_an_experiment_trains_on_a_published_format(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(EXPERIMENTS) > 0
    monkeypatch.setattr(EXPERIMENTS, "_parts", dict(EXPERIMENTS._parts))
    plugin, data = tmp_path / "own.py", tmp_path / "data"
    plugin.write_text(PLUGIN)
    data.mkdir()

    def run(*plugins: str, code: int = 0) -> str:
        arguments = ["run", "on-files", "--no-plot", "--json", *plugins]
        ended = CliRunner().invoke(
            experiments, [*arguments, "--data", str(data), "--output", str(tmp_path / "kept")]
        )
        assert ended.exit_code == code, ended.output
        return ended.output if code else ended.stdout

    refused = run("--plugin", str(plugin), code=2)
    assert "nothing is downloaded" in " ".join(refused.split())
    fashion(data)
    (row,) = json.loads(run())["table"]
    assert 0 <= float(row["accuracy"]) <= 1
