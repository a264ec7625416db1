"""Whether what `precad task new` writes is near the best; results/default_settings.json.

    python benchmarks/default_settings.py --data FOLDER [--minutes 40]

Whole tasks that people might plan: tables of 2 and 3 classes, an unbalanced one,
regression, text, images, an encoder's features, handcrafted ones, a warm start; a
thousand owners of one record, two hundred of seven, unequal ones; few rounds and many.
Each is written by `task new`, and beside it stands a grid: q (everybody, or about
twenty owners), p (the same, twice), C (half, the same, twice), η (a quarter to four
times), with the σ that gives the same ε; of large models η alone. A
score is accuracy, the area under the ROC curve of the unbalanced table, or R², in
points, on records that weren't trained on: the mean over ``SEEDS``, with the same
samples and noise for all. What a round costs is the estimate of `task new`.

FOLDER holds what MNIST's and the sentences' readers want, ``cifar10-jpeg``, and
``encoder.npz`` of `encoder_features.py`. What is there isn't run again; ``--minutes``
of the processor's time end a piece. Arithmetic is that of `precad simulate --try`.
"""

import argparse
import functools
import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

# Before torch starts its threads.
os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
import torch
from numpy.typing import NDArray
from research.datasets import load
from research.datasets.sentences import movie_sentences
from research.features.oriented_gradients import oriented_gradients
from sklearn.datasets import load_diabetes, load_wine
from sklearn.metrics import roc_auc_score
from torch.nn import functional

from benchmarks.linear_side_by_side import LinearSideBySide
from benchmarks.rounds.hardware import hardware
from precad.cli import default_numbers
from precad.cli import task_planning as planning
from precad.cli.command_options import Wishes
from precad.client.gradients.torch_models import build
from precad.common.model import save_model, tensors
from precad.common.task import Task
from precad.simulation.datasets import breast_cancer, digits
from precad.simulation.search import SideBySide
from precad.simulation.virtual_owners import Owners

RESULT = Path(__file__).parent / "results" / "default_settings.json"
SEEDS = (1, 2)
P_FACTORS = (1.0, 2.0)
C_FACTORS = (0.5, 1.0, 2.0)
STEP_FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)
_FEW = 20
"""Owners of a round, beside everybody."""
_TEST_PART = 0.3
UNEQUAL = "250,80,40,15,10"
_LENGTHS = {"encoder": 1.0, "handcrafted": 4.0}
"""Of a record's features, where they are an image's."""
_FLOOR = 0.0
"""Of R²: a model that is worse than a constant is of no use, however much worse it is.
"""

Arrays = tuple[NDArray[np.float32], NDArray[Any]]
Setting = dict[str, float]
"""Values by field: q, p, C and η, and the σ that they need."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A training that somebody plans."""

    name: str
    data: str
    records: str
    """As `task new --records` takes it."""
    epsilon: float = 3.0
    rounds: int = 200
    hidden: int = 0
    warm: bool = False
    """Start from the model of a training on as many other records."""
    steps: bool = False
    """Only η changes in the grid: large models take long."""


CASES = (
    Case(name="digits, 1,000 owners of 1", data="digits", records="1000x1"),
    Case(name="digits, 200 owners of 7", data="digits", records="200x7"),
    Case(name="digits, 10 owners", data="digits", records="10x140"),
    Case(name="tumours, 3 clinics", data="tumours", records="3x132"),
    Case(
        name="tumours, unequal, 30 rounds", data="tumours", records=UNEQUAL, rounds=30
    ),
    Case(name="1 in 12", data="unbalanced", records="3x90"),
    Case(name="an encoder", data="encoder", records="5x1200", epsilon=1, steps=True),
    Case(
        name="an encoder, 20 rounds",
        data="encoder",
        records="5x1200",
        epsilon=8,
        rounds=20,
    ),
    Case(name="a warm start", data="mnist", records="5x1000", warm=True),
    Case(name="diabetes", data="diabetes", records="3x103"),
    Case(name="sentences", data="sentences", records="5x1700"),
    Case(name="tumours' area", data="area", records="3x132"),
    Case(name="wine", data="wine", records="3x41"),
    Case(
        name="handcrafted features",
        data="handcrafted",
        records="10x600",
        epsilon=8,
        rounds=50,
        steps=True,
    ),
    Case(name="MNIST", data="mnist", records="5x4800", rounds=100, steps=True),
    Case(name="perceptron", data="digits", records="10x140", hidden=32, steps=True),
)


