"""A head on frozen features by one release: `python -m benchmarks.head --data FOLDER`.

    python benchmarks/encoder_features.py --data FOLDER --side 128 --train 5000 --test 1000
    python -m benchmarks.head --data FOLDER --output benchmarks/results/head.json

Ten owners hold CIFAR-10's training images as 1,280 numbers each, but for the first 100
of each class: their mean, and half their usual length, are what is public. All by a
user's commands: `ask new` with a query of kind head, `setup`, two servers, ten owners,
`evaluate` on all test images. Beside it least squares of the same cut rows without
noise. The penalty is the product's own, from the noise alone.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.rounds.hardware import hardware
from precad.cli.local_deployment import to_toml
from precad.common.task import Task

OWNERS, PUBLIC, DELTA = 10, 100, 1e-5
LEVELS = [f"c{place}" for place in range(10)]
Arrays = np.ndarray[Any, Any]


def main() -> None:
    """Ask for a head of ten owners, and say how often it is right."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder with encoder.npz")
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--validation", default="proof")
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    if given.data is None:
        print("head.py does nothing without --data", flush=True)
        return
    arrays = np.load(given.data / "encoder.npz")
    features = arrays["train_features"].astype(np.float64)
    labels = arrays["train_y"]
    places = np.concatenate([np.flatnonzero(labels == each) for each in range(10)])
    within = np.concatenate([np.arange(np.sum(labels == each)) for each in range(10)])
    public = places[within < PUBLIC]
    private = np.random.default_rng(0).permutation(places[within >= PUBLIC])
    centre = features[public].mean(axis=0)
    # Half of the usual one: all rows are cut, and count by their direction.
    length = float(np.linalg.norm(features[public] - centre, axis=1).mean()) / 2.0
    test = arrays["test_features"].astype(np.float64), arrays["test_y"]
    with TemporaryDirectory() as name:
        folder = Path(name)
        for at, part in enumerate(np.array_split(private, OWNERS)):
            table(features[part], labels[part]).to_parquet(folder / f"{at}.parquet")
        table(*test).to_parquet(folder / "test.parquet")
        most = -(-len(private) // OWNERS)
        found = asked(folder, centre, length, most, given)
    exact = ridge(features[private] - centre, labels[private], test[0] - centre, length)
    document: dict[str, Any] = {
        "what": "head.py",
        "hardware": hardware(),
        "records": len(private),
        "owners": OWNERS,
        "test_records": len(test[1]),
        "without_noise": round(float((exact == test[1]).mean()), 4),
        **found,
    }
    print(json.dumps(document, indent=1))
    if given.output is not None:
        given.output.write_text(json.dumps(document, indent=1) + "\n", "utf-8")


def table(features: Arrays, labels: Arrays) -> pd.DataFrame:
    """An owner's table: a column a feature, and the class."""
    names = [f"f{place}" for place in range(features.shape[1])]
    frame = pd.DataFrame(features.astype(np.float32), columns=names)
    return frame.assign(kind=[LEVELS[label] for label in labels])


def asked(
    folder: Path, centre: Arrays, length: float, most: int, given: argparse.Namespace
) -> dict[str, Any]:
    """Ask as a user does; what `evaluate` says, with what the release is."""

    def run(*words: object) -> str:
        command = [sys.executable, "-m", "precad", *map(str, words)]
        done = subprocess.run(
            command, cwd=folder, stdout=subprocess.PIPE, text=True, check=True
        )
        return done.stdout

    questions: dict[str, Any] = {
        "data": {
            "target": {"name": "kind", "kind": "categorical", "levels": LEVELS},
            "columns": [
                {"name": f"f{place}", "centre": round(float(value), 4)}
                for place, value in enumerate(centre)
            ],
        },
        "query": [
            {
                "name": "head",
                "kind": "head",
                "column": "kind",
                "length": round(length, 2),
            }
        ],
        # Ten owners on this machine's cores make 40,000 rows' products first.
        "deadlines": {"enrol": 3600.0},
    }
    (folder / "questions.toml").write_text(to_toml(questions), encoding="utf-8")
    options = {
        "--owners": OWNERS,
        "--most-records": most,
        "--epsilon": given.epsilon,
        "--delta": DELTA,
        "--validation": given.validation,
    }
    words = [word for option in options.items() for word in option]
    print(run("ask", "new", "questions.toml", "ask.toml", *words))
    tables = [word for at in range(OWNERS) for word in ("--data", f"{at}.parquet")]
    run("setup", "run", "--task", "ask.toml", *tables)
    parts = ["b", "a"] if given.validation == "proof" else ["dealer", "b", "a"]
    began = time.monotonic()
    servers = []
    for part in parts:
        name = "dealer" if part == "dealer" else f"server-{part}"
        words = ["serve", part, "--config", f"run/{name}.toml"]
        command = [sys.executable, "-m", "precad", *words]
        servers.append(subprocess.Popen(command, cwd=folder))
    try:
        owners = [
            word for at in range(OWNERS) for word in ("--config", f"run/{at}.toml")
        ]
        run("join", *owners, "--quiet")
        seconds = time.monotonic() - began
    finally:
        for server in servers:
            server.terminate()
            server.wait()
    results = json.loads(
        run("evaluate", "test.parquet", "--config", "run/0.toml", "--json")
    )
    [accuracy] = [each for each in results["measures"] if each["name"] == "accuracy"]
    task = Task.load(folder / "ask.toml")
    return {
        "epsilon": given.epsilon,
        "delta": DELTA,
        "noise_multiplier": task.mechanism.noise_multiplier,
        "dimension": task.dimension,
        "validation": given.validation,
        "accuracy": accuracy,
        "minutes": round(seconds / 60.0, 1),
    }


def ridge(features: Arrays, labels: Arrays, test: Arrays, length: float) -> Arrays:
    """Classes by least squares of the same cut rows, without noise."""

    def cut(rows: Arrays) -> Arrays:
        return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), length)

    rows = cut(features)
    gram = rows.T @ rows + 1e-3 * np.eye(rows.shape[1])
    weights = np.linalg.solve(gram, rows.T @ np.eye(len(LEVELS))[labels])
    return (cut(test) @ weights).argmax(axis=1)


if __name__ == "__main__":
    main()
