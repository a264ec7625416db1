"""What ten bad owners of 1,000 do, by p and C; results/clip_and_attackers.json.

    python benchmarks/clip_and_attackers.py [--out FILE]

Each of 1,000 owners holds one record of scikit-learn's digits; the task is what
`precad task new --records 1000x1 --epsilon 3` writes. Ten send minus the cohort's mean
update, as long as C allows (`precad simulate --attack flip`). p = 1 and C = 1 are
what is planned: who is honest then sends as often as who is bad, and C is all that an
owner can sample, times R. The others are warned of. Everything is simulated with the
protocol's own samplers, noise and validation; what is there isn't run again.
"""

import argparse
import json
import os
from pathlib import Path
from typing import Any

# Before torch starts its threads.
os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np

from benchmarks.rounds.hardware import hardware
from precad.cli.command_options import Wishes
from precad.cli.task_planning import fractional_bits, planned
from precad.common.roster import excess_of_clip
from precad.common.task import Task
from precad.simulation import simulate
from precad.simulation.datasets import digits

RESULT = Path(__file__).parent / "results" / "clip_and_attackers.json"
OWNERS, ATTACKERS, SEED = 1000, 10, 1
SETTINGS = ((1.0, 1.0), (0.2, 1.0), (0.2, 2.0), (0.2, 10.0), (0.05, 1.0))
"""p and C."""


def main() -> None:
    """Run what is missing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=RESULT)
    given = parser.parse_args()
    found: dict[str, Any] = {"runs": []}
    if given.out.is_file():
        found = json.loads(given.out.read_text(encoding="utf-8"))
    planned_rate = task_of_one_record_each(None).privacy.record_rate
    for rate, clip in SETTINGS:
        task = with_clip(task_of_one_record_each(rate), clip)
        for attackers in (0, ATTACKERS):
            named = {
                "record_rate": rate,
                "client_clip": clip,
                "attackers": attackers,
                "seed": SEED,
            }
            if any(named.items() <= run.items() for run in found["runs"]):
                continue
            run = named | simulated(task, attackers)
            found["runs"].append(run)
            found |= {"owners": OWNERS, "planned_rate": planned_rate}
            found |= {"hardware": hardware()}
            text = json.dumps(found, indent=1, ensure_ascii=False) + "\n"
            given.out.write_text(text, encoding="utf-8")
            print(run, flush=True)


def task_of_one_record_each(rate: float | None) -> Task:
    """As `precad task new --records 1000x1 --epsilon 3` has it, at this p."""
    asked: dict[str, Any] = dict.fromkeys(Wishes.__dataclass_fields__)
    asked |= {"records": f"{OWNERS}x1", "epsilon": 3.0}
    asked["record_rate"] = rate
    asked |= {"architecture": "logistic", "features": "64", "classes": 10, "hidden": 32}
    return planned(Wishes(**asked | {"validation": "crypten"}), "digits")[0]


def with_clip(task: Task, clip: float) -> Task:
    """The same task with this C."""
    values = task.model_dump(mode="json")
    values["privacy"]["client_clip"] = clip
    return Task.parse(values | {"fractional_bits": fractional_bits(clip)})


def simulated(task: Task, attackers: int) -> dict[str, Any]:
    """Accuracy after the training, what was rejected, and the warning."""
    data = digits()
    chosen = np.random.default_rng(SEED).permutation(len(data.train_y))[:OWNERS]
    owners = [(data.train_x[[n]], data.train_y[[n]]) for n in chosen]
    trained = simulate(
        task,
        owners,
        seed=SEED,
        test=(data.test_x, data.test_y),
        attack="flip" if attackers else None,
        attackers=attackers or None,
    )
    return {
        "accuracy": trained.accuracy,
        "rejected": sum(sum(each.rejected.values()) for each in trained.rounds),
        "warned": excess_of_clip(task, 1) is not None,
    }


if __name__ == "__main__":
    main()
