"""Recall of a rare class at equal ε, with --balance and without; results/balance.json.

    python benchmarks/balance.py

Three tables of scikit-learn's, made unbalanced by a stated rule (``TABLES``), at three
owners, as `precad task new` plans them: logistic regression, 200 rounds, no option but
``--epsilon`` and ``--balance``. Beside each stands scikit-learn's logistic regression of
the same records without privacy, with the same weights. Every number is the mean over
``SEEDS``, of which each splits the records anew: 70 % at the owners, 30 % held out.
The shares are those of the table, which stand for publicly known ones.
"""

import dataclasses
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Before torch starts its threads.
os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, recall_score, roc_auc_score

from benchmarks.rounds.hardware import hardware
from precad.cli.command_options import Wishes
from precad.cli.task_planning import planned
from precad.common.identifiers import Role
from precad.common.model import tensors
from precad.common.task import Task
from precad.simulation import simulate
from precad.simulation.datasets import breast_cancer

RESULT = Path(__file__).parent / "results" / "balance.json"
EPSILONS = (1.0, 3.0, 8.0)
SEEDS = (1, 2, 3, 4, 5)
OWNERS = 3
HELD_OUT = 0.3
Arrays = tuple[NDArray[np.float32], NDArray[np.int64]]


def tumours() -> Arrays:
    """Every fifth malignant tumour, the rare class, and all benign ones."""
    whole = breast_cancer()
    x = np.concatenate([whole.train_x, whole.test_x])
    y = np.concatenate([whole.train_y, whole.test_y])
    malignant = np.flatnonzero(
        y == list(load_breast_cancer().target_names).index("malignant")
    )
    kept = np.setdiff1d(np.arange(len(y)), np.setdiff1d(malignant, malignant[::5]))
    return x[kept], np.isin(kept, malignant).astype(np.int64)


def eights() -> Arrays:
    """Handwritten digits: whether one is an 8."""
    x, y = load_digits(return_X_y=True)
    return (x / 16).astype(np.float32), (y == 8).astype(np.int64)


def progressions() -> Arrays:
    """Diabetes: whether the disease's progression is 250 or more."""
    x, y = load_diabetes(return_X_y=True)
    return (x / x.std(axis=0)).astype(np.float32), (y >= 250).astype(np.int64)


TABLES: dict[str, Callable[[], Arrays]] = {
    "tumours": tumours,
    "eights": eights,
    "progressions": progressions,
}


def main() -> None:
    """Measure all tables and write what was found."""
    found: dict[str, Any] = {"hardware": hardware(), "seeds": len(SEEDS), "tables": {}}
    for name, table in TABLES.items():
        x, y = table()
        began = time.process_time()
        share = float(y.mean())
        found["tables"][name] = {
            "rule": " ".join(str(table.__doc__).split()),
            "records": len(y),
            "rare_share": round(share, 4),
            "results": [
                measured(x, y, epsilon=epsilon, balanced=balanced)
                for balanced in (False, True)
                for epsilon in (*EPSILONS, None)
            ],
            "seconds": round(time.process_time() - began, 1),
        }
        print(json.dumps(found["tables"][name], indent=1), flush=True)
    text = json.dumps(found, indent=1, ensure_ascii=False) + "\n"
    RESULT.write_text(text, encoding="utf-8")


def measured(
    x: NDArray[np.float32],
    y: NDArray[np.int64],
    *,
    epsilon: float | None,
    balanced: bool,
) -> dict[str, Any]:
    """Return the mean scores over all seeds; without an ε, without privacy."""
    shares = np.bincount(y) / len(y)
    rows = []
    for seed in SEEDS:
        order = np.random.default_rng(seed).permutation(len(y))
        held_out, kept = np.split(order, [round(HELD_OUT * len(y))])
        if epsilon is None:
            weights = {0: shares[1] / shares[0], 1: 1.0} if balanced else None
            fitted = LogisticRegression(class_weight=weights, max_iter=5000)
            margin = fitted.fit(x[kept], y[kept]).decision_function(x[held_out])
        else:
            task = task_of(x, kept, shares, epsilon=epsilon, balanced=balanced)
            owners = [(x[part], y[part]) for part in np.array_split(kept, OWNERS)]
            margin = trained(task, owners, x[held_out], seed=seed)
        rows.append(scores(margin, y[held_out]))
    means = {
        name: round(float(np.mean([row[name] for row in rows])), 3) for name in rows[0]
    }
    return {"epsilon": epsilon, "balanced": balanced, **means}


def scores(margin: NDArray[np.float64], y: NDArray[np.int64]) -> dict[str, float]:
    """Return scikit-learn's measures of what is above 0, and of the order."""
    said = (margin > 0).astype(np.int64)
    return {
        "recall": recall_score(y, said),
        "specificity": recall_score(y, said, pos_label=0),
        "accuracy": accuracy_score(y, said),
        "auc": roc_auc_score(y, margin),
    }


def task_of(
    x: NDArray[np.float32],
    kept: NDArray[np.int64],
    shares: NDArray[np.float64],
    *,
    epsilon: float,
    balanced: bool,
) -> Task:
    """Return what `precad task new` plans."""
    wishes = {field.name: field.default for field in dataclasses.fields(Wishes)}
    missing = {
        name: None for name, value in wishes.items() if value is dataclasses.MISSING
    }
    asked = {
        "records": f"{OWNERS}x{len(kept) // OWNERS}",
        "architecture": "logistic",
        "features": str(x.shape[1]),
        "classes": 2,
        "epsilon": epsilon,
        "balance": ",".join(map(str, shares)) if balanced else None,
    }
    return planned(Wishes(**(wishes | missing | asked)), "balance")[0]


def trained(
    task: Task, owners: list[Arrays], x: NDArray[np.float32], *, seed: int
) -> NDArray[np.float64]:
    """Return how far the model's rare class is above the other, ``[n]``."""

    def noise(server: Role, version: int, dimension: int) -> NDArray[np.int64]:
        generator = np.random.default_rng([seed, version, server is Role.SERVER_A])
        drawn = generator.normal(0, task.mechanism.noise_units, dimension)
        return np.rint(drawn).astype(np.int64)

    theta = simulate(task, owners, seed=seed, noise=noise).theta
    weight, bias = tensors(theta, task.mechanism.parameters).values()
    outputs = x.astype(np.float64) @ weight.T + bias
    margin: NDArray[np.float64] = outputs[:, 1] - outputs[:, 0]
    return margin


if __name__ == "__main__":
    main()
