"""What ten bad owners of 1,000 do at three client clips; results/clip_and_attackers.json.

    python benchmarks/clip_and_attackers.py [--out FILE]

Each of 1,000 owners holds one record of scikit-learn's digits; the task is `precad task new`'s for
ε = 3 where every owner is drawn in every round, and samples its record with p = .2. Ten send minus
the cohort's mean update, as long as C allows (`precad simulate --attack flip`). C = 1 is what is
planned: all that such an owner can sample, times R. 2 and 10, which was the default before, are
warned of. Everything is simulated with the protocol's own samplers, noise and validation; what is
there isn't run again.
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
from precad.cli.options import Wishes
from precad.cli.task_planning import fractional_bits, planned
from precad.common.roster import excess_of_clip
from precad.common.task import Task
from precad.simulation import simulate
from precad.simulation.datasets import digits

RESULT = Path(__file__).parent / "results" / "clip_and_attackers.json"
OWNERS, ATTACKERS, SEED = 1000, 10, 1
CLIPS = (1.0, 2.0, 10.0)


def main() -> None:
    """Run what is missing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=RESULT)
    given = parser.parse_args()
    found: dict[str, Any] = {"runs": []}
    if given.out.is_file():
        found = json.loads(given.out.read_text(encoding="utf-8"))
    task = task_of_one_record_each()
    for clip in CLIPS:
        for attackers in (0, ATTACKERS):
            named = {"client_clip": clip, "attackers": attackers, "seed": SEED}
            if any(named.items() <= run.items() for run in found["runs"]):
                continue
            run = named | simulated(with_clip(task, clip), attackers)
            found["runs"].append(run)
            found |= {"owners": OWNERS, "planned_clip": task.privacy.client_clip}
            found |= {"hardware": hardware()}
            text = json.dumps(found, indent=1, ensure_ascii=False) + "\n"
            given.out.write_text(text, encoding="utf-8")
            print(run, flush=True)


def task_of_one_record_each() -> Task:
    """As `precad task new --records 1000x1 --epsilon 3 --client-rate 1 --record-rate .2` has it."""
    asked: dict[str, Any] = dict.fromkeys(Wishes.__dataclass_fields__)
    asked |= {"records": f"{OWNERS}x1", "epsilon": 3.0, "client_rate": 1.0}
    asked["record_rate"] = 0.2
    asked |= {"architecture": "logistic", "features": 64, "classes": 10, "hidden": 32}
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
