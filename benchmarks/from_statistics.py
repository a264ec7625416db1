"""Accuracy with centres from answers, beside known ones: `python -m benchmarks.from_statistics`.

    python -m benchmarks.from_statistics --output benchmarks/results/from_statistics.json

Two made-up sets of three owners' tables, 3,000 records in all: numbers of unknown
scales, and a column with 20 listed levels of which 8 occur. `ask new` at ε = .5, a
simulated answer, `task new --from-statistics` at ε = 2 and 60 rounds, and a simulated
training, as against the same with the centres, scales and levels that made the tables.
"""

import argparse
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from tests.rig import commands

from benchmarks.rounds.hardware import hardware
from precad.cli.local_deployment import to_toml
from precad.client.answers import answers_of
from precad.client.results import Answered
from precad.common.task import Task
from precad.simulation import simulate

OWNERS, EACH, HELD_OUT = 3, 1000, 2000
LISTED, OCCUR = 20, 8
LEVELS = [f"v{number:02d}" for number in range(LISTED)]


@dataclass(frozen=True)
class Column:
    """A made-up column: how it is drawn, what is public where its scale is known."""

    centre: float
    scale: float
    shape: str = "normal"
    missing: float = 0.0

    def draw(self, count: int, generator: np.random.Generator) -> np.ndarray[Any, Any]:
        """So many values, standardised."""
        if self.shape == "normal":
            return generator.standard_normal(count)
        return generator.gamma(2.0, 1.0, count) / np.sqrt(2.0) - np.sqrt(2.0)


SETS: Mapping[str, Mapping[str, Column]] = {
    "hospital": {
        "age": Column(62.0, 14.0, missing=0.05),
        "creatinine": Column(1.4, 0.8, "skewed"),
        "platelets": Column(250_000.0, 70_000.0, missing=0.1),
        "base excess": Column(-1.0, 3.0),
    },
    "bank": {
        "income": Column(41_000.0, 19_000.0, "skewed"),
        "debt": Column(9_000.0, 5_500.0, "skewed", missing=0.08),
        "months": Column(90.0, 40.0),
        "rate": Column(0.034, 0.011),
    },
}


def table(
    columns: Mapping[str, Column],
    count: int,
    effects: np.ndarray[Any, Any],
    generator: np.random.Generator,
) -> dict[str, list[str]]:
    """A table of text cells, and its outcome by a noisy linear rule."""
    cells: dict[str, list[str]] = {}
    signal = np.zeros(count)
    for place, (name, column) in enumerate(columns.items()):
        values = column.draw(count, generator)
        signal += effects[place] * values
        gone = generator.random(count) < column.missing
        texts = [f"{column.centre + column.scale * value:.5g}" for value in values]
        cells[name] = [
            "NA" if no else text for no, text in zip(gone, texts, strict=True)
        ]
    shares = np.linspace(4.0, 1.0, OCCUR)
    kinds = generator.choice(OCCUR, count, p=shares / shares.sum())
    signal += 0.4 * (kinds % 2) - 0.2
    cells["kind"] = [LEVELS[kind] for kind in kinds]
    yes = signal + generator.logistic(0.0, 0.4, count) > 0.0
    cells["outcome"] = ["yes" if each else "no" for each in yes]
    return cells


def recipe(columns: Mapping[str, Column], *, known: bool) -> dict[str, Any]:
    """The recipe, with what made the tables or without it."""
    inputs: list[dict[str, Any]] = [
        {"name": name, "centre": each.centre, "scale": each.scale, "fill": each.centre}
        if known
        else {"name": name}
        for name, each in columns.items()
    ]
    levels = LEVELS[:OCCUR] if known else LEVELS
    inputs.append({"name": "kind", "kind": "categorical", "levels": levels})
    target = {"name": "outcome", "kind": "categorical", "levels": ["no", "yes"]}
    return {"target": target, "columns": inputs}


def questions(columns: Mapping[str, Column]) -> dict[str, Any]:
    """What is asked of columns of unknown scale."""
    listed = recipe(columns, known=False)
    return {
        "columns": [listed["target"], listed["columns"][-1]],
        "query": [
            {"name": "outcomes", "kind": "shares", "column": "outcome"},
            {"name": "kinds", "kind": "shares", "column": "kind"},
            *({"name": name, "kind": "quantiles", "column": name} for name in columns),
        ],
    }


def accuracy(folder: Path, *more: object) -> float:
    """Of a training on the folder's tables, of the held-out ones."""
    task = folder / "task.toml"
    task.unlink(missing_ok=True)
    sizes = ["--records", f"{OWNERS}x{EACH}", "--epsilon", 2, "--rounds", 60]
    new = ["task", "new", task, "--architecture", "logistic", *sizes, *more]
    commands.said(*new)
    tables = [word for at in range(OWNERS) for word in ("--data", folder / f"{at}.csv")]
    held_out = ["--held-out", folder / "held-out.csv", "--public", "--seed", 1]
    found: float = commands.document("simulate", task, *tables, *held_out)["accuracy"]
    return found


def once(name: str, seed: int, folder: Path) -> tuple[float, float]:
    """Accuracy with known constants, and with answers', of one set of tables."""
    columns = SETS[name]
    generator = np.random.default_rng([seed, len(name)])
    effects = generator.normal(0.0, 0.8, len(columns))
    for file, count in (
        *((f"{at}", EACH) for at in range(OWNERS)),
        ("held-out", HELD_OUT),
    ):
        cells = table(columns, count, effects, generator)
        lines = [",".join(row) for row in zip(*cells.values(), strict=True)]
        text = "\n".join([",".join(cells), *lines, ""])
        (folder / f"{file}.csv").write_text(text, encoding="utf-8")
    for known in (True, False):
        text = to_toml(recipe(columns, known=known))
        (folder / f"columns-{known}.toml").write_text(text, encoding="utf-8")
    (folder / "questions.toml").write_text(
        to_toml(questions(columns)), encoding="utf-8"
    )
    ask = folder / "ask.toml"
    ask.unlink(missing_ok=True)
    sizes = ["--owners", OWNERS, "--most-records", EACH, "--epsilon", 0.5]
    commands.said("ask", "new", folder / "questions.toml", ask, *sizes)
    task = Task.load(ask)
    files = {f"owner-{at}": folder / f"{at}.csv" for at in range(OWNERS)}
    released = simulate(task, files, seed=seed)
    said = Answered(
        task=str(task.digest),
        counted=dict.fromkeys(files, EACH),
        queries=task.query or (),
        answers=answers_of(task, released.theta, OWNERS * EACH),
    )
    answers = folder / "answers.json"
    answers.write_text(said.model_dump_json(exclude_unset=True), encoding="utf-8")
    told = accuracy(folder, "--recipe", folder / "columns-True.toml")
    asked = accuracy(
        folder,
        "--recipe",
        folder / "columns-False.toml",
        "--from-statistics",
        answers,
    )
    return told, asked


def main() -> None:
    """Compare on several draws of both sets."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    found: dict[str, Any] = {}
    for name in SETS:
        with TemporaryDirectory(prefix="precad-statistics-") as folder:
            pairs = [once(name, seed, Path(folder)) for seed in range(given.seeds)]
        found[name] = {
            "known": [round(told, 4) for told, _ in pairs],
            "answers": [round(asked, 4) for _, asked in pairs],
            "mean_difference": round(mean(asked - told for told, asked in pairs), 4),
        }
        print(name, json.dumps(found[name]), flush=True)
    document = {"what": "from_statistics.py", "hardware": hardware(), "sets": found}
    if given.output is not None:
        given.output.write_text(json.dumps(document, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
