"""What a record's copies cost in training, and how long certifying 360 digits takes.

Writes results/objectives.json beside itself: the processor's time of padded updates
with K noisy copies beside none, interleaved, medians; and n = 10,000 votes of 360
digits in two processes.
"""

import json
import os
import platform
import time
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

# Before torch starts its threads.
os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
import torch
from research.robustness.models import make
from torch.nn import functional

from precad.client.gradients.local_update import local_update
from precad.client.gradients.noisy_votes import VoteSampling, sample_votes
from precad.client.gradients.torch_models import model_section
from precad.common.task import Task, with_objective
from precad.simulation.datasets import load

RESULT = Path(__file__).parent / "results" / "objectives.json"
RECORDS, REPEATS, PROCESSES = 64, 5, 2
MODELS = {"logistic": 64, "mlp": 64, "cnn": 784}


def _task(name: str, features: int) -> Task:
    section = model_section(
        make(name, features, 10), architecture=name, initial="uniform"
    )
    privacy = {
        "record_clip": 1.0,
        "client_clip": 20.0,
        "noise_multiplier": 2.0,
        "record_rate": 0.2,
        "client_rate": 1.0,
    }
    return Task.parse(
        {
            "name": "objectives",
            "model": section,
            "privacy": privacy,
            "training": {"learning_rate": 1.0, "rounds": 10},
            "enrolment": {"clients": 10, "max_expected_records": 1000.0},
        }
    )


def copies_cost(name: str) -> dict[str, Any]:
    """Processor seconds of an update of so many records, with and without copies."""
    features = MODELS[name]
    shape = (1, 28, 28) if name == "cnn" else (features,)
    rng = np.random.default_rng(0)
    x = rng.random((RECORDS, *shape), dtype=np.float32)
    y = rng.integers(10, size=RECORDS)
    plain = _task(name, features)
    tasks = {"0": plain, "2": with_objective(plain, "dp-gaussian")}
    module, theta = make(name, features, 10), np.zeros(plain.dimension)
    took: dict[str, list[float]] = {copies: [] for copies in tasks}
    for _ in range(REPEATS + 1):
        for copies, task in tasks.items():
            began = time.process_time()
            local_update(
                module, functional.cross_entropy, (x, y), np.arange(RECORDS), theta, task,
                most=RECORDS,
            )  # fmt: skip
            took[copies].append(time.process_time() - began)
    middle = {copies: median(times[1:]) for copies, times in took.items()}
    return {
        "model": name,
        "cpu_seconds": middle,
        "ratio": round(middle["2"] / middle["0"], 2),
    }


def _certify(part: int) -> tuple[int, float]:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    data = load("digits")
    x = np.concatenate([data.test_x, data.train_x[:1]])[part::PROCESSES]
    began = time.process_time()
    votes = sample_votes(
        make("mlp", 64, 10), torch.from_numpy(x), VoteSampling(sigma=0.25)
    )
    return int(votes.votes.sum()), time.process_time() - began


def certify_seconds() -> dict[str, Any]:
    """Wall clock of 360 digits at n0 = 100 and n = 10,000, two processes with their start."""
    began = time.perf_counter()
    with ProcessPoolExecutor(PROCESSES, mp_context=get_context("spawn")) as processes:
        found = list(processes.map(_certify, range(PROCESSES)))
    return {
        "inputs": sum(votes for votes, _ in found) // 10_000,
        "copies": 10_000,
        "processes": PROCESSES,
        "cpu_seconds": [round(seconds, 2) for _, seconds in found],
        "seconds_with_start": round(time.perf_counter() - began, 2),
    }


def main() -> None:
    """Measure, print and keep."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    names = [
        line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")
    ]
    result = {
        "hardware": {
            "processor": names[0] if names else platform.processor(),
            "cores": len(os.sched_getaffinity(0)),
            "load": round(os.getloadavg()[0], 1),
        },
        "versions": {name: version(name) for name in ("torch", "numpy")},
        "copies": [copies_cost(name) for name in MODELS],
        "certify": certify_seconds(),
    }
    RESULT.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
