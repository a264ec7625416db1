"""Throughput of models trained at once by torch.func beside the same ones, one after another.

    python benchmarks/ensembles.py

Both train UserDP-FedAvg on scikit-learn's zeros and ones, in this process, on one
thread, in turn; the seeds are those of the models, 0 and up. Of the papers' CNN a step
of 20 models is taken both ways, each on some random images of its own: a convolution by
weights of many models at once is one of many groups, which torch computes slowly on a
processor.
"""

import argparse
import json
import time
from pathlib import Path
from statistics import median

import torch
from research.algorithms.learner import Learner
from research.algorithms.user_level import UserLevel, Users, train
from research.datasets.partition import iid
from research.models import MODELS
from research.papers.xie_levels import two_labels
from research.study.environment import environment

from precad.simulation.datasets import DataSet, load

SETTINGS = UserLevel(
    user_rate=0.1,
    rounds=3,
    noise_multiplier=1.8,
    clip=0.7,
    clipping="flat",
    local_steps=10,
    local_rate=0.02,
)
USERS = 200
REPEATS = 3
CONVOLVES = "opacus-cnn"
STEPPING = 20
STEPS = 5
IMAGES = (1, 16, 64, 128)
SIDE = 28
RESULT = Path(__file__).parent / "results" / "ensembles.json"


def measure(model: str, models: int, device: str) -> dict[str, float | str | int]:
    """Models a second, both ways: medians of alternating repeats."""
    data = two_labels(load("digits"))
    learner = Learner(MODELS[model](data), device)
    parts = iid(len(data.train_y), USERS, seed=0)
    users = Users.of(
        [(data.train_x[mine], data.train_y[mine]) for mine in parts], device
    )
    start = torch.zeros(learner.dimension, device=device)
    seeds = list(range(models))
    together, alone, apart = [], [], 0.0
    train(learner, users, start, SETTINGS, seeds[:2])
    for _ in range(REPEATS):
        began = time.perf_counter()
        stacked = train(learner, users, start, SETTINGS, seeds)
        middle = time.perf_counter()
        single = torch.cat(
            [train(learner, users, start, SETTINGS, [seed]) for seed in seeds]
        )
        ended = time.perf_counter()
        together.append(models / (middle - began))
        alone.append(models / (ended - middle))
        apart = max(apart, float((stacked - single).abs().max()))
    return {
        "model": model,
        "models": models,
        "stacked_models_per_s": round(median(together), 2),
        "one_by_one_models_per_s": round(median(alone), 2),
        "ratio": round(median(t / a for t, a in zip(together, alone, strict=True)), 2),
        "largest_difference_of_a_weight": apart,
    }


def measure_convolutions(images: int, device: str) -> dict[str, float | str | int]:
    """Gradients of models a second, both ways: medians of alternating repeats."""
    random = torch.Generator().manual_seed(0)
    x = torch.rand(STEPPING, images, 1, SIDE, SIDE, generator=random).to(device)
    y = torch.randint(0, 2, (STEPPING, images), generator=random).to(device)
    weights = torch.full(y.shape, 1 / images, device=device)
    own = (x[0].cpu().numpy(), y[0].cpu().numpy())
    learner = Learner(
        MODELS[CONVOLVES](
            DataSet(
                name="random",
                train_x=own[0],
                train_y=own[1],
                test_x=own[0],
                test_y=own[1],
                classes=2,
            )
        ),
        device,
    )
    thetas = (torch.randn(STEPPING, learner.dimension, generator=random) * 0.05).to(
        device
    )
    together, alone = [], []
    learner.stacked(thetas, x, y, weights)
    for _ in range(REPEATS * STEPS):
        began = time.perf_counter()
        learner.stacked(thetas, x, y, weights).sum().item()
        middle = time.perf_counter()
        torch.stack(
            [learner.gradient(*one) for one in zip(thetas, x, y, weights, strict=True)]
        ).sum().item()
        ended = time.perf_counter()
        together.append(STEPPING / (middle - began))
        alone.append(STEPPING / (ended - middle))
    return {
        "model": CONVOLVES,
        "models": STEPPING,
        "images_a_model": images,
        "stacked_gradients_per_s": round(median(together), 2),
        "one_by_one_gradients_per_s": round(median(alone), 2),
        "ratio": round(median(t / a for t, a in zip(together, alone, strict=True)), 2),
    }


def main() -> None:
    """Measure all models, and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--out", type=Path, default=RESULT, help="JSON file")
    parser.add_argument("--device", default="cpu", help="where torch computes")
    parser.add_argument("--models", type=int, default=40, help="trained at once")
    given = parser.parse_args()
    torch.set_num_threads(1)
    found = [
        measure(model, given.models, given.device) for model in ("logistic", "mlp")
    ]
    found += [measure_convolutions(images, given.device) for images in IMAGES]
    document = {
        "what": (
            "UserDP-FedAvg's models, stacked by torch.func beside one after another"
        ),
        "environment": environment(given.device),
        "repeats": REPEATS,
        "found": found,
    }
    given.out.write_text(json.dumps(document, indent=1) + "\n", "utf-8")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
