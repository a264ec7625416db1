"""Which step and which C suit a task that nobody has tuned; results/default_settings.json.

    python benchmarks/default_settings.py --mnist FOLDER --sentences FOLDER [--minutes
    30]

Trainings that people might plan with `precad task new`, fifteen at ε = 3 and at least
eleven at .5, 1 and 8: tables of 2 and 3 classes, regression, text, images; small,
unequal and large owners; few rounds and many. Each is simulated with η by the rule
times each of ``FACTORS``, with C by the rule (``default``), at ε = 3 with a wide one
too, and with what `task new` chose before (``before``). A score is accuracy or R², in
points, on records that weren't trained on, the mean over the same seeds. What is there
isn't run again; ``--minutes`` of the processor's time end a piece. Noise is drawn from
NumPy's generator here, four times as fast as the servers' own sampler.
"""

import argparse
import dataclasses
import json
import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Before torch starts its threads.
os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
from numpy.typing import NDArray
from research.datasets.sentences import movie_sentences
from torch.nn import functional

from benchmarks.rounds.hardware import hardware
from precad.cli import task_planning as planning
from precad.client.gradients.torch_models import logistic, mlp, model_section
from precad.common.errors import Misconfiguration
from precad.common.identifiers import Role
from precad.common.model import tensors
from precad.common.roster import most_records
from precad.common.task import Task
from precad.simulation import simulate
from precad.simulation.datasets import breast_cancer, digits, load

RESULT = Path(__file__).parent / "results" / "default_settings.json"
EPSILONS = (0.5, 1.0, 3.0, 8.0)
FACTORS = tuple(2.0**power for power in range(-3, 4))
"""Of the rule's η."""
DELTA, WIDE_AT = 1e-5, 3.0
_TABLE_SPLIT = 0.3
_FLOOR = 0.0
"""Of R²: a model that is worse than a constant is of no use, however much worse it is.
"""

Arrays = tuple[NDArray[np.float32], NDArray[Any]]


@dataclasses.dataclass(frozen=True)
class Case:
    """A training that somebody plans."""

    name: str
    data: str
    sizes: tuple[int, ...]
    seeds: int
    hidden: int = 0
    rounds: int = 200
    client_rate: float | None = None
    heavy: bool = False
    """At ε = 3 alone, or where it is there."""

    @property
    def rate(self) -> float:
        """The servers' q."""
        return self.client_rate or planning.cohort_rate(len(self.sizes))

    @property
    def record_rate(self) -> float:
        """The owners' p."""
        return planning.default_rate(max(self.sizes))

    @property
    def kind(self) -> str:
        """What is learnt, for the rule."""
        if self.data in {"area", "diabetes"}:
            return "regression"
        return "classes, hidden layers" if self.hidden else "classes"


CASES = (
    Case("wine, 3 owners", "wine", (41,) * 3, 3),
    Case("tumours, 3 clinics", "tumours", (132,) * 3, 3),
    Case("tumours, one large owner", "tumours", (250, 80, 40, 15, 10), 3, heavy=True),
    Case("tumours, 60 rounds", "tumours", (132,) * 3, 4, rounds=60),
    Case("tumours, 600 rounds", "tumours", (132,) * 3, 1, rounds=600, heavy=True),
    Case("tumours' area, regression", "area", (132,) * 3, 3),
    Case("diabetes, regression", "diabetes", (103,) * 3, 3),
    Case("digits, 10 owners", "digits", (140,) * 10, 2),
    Case("digits, perceptron", "digits", (140,) * 10, 2, hidden=32),
    Case("digits, 100 small owners", "digits", (14,) * 100, 2),
    Case(
        "tumours, owners of one record",
        "tumours",
        (1,) * 200,
        2,
        client_rate=1.0,
        heavy=True,
    ),
    Case("sentences, 5 owners", "sentences", (1700,) * 5, 2),
    Case("MNIST, 5 owners", "mnist", (4800,) * 5, 1, heavy=True),
    Case("MNIST, unequal owners", "mnist", (4000, 1000, 600, 200, 200), 1),
    Case("MNIST, perceptron", "mnist", (1200,) * 5, 1, hidden=16),
)


