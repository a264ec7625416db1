"""A hundred queries of a hundred owners, simulated: `python -m benchmarks.questions`.

    python -m benchmarks.questions --output benchmarks/results/questions-speed.json

Owners have 300 made-up records each. What is timed is one core from tables to answers
with their intervals; making up the tables isn't. Written down with the hardware.
"""

import argparse
import json
import time
from itertools import cycle, islice, pairwise
from pathlib import Path
from typing import Any

from tests.rig.questions import QUERIES, asking, ward

from benchmarks.rounds.hardware import hardware
from precad.client.answers import answers_of
from precad.simulation import simulate


def main() -> None:
    """Simulate and answer; show how long each took."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--queries", type=int, default=100)
    parser.add_argument("--owners", type=int, default=100)
    parser.add_argument("--records", type=int, default=300, help="of each owner")
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    queries = [
        {**query, "name": f"{query['name']} {number}"}
        for number, query in enumerate(islice(cycle(QUERIES), given.queries))
    ]
    enrolment = {"clients": given.owners, "max_expected_records": given.records}
    tables = {f"ward-{at:03d}": ward(given.records, at) for at in range(given.owners)}
    times = [time.perf_counter()]
    task = asking(queries, enrolment=enrolment)
    times.append(time.perf_counter())
    released = simulate(task, tables, seed=1)
    times.append(time.perf_counter())
    answers = answers_of(task, released.theta, given.owners * given.records)
    times.append(time.perf_counter())
    seconds = [after - before for before, after in pairwise(times)]
    document: dict[str, Any] = {
        "what": "questions.py",
        "hardware": hardware(),
        "queries": given.queries,
        "owners": given.owners,
        "records": given.records,
        "dimension": task.dimension,
        "answers": len(answers),
        "task_s": round(seconds[0], 2),
        "simulate_s": round(seconds[1], 2),
        "answers_s": round(seconds[2], 2),
        "all_s": round(sum(seconds), 2),
    }
    print(json.dumps(document, indent=1))
    if given.output is not None:
        given.output.write_text(json.dumps(document, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
