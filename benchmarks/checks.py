"""Whole rounds under both checks of norms, in turn; writes results/checks.json.

For n = 1, 10, 100 clients and d = 10^4, 10^6 coordinates (or as told): wall time of a round, CPU of
each of the three processes, payload bytes on each link, and the exchanges between the servers to
decide on a batch. Real processes over TLS on this machine, deployments of both checks side by side,
a round of each in turn. Least and median: a busy machine shows in their distance.

Each size is kept as soon as it is measured, beside the result, as checks.part: a run that is broken
off goes on there.
"""

import argparse
import json
import statistics
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from precad.cli.bench.hardware import hardware
from precad.cli.bench.lines import Straight
from precad.cli.bench.ours.system import PHASES, SERVERS, Precad, set_up
from precad.cli.bench.sample import Sample
from precad.common.deal.program import program

RESULT = Path(__file__).parent / "results" / "checks.json"
CHECKS = ("crypten", "fss")
CLIENTS, DIMENSIONS = (1, 10, 100), (10**4, 10**6)
WARM_UPS, ROUNDS = 1, 5
PROJECTIONS = 40
Measure = Callable[[int, int, int], dict[str, Any]]
"""Of clients, dimension and rounds."""


def exchanges(check: str, clients: int) -> int:
    """Between the servers, to decide on a batch: one for each AND, and the opening; or one."""
    if check == "fss":
        return 1
    return len(program(clients, clients * (2 * PROJECTIONS + 1))) + 1


def summary(samples: list[Sample], system: Precad, check: str, clients: int) -> dict[str, Any]:
    """Seconds of a round, and what went over each link in one."""
    walls = [sample.wall_s["round_s"] for sample in samples]
    cpu = {
        # Of the whole round alone: a sample has one more whose validation is apart.
        name: [sum(sample.cpu_s[phase][name] for phase in PHASES) for sample in samples]
        for name in SERVERS
    }
    return {
        "round_s": {"least": min(walls), "median": statistics.median(walls)},
        "cpu_s": {
            name: {"least": min(each), "median": statistics.median(each)}
            for name, each in cpu.items()
        },
        "exchanges_to_decide": exchanges(check, clients),
        **system.facts(),
    }


def measure(clients: int, dimension: int, rounds: int) -> dict[str, Any]:
    """Both checks in turn."""
    total = WARM_UPS + rounds
    with tempfile.TemporaryDirectory(prefix="precad-checks-") as folder, ExitStack() as stack:
        systems = {
            check: stack.enter_context(
                set_up(
                    dimension, clients, total, Path(folder) / check, Straight(), validation=check
                )
            )
            for check in CHECKS
        }
        samples: dict[str, list[Sample]] = {check: [] for check in CHECKS}
        for turn in range(total):
            for check, system in systems.items():
                sample = system.play()
                if turn >= WARM_UPS:
                    samples[check].append(sample)
        found = {
            check: summary(samples[check], system, check, clients)
            for check, system in systems.items()
        }
    return {"clients": clients, "dimension": dimension, "rounds": rounds, **found}


def measure_all(sizes: list[tuple[int, int]], rounds: int, output: Path, measure: Measure) -> None:
    """Each size that the part doesn't have; with the last one the part becomes the result."""
    part = output.with_suffix(".part")
    document: dict[str, Any] = {
        "what": "a round under each check of norms: wall and CPU seconds, payload bytes",
        "hardware": hardware(),
        "measured": [],
    }
    if part.exists():
        document["measured"] = json.loads(part.read_text(encoding="utf-8"))["measured"]
    for clients, dimension in sizes:
        asked = {"clients": clients, "dimension": dimension, "rounds": rounds}
        if not any(asked.items() <= found.items() for found in document["measured"]):
            found = measure(clients, dimension, rounds)
            document["measured"].append(found)
            part.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
            print(json.dumps(found), flush=True)
    part.replace(output)


def main() -> None:
    """Measure what is asked for, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, nargs="+", default=CLIENTS, help="n")
    parser.add_argument("--dimensions", type=int, nargs="+", default=DIMENSIONS, help="d")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="of each check, after a first")
    parser.add_argument("--output", type=Path, default=RESULT)
    given = parser.parse_args()
    sizes = [(n, d) for d in given.dimensions for n in given.clients]
    measure_all(sizes, given.rounds, given.output, measure)


if __name__ == "__main__":
    main()
