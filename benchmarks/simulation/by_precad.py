"""One simulation by precad, for `../simulate.py`: PATH, CASE, CLIENTS, ROUNDS; says its time."""

import json
import sys
import time

from same_task import LEARNING_RATE, RATE, RECORDS, cnn, owners_of, records

import precad
from precad.client.gradients.torch_models import logistic, model_section
from precad.common.task import Task


def main() -> None:
    """Play it."""
    path, case, clients, rounds = (
        sys.argv[1],
        sys.argv[2],
        int(sys.argv[3]),
        int(sys.argv[4]),
    )
    x, y = records(case)
    module = cnn() if case == "cnn" else logistic(64, 10)
    section = model_section(
        module, architecture="custom", initial="uniform" if case == "cnn" else "zeros"
    )
    task = Task.parse(
        {
            "name": f"benchmark-{case}",
            "model": section,
            "privacy": {
                "record_clip": 1.0,
                "client_clip": 10.0,
                "noise_multiplier": 2.0,
                "record_rate": RATE,
                "client_rate": 1.0,
            },
            "training": {"learning_rate": LEARNING_RATE, "rounds": rounds},
            "enrolment": {
                "clients": clients,
                "max_expected_records": 2 * RATE * RECORDS,
            },
        }
    )
    started = time.perf_counter()
    owners = [(x[mine], y[mine]) for mine in owners_of(case, clients)]
    found = precad.simulate(task, owners, module, seed=0, path=path, test=(x, y))
    seconds = time.perf_counter() - started
    assert sum(each.accepted for each in found.rounds) == clients * rounds
    said = {
        "training_s": seconds,
        "version": precad.__version__,
        "accuracy": found.accuracy,
    }
    print(json.dumps(said))


if __name__ == "__main__":
    main()
