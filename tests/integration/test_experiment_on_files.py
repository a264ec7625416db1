"""`precad experiment run` trains on data sets in the formats in which they are published."""

import csv
import gzip
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from precad.cli.main import app
from precad.experiments.data.glove import DIMENSIONS, GLOVE_FILE
from precad.experiments.data.tweets import TEST_FILE, TRAIN_FILE
from precad.experiments.study import EXPERIMENTS

RECORDS = 8
PLUGIN = """
from precad.experiments.papers.precad_common import SETTINGS, train
from precad.experiments.study import EXPERIMENTS, Experiment, Scale, Table

OWN = {"data": "NAME", "model": "MODEL", "clients": 2, "rounds": 2, "client_rate": 1.0,
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


def cifar(folder: Path) -> None:
    """The binary archive, unpacked."""
    place = folder / "cifar-10-batches-bin"
    place.mkdir()
    generator = np.random.default_rng(0)
    for name in (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"):
        rows = generator.integers(0, 256, (2, 3073), np.uint8)
        rows[:, 0] %= 10
        (place / name).write_bytes(rows.tobytes())


def tweets(folder: Path) -> None:
    """Sentiment140's two files, and some of GloVe's words."""
    for name, count in ((TRAIN_FILE, RECORDS), (TEST_FILE, 2)):
        with (folder / name).open("w", encoding="latin-1", newline="") as file:
            writer = csv.writer(file, quoting=csv.QUOTE_ALL)
            for number in range(count):
                mood, word = (("0", "sad"), ("4", "good"))[number % 2]
                text = f"a {word} day, café"
                writer.writerow([mood, number, "Mon Apr 06", "NO_QUERY", f"by{number % 2}", text])
    vectors = {"sad": "-0.1", "good": "0.1"}
    lines = [" ".join([word, *[value] * DIMENSIONS]) for word, value in vectors.items()]
    (folder / GLOVE_FILE).write_text("\n".join(lines) + "\n", "utf-8")


@pytest.mark.parametrize(
    ("name", "model", "write"),
    [
        ("fashion-mnist", "opacus-cnn", fashion),
        ("fashion-mnist", "lenet5", fashion),
        ("cifar10", "opacus-cifar-cnn", cifar),
        ("cifar10", "resnet18", cifar),
        ("sentiment140", "logistic", tweets),
        ("sentiment140-glove", "lstm", tweets),
    ],
)
def test_an_experiment_trains_on_published_formats(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    model: str,
    write: Callable[[Path], None],
) -> None:
    assert len(EXPERIMENTS) > 0
    monkeypatch.setattr(EXPERIMENTS, "_parts", dict(EXPERIMENTS._parts))
    plugin, data = tmp_path / "own.py", tmp_path / "data"
    plugin.write_text(PLUGIN.replace("NAME", name).replace("MODEL", model))
    data.mkdir()

    def run(*plugins: str, code: int = 0) -> str:
        arguments = ["experiment", "run", "on-files", "--no-plot", "--json", *plugins]
        ended = CliRunner().invoke(
            app, [*arguments, "--data", str(data), "--output", str(tmp_path / "kept")]
        )
        assert ended.exit_code == code, ended.output
        return ended.output if code else ended.stdout

    refused = run("--plugin", str(plugin), code=2)
    assert "nothing is downloaded" in " ".join(refused.split())
    write(data)
    (row,) = json.loads(run())["table"]
    assert 0 <= float(row["accuracy"]) <= 1