def main() -> None:
    """Run what is missing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help="folder with the data sets' files")
    parser.add_argument("--minutes", type=float, default=40.0, help="of the processor")
    parser.add_argument("--out", type=Path, default=RESULT)
    parser.add_argument("--only", default="", help="cases whose names hold this")
    given = parser.parse_args()
    if given.data is None:
        print("default_settings.py measures nothing without --data", flush=True)
        return
    torch.set_num_threads(1)
    found = json.loads(given.out.read_text()) if given.out.is_file() else {"cases": {}}
    for case in CASES:
        key = f"{case.name}, ε = {case.epsilon:g}"
        if key in found["cases"] or given.only not in key:
            continue
        if time.process_time() > 60 * given.minutes:
            return
        found["cases"][key] = measured(case, given.data, given.out.parent)
        found |= {
            "hardware": hardware(),
            "seeds": SEEDS,
            "factors": {"p": P_FACTORS, "C": C_FACTORS, "step": STEP_FACTORS},
        }
        text = json.dumps(found, indent=1, ensure_ascii=False) + "\n"
        given.out.write_text(text, encoding="utf-8")
        row = found["cases"][key]
        print(
            key, row["default"], row["best"], f"{time.process_time():.0f} s", flush=True
        )


def measured(case: Case, folder: Path, out: Path) -> dict[str, Any]:
    """Return scores of the task that `task new` writes, and of the grid around it."""
    began = time.process_time()
    records = records_of(case, folder)
    weights = None
    if case.warm:
        weights = out / "earlier.safetensors"
        earlier = records_of(case, folder, earlier=True)
        write_earlier_model(case, earlier, weights)
    task = planned(case, records, weights)
    # A warm start has a tenth of the usual step, which is tried too.
    steps = (*STEP_FACTORS, 10.0) if case.warm else STEP_FACTORS
    tried = [setting_of(task), *settings(task, steps, only_steps=case.steps)]
    scores = scored([changed(task, setting) for setting in tried], records)
    rows = [
        setting | {"score": score} for setting, score in zip(tried, scores, strict=True)
    ]
    if weights is not None:
        weights.unlink()
    owners = task.enrolment.clients
    return {
        "case": asdict(case),
        "dimension": task.dimension,
        "planned_units": task.enrolment.planned_units,
        "default": rows[0],
        "best": max(rows, key=lambda row: row["score"]),
        "grid": rows[1:],
        "round": {
            "owners": owners,
            "seconds": round(default_numbers.round_seconds(owners, task.dimension), 1),
            "upload_mb": round(owners * planning.upload_bytes(task) / 1e6, 1),
        },
        "seconds": round(time.process_time() - began, 1),
    }


def planned(case: Case, records: "CaseRecords", weights: Path | None) -> Task:
    """Return the task as `task new` plans it."""
    wishes = _wishes(
        records=case.records,
        epsilon=case.epsilon,
        rounds=case.rounds,
        architecture="mlp" if case.hidden else "logistic",
        hidden=case.hidden or 32,
        features=str(records.features),
        classes=records.classes,
        validation="crypten",
        weights=weights,
    )
    made, *_ = planning.planned(wishes, name="defaults")
    if weights is None:
        return made
    values = made.model_dump(mode="json")
    values["model"]["initial_file"] = str(weights)
    return Task.parse(values)


def _wishes(**given: Any) -> Wishes:
    """Return what `task new` is asked, None where nothing is given."""
    return Wishes(**dict.fromkeys(Wishes.__dataclass_fields__) | given)


def setting_of(task: Task) -> Setting:
    """Return what the task says of the fields that the grid changes."""
    privacy = task.privacy.model_dump()
    fields = ("client_rate", "record_rate", "client_clip", "noise_multiplier")
    rate = task.mechanism.step.learning_rate
    return {name: privacy[name] for name in fields} | {"learning_rate": rate}


def settings(
    task: Task, steps: tuple[float, ...], *, only_steps: bool
) -> Iterator[Setting]:
    """Yield the grid around a task, each setting with the σ that gives the same ε.

    ``steps`` are factors of η; with ``only_steps`` nothing else changes.
    """
    default = setting_of(task)
    owners = task.enrolment.clients
    largest = round(task.enrolment.max_expected_records / default["record_rate"] / 2)
    few = default_numbers.rounded(_FEW / owners, 2) if owners > _FEW else 1.0
    rates = {min(1.0, default["record_rate"] * factor) for factor in P_FACTORS}
    cohorts = {1.0, few}
    clips = C_FACTORS
    if only_steps:
        rates = {default["record_rate"]}
        cohorts = {1.0}
        clips = (1.0,)
    for client_rate, record_rate in product(sorted(cohorts), sorted(rates)):
        rounds = task.mechanism.releases
        sigma = planning.least_noise(
            epsilon=task.privacy.epsilon_limit or 0.0,
            delta=task.privacy.delta,
            unit_rate=record_rate,
            participations=planning.participations_of(client_rate, rounds),
        )
        clip = default_numbers.default_clip(1.0, largest, record_rate)
        for clip_factor, step_factor in product(clips, steps):
            yield {
                "client_rate": client_rate,
                "record_rate": record_rate,
                "client_clip": max(1.0, clip * clip_factor),
                "noise_multiplier": sigma,
                "learning_rate": default["learning_rate"] * step_factor,
            }


def changed(task: Task, setting: Setting) -> Task:
    """Return the task with another setting."""
    values = task.model_dump(mode="json")
    for name, value in setting.items():
        part = "training" if name == "learning_rate" else "privacy"
        values[part][name] = value
    values["fractional_bits"] = planning.fractional_bits(setting["client_clip"])
    rate = setting["record_rate"] / task.privacy.record_rate
    values["enrolment"]["max_expected_records"] *= rate
    # σ gives the same ε; the limit would be counted anew for each.
    del values["privacy"]["epsilon_limit"]
    return Task.parse(values)


# --- trainings
# ----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class CaseRecords:
    """Each owner's records, and held-out ones; all of one data set."""

    owners: list[Arrays]
    held_out: Arrays
    by_rank: bool
    """Whether a score is the area under the ROC curve."""

    @property
    def features(self) -> int:
        """Numbers in a record's input."""
        return self.held_out[0].shape[1]

    @property
    def classes(self) -> int:
        """Labels; 1 for a number."""
        targets = self.held_out[1]
        return 1 if targets.dtype.kind == "f" else int(targets.max()) + 1