def main() -> None:
    """Run what is missing, the cheap first."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mnist", type=Path, help="folder with MNIST's files")
    parser.add_argument(
        "--sentences", type=Path, help="folder with the movie sentences"
    )
    parser.add_argument("--minutes", type=float, default=30.0, help="of the processor")
    parser.add_argument("--out", type=Path, default=RESULT)
    given = parser.parse_args()
    if given.mnist is None or given.sentences is None:
        print(
            "default_settings.py measures nothing without --mnist and --sentences",
            flush=True,
        )
        return
    found = json.loads(given.out.read_text()) if given.out.is_file() else {"cases": {}}
    for epsilon in (3.0, 1.0, 8.0, 0.5):
        for case in CASES:
            of_case = found["cases"].setdefault(case.name, dataclasses.asdict(case))
            if str(epsilon) in of_case or (case.heavy and epsilon != WIDE_AT):
                continue
            if time.process_time() > 60 * given.minutes:
                return
            of_case[str(epsilon)] = measured(case, epsilon, parts(case, given))
            found |= {"hardware": hardware(), "factors": FACTORS}
            text = json.dumps(found, indent=1, ensure_ascii=False) + "\n"
            given.out.write_text(text, encoding="utf-8")
            print(
                f"{case.name}, ε = {epsilon:g}: {time.process_time():.0f} s", flush=True
            )


def measured(
    case: Case, epsilon: float, data: tuple[list[Arrays], Arrays]
) -> dict[str, Any]:
    """Scores around the rule's choice, and of what was the default before."""
    began = time.process_time()
    participations = planning.participations_of(case.rate, case.rounds)
    sigma = planning.least_noise(
        epsilon=epsilon,
        delta=DELTA,
        record_rate=case.record_rate,
        participations=participations,
    )
    largest = max(case.sizes)
    expected = case.rate * case.record_rate * sum(case.sizes)
    step = planning.default_step(
        expected_records=expected,
        noise_multiplier=sigma,
        rounds=case.rounds,
        record_clip=1.0,
        kind=case.kind,
    )
    most = most_records(largest, case.record_rate)
    clips = {
        "default": planning.default_clip(1.0, largest, case.record_rate),
        "wide": float(min(most, max(4.0, case.record_rate * largest))),
    }
    if epsilon != WIDE_AT:
        del clips["wide"]

    def at(clip: float, step: float) -> float:
        return score(task_of(case, sigma, clip, step, data[0]), case, *data)

    dimension = task_of(case, sigma, 1.0, 1.0, data[0]).dimension
    before = min(10.0, expected / (math.sqrt(2 * dimension) * sigma))
    before = planning.rounded(before, 2)
    of_clip = {
        clip: [at(clip, step * factor) for factor in FACTORS]
        for clip in set(clips.values())
    }
    return {
        "sigma": sigma,
        "dimension": dimension,
        "expected_records": expected,
        "step": step,
        "clips": clips,
        "scores": {name: of_clip[clip] for name, clip in clips.items()},
        "before": {"step": before, "clip": 10.0, "score": at(10.0, before)},
        "seconds": round(time.process_time() - began, 1),
    }


def task_of(
    case: Case, sigma: float, clip: float, step: float, owners: list[Arrays]
) -> Task:
    """The task with this C and this η."""
    inputs, targets = owners[0]
    features = inputs.shape[1]
    classes = (
        10 if case.data in {"digits", "mnist"} else 3 if case.data == "wine" else 2
    )
    classes = 1 if np.issubdtype(targets.dtype, np.floating) else classes
    module = (
        mlp(features, case.hidden, classes)
        if case.hidden
        else logistic(features, classes)
    )
    section = model_section(
        module, architecture="mlp" if case.hidden else "logistic", initial="uniform"
    )
    return Task.parse(
        {
            "name": "defaults",
            "model": section | {"initial": "uniform" if case.hidden else "zeros"},
            "privacy": {
                "record_clip": 1.0,
                "client_clip": clip,
                "noise_multiplier": sigma,
                "record_rate": case.record_rate,
                "client_rate": case.rate,
                "delta": DELTA,
            },
            "training": {"learning_rate": step, "rounds": case.rounds},
            "enrolment": {
                "clients": len(case.sizes),
                "max_expected_records": max(
                    1.0, 2 * case.record_rate * max(case.sizes)
                ),
            },
            "fractional_bits": planning.fractional_bits(clip),
        }
    )