def thetas_of(
    tasks: list[Task], owners: list[Arrays], seed: int
) -> NDArray[np.float32]:
    """Return the models of tasks, ``[tasks, d]``, on the same samples and noise."""
    training = LinearSideBySide
    if tasks[0].model.architecture != "logistic":
        training = SideBySide
    number = owners[0][1].dtype.kind == "f"
    loss = functional.mse_loss if number else functional.cross_entropy
    virtual = Owners(owners, None, tasks[0], seed)
    side_by_side = training(
        tasks, virtual, model=build(tasks[0].model), loss=loss, seed=seed
    )
    return side_by_side.train()


def scored(tasks: list[Task], records: CaseRecords) -> list[float]:
    """Return each task's points on the held-out records, the mean over the seeds."""
    points = np.zeros((len(SEEDS), len(tasks)))
    inputs, targets = records.held_out
    for row, seed in zip(points, SEEDS, strict=True):
        for number, theta in enumerate(thetas_of(tasks, records.owners, seed)):
            outputs = _outputs(theta, tasks[number], inputs)
            if records.classes == 1:
                error = float(np.mean((outputs[:, 0] - targets.ravel()) ** 2))
                row[number] = max(_FLOOR, 1 - error / float(np.var(targets)))
            elif records.by_rank:
                row[number] = roc_auc_score(targets, outputs[:, 1] - outputs[:, 0])
            else:
                row[number] = float((outputs.argmax(axis=1) == targets).mean())
    return [round(100 * float(mean), 2) for mean in points.mean(axis=0)]


def write_earlier_model(case: Case, records: CaseRecords, path: Path) -> None:
    """Write the model of last month: the default's, trained on other records."""
    task = planned(case, records, None)
    theta = thetas_of([task], records.owners, seed=100)[0]
    save_model(path, task, case.rounds, theta)


def _outputs(
    theta: NDArray[np.float32], task: Task, x: NDArray[np.float32]
) -> NDArray[np.float64]:
    """Return the outputs of a logistic model or a perceptron, ``[n, classes]``."""
    layers = list(tensors(theta, task.model.parameters).values())
    found: NDArray[np.float64] = x.astype(np.float64)
    for number in range(0, len(layers), 2):
        found = found @ layers[number].T + layers[number + 1]
        if number + 2 < len(layers):
            found = np.maximum(found, 0.0)
    return found


# --- the data
# ----------------------------------------------------------------------------------


def records_of(case: Case, folder: Path, *, earlier: bool = False) -> CaseRecords:
    """Deal a case's records to its owners by chance; ``earlier`` ones are others."""
    x, y, test_x, test_y = _read(case.data, folder)
    sizes = planning.sizes_of(_wishes(records=case.records))
    order = np.random.default_rng(1).permutation(len(x))
    if earlier:
        order = order[::-1]
    pieces = np.split(order[: sum(sizes)], np.cumsum(sizes)[:-1])
    return CaseRecords(
        owners=[(x[piece], y[piece]) for piece in pieces],
        held_out=(test_x, test_y),
        by_rank=case.data == "unbalanced",
    )


@functools.cache
def _read(name: str, folder: Path) -> tuple[NDArray[Any], ...]:
    """Return training inputs and targets, and held-out ones."""
    match name:
        case "digits":
            whole = digits()
        case "mnist":
            images = load("mnist", folder)
            pooled = (_pooled(images.train_x), _pooled(images.test_x))
            return pooled[0], images.train_y, pooled[1], images.test_y
        case "sentences":
            whole = movie_sentences(folder)
        case "encoder" | "handcrafted":
            return _of_images(folder, name)
        case "wine":
            x, y = load_wine(return_X_y=True)
            return _cut(_standard(x), y.astype(np.int64))
        case "diabetes":
            x, y = load_diabetes(return_X_y=True)
            return _cut(_standard(x), _standard(y[:, None]))
        case _:
            return _tumours(name)
    return whole.train_x, whole.train_y, whole.test_x, whole.test_y


def _tumours(name: str) -> tuple[NDArray[Any], ...]:
    """Return tumours' classes, their worst area, or classes of which one is rare."""
    whole = breast_cancer()
    x = np.concatenate([whole.train_x, whole.test_x])
    y = np.concatenate([whole.train_y, whole.test_y])
    if name == "area":
        # The worst area from the means and the standard errors.
        return _cut(x[:, :20], x[:, 23:24])
    if name == "unbalanced":
        rare = np.flatnonzero(y == 0)
        kept = np.concatenate([np.flatnonzero(y == 1), rare[: len(rare) // 6]])
        # From the means and errors alone: with all columns every setting is near 100.
        x, y = x[kept][:, :20], 1 - y[kept]
    return _cut(x, y)


def _of_images(folder: Path, name: str) -> tuple[NDArray[Any], ...]:
    """Return an encoder's 1,280 features of CIFAR-10's images, or 3,072 by a rule."""
    parts = []
    with np.load(folder / "encoder.npz") as arrays:
        for part in ("train", "test"):
            features = arrays[f"{part}_features"].astype(np.float32)
            if name == "handcrafted":
                images = arrays[f"{part}_images"].transpose(0, 3, 1, 2) / 255
                colours = [
                    oriented_gradients(images[:, [colour]], directions=16)
                    for colour in range(3)
                ]
                features = np.concatenate(colours, axis=1).astype(np.float32)
            norms = np.linalg.norm(features, axis=1, keepdims=True)
            features *= _LENGTHS[name] / np.maximum(norms, 1e-6)
            parts += [features, arrays[f"{part}_y"]]
    return tuple(parts)


def _standard(x: NDArray[Any]) -> NDArray[np.float32]:
    """As a textbook's centres and scales would make them."""
    scaled: NDArray[np.float32] = ((x - x.mean(axis=0)) / x.std(axis=0)).astype(
        np.float32
    )
    return scaled


def _cut(x: NDArray[Any], y: NDArray[Any]) -> tuple[NDArray[Any], ...]:
    """Return training and held-out parts of a table."""
    order = np.random.default_rng(0).permutation(len(x))
    test = round(_TEST_PART * len(x))
    return x[order[test:]], y[order[test:]], x[order[:test]], y[order[:test]]


def _pooled(images: NDArray[np.float32]) -> NDArray[np.float32]:
    """28 × 28 as 196 means of 2 × 2."""
    n = len(images)
    return images.reshape(n, 14, 2, 14, 2).mean(axis=(2, 4)).reshape(n, 196)


if __name__ == "__main__":
    main()