def score(task: Task, case: Case, owners: list[Arrays], held_out: Arrays) -> float:
    """Points on the held-out records, the mean over the case's seeds."""
    found = []
    for seed in range(1, case.seeds + 1):
        regression = np.issubdtype(held_out[1].dtype, np.floating)
        trained = simulate(
            task,
            owners,
            seed=seed,
            noise=_noise(task, seed),
            loss=functional.mse_loss if regression else None,
        )
        outputs = _outputs(trained.theta, task, held_out[0])
        if regression:
            wanted = held_out[1].reshape(-1)
            error = float(np.mean((outputs[:, 0] - wanted) ** 2))
            found.append(max(_FLOOR, 1 - error / float(np.var(wanted))))
        else:
            found.append(float((outputs.argmax(axis=1) == held_out[1]).mean()))
    return round(100 * sum(found) / len(found), 2)


def _noise(task: Task, seed: int) -> Callable[[Role, int, int], NDArray[np.int64]]:
    def drawn(server: Role, version: int, dimension: int) -> NDArray[np.int64]:
        generator = np.random.default_rng([seed, version, server is Role.SERVER_A])
        return np.rint(
            generator.normal(0, task.mechanism.noise_units, dimension)
        ).astype(np.int64)

    return drawn


def _outputs(
    theta: NDArray[np.float64], task: Task, x: NDArray[np.float32]
) -> NDArray[np.float64]:
    """Of a logistic model or a perceptron, ``[n, classes]``."""
    layers = list(tensors(theta, task.model.parameters).values())
    found: NDArray[np.float64] = x.reshape(len(x), -1).astype(np.float64)
    for number in range(0, len(layers), 2):
        found = found @ layers[number].T + layers[number + 1]
        if number + 2 < len(layers):
            found = np.maximum(found, 0.0)
    return found


# --- the data
# ----------------------------------------------------------------------------------


def parts(case: Case, given: Any) -> tuple[list[Arrays], Arrays]:
    """Each owner's records, dealt out by chance, and the held-out ones."""
    x, y, test_x, test_y = _read(case.data, given)
    order = np.random.default_rng(1).permutation(len(x))[: sum(case.sizes)]
    pieces = np.split(order, np.cumsum(case.sizes)[:-1])
    return [(x[each], y[each]) for each in pieces], (test_x, test_y)


def _read(
    name: str, given: Any
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]]:
    match name:
        case "digits":
            whole = digits()
            return whole.train_x, whole.train_y, whole.test_x, whole.test_y
        case "mnist":
            whole = load("mnist", given.mnist)
            return (
                _pooled(whole.train_x),
                whole.train_y,
                _pooled(whole.test_x),
                whole.test_y,
            )
        case "sentences":
            whole = movie_sentences(given.sentences)
            return whole.train_x, whole.train_y, whole.test_x, whole.test_y
        case "tumours" | "area":
            whole = breast_cancer()
            x = np.concatenate([whole.train_x, whole.test_x])
            y = np.concatenate([whole.train_y, whole.test_y])
            # The worst area from the means and the standard errors.
            return _cut(x, y) if name == "tumours" else _cut(x[:, :20], x[:, 23:24])
        case "wine":
            from sklearn.datasets import load_wine  # noqa: PLC0415

            x, y = load_wine(return_X_y=True)
            return _cut(_standard(x), y.astype(np.int64))
        case "diabetes":
            from sklearn.datasets import load_diabetes  # noqa: PLC0415

            x, y = load_diabetes(return_X_y=True)
            return _cut(_standard(x), _standard(y[:, None]))
    raise Misconfiguration("data", name, "is none of this benchmark's")


def _standard(x: NDArray[Any]) -> NDArray[np.float32]:
    """As a textbook's centres and scales would make them."""
    found: NDArray[np.float32] = ((x - x.mean(axis=0)) / x.std(axis=0)).astype(
        np.float32
    )
    return found


def _cut(x: NDArray[Any], y: NDArray[Any]) -> tuple[NDArray[Any], ...]:
    order = np.random.default_rng(0).permutation(len(x))
    test = round(_TABLE_SPLIT * len(x))
    return x[order[test:]], y[order[test:]], x[order[:test]], y[order[:test]]


def _pooled(images: NDArray[np.float32]) -> NDArray[np.float32]:
    """28 × 28 as 196 means of 2 × 2."""
    n = len(images)
    return images.reshape(n, 14, 2, 14, 2).mean(axis=(2, 4)).reshape(n, 196)


if __name__ == "__main__":
    main()
