"""Rounds of many clients and of large models run through; writes results/large.json.

    PYTHONPATH=. python benchmarks/large.py [--out FILE] [--only D N]

One measured round of each size after one that isn't counted, without peers and on the
local link, with the growth from one size to the next. Each size is kept as soon as it
is measured; a run that was broken off goes on where it was. With ``--only`` one size is
measured, anew if it is there, and keeps its own hardware where that isn't the others'.
"""

import argparse
import json
import math
import os
from pathlib import Path
from typing import Any

from benchmarks.rounds.case import Case, measure
from benchmarks.rounds.hardware import hardware
from benchmarks.rounds.ours.system import SERVERS

RESULTS = Path(__file__).parent / "results" / "large.json"
SIZES = (
    (100_000, 10),
    (100_000, 100),
    (1_000_000, 10),
    (10_000_000, 10),
    (1_000_000, 300),
    (100_000, 1000),
)
"""d and n."""
STEPS = (
    ("n", (100_000, 10), (100_000, 100)),
    ("n", (100_000, 100), (100_000, 1000)),
    ("n", (1_000_000, 10), (1_000_000, 300)),
    ("d", (100_000, 10), (1_000_000, 10)),
    ("d", (1_000_000, 10), (10_000_000, 10)),
)


def measured(dimension: int, clients: int) -> dict[str, Any]:
    """One size: what a round and its validation took, and each process's peak memory."""
    load = os.getloadavg()[0]
    case = Case(dimension, clients, repeats=1, slow_repeats=0, peers=False)
    ours = measure(case, lambda line: print(line, flush=True))["local"]["precad"]
    cpu = {
        phase: round(sum(names[server] for server in SERVERS), 3)
        for phase, names in ours["cpu_s"].items()
    }
    return {
        "dimension": dimension,
        "clients": clients,
        # Before the measurement: what else this machine does shows in its times.
        "load_average": round(load, 1),
        "wall_s": {
            name: ours["wall_s"][f"{name}_s"]
            for name in ("round", "validate", "release")
        },
        "servers_cpu_s": cpu,
        "peak_mib": ours["peak_mib"],
        "payload_bytes": ours["payload_bytes"],
    }


def growth(sizes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Exponents of validation from one size to another, in wall time and the servers' CPU."""
    of = {_size(each): each for each in sizes}
    found = []
    for name, small, large in STEPS:
        if small in of and large in of and _alike(of[small], of[large]):
            ratio = math.log(math.prod(large) / math.prod(small))
            wall, cpu = (
                math.log(of[large][key]["validate"] / of[small][key]["validate"])
                / ratio
                for key in ("wall_s", "servers_cpu_s")
            )
            found.append(
                {
                    "by": name,
                    "from": small,
                    "to": large,
                    "wall": round(wall, 2),
                    "cpu": round(cpu, 2),
                }
            )
    return found


def _alike(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether both were measured on one machine."""
    return one.get("hardware") == other.get("hardware")


def _size(entry: dict[str, Any]) -> tuple[int, int]:
    return entry["dimension"], entry["clients"]


def main() -> None:
    """Measure what isn't there yet."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--only", type=int, nargs=2, metavar=("D", "N"))
    options = parser.parse_args()
    out: Path = options.out
    result: dict[str, Any] = {
        "what": "one round of precad of each size; validation apart from uploads",
        "hardware": hardware(),
        "sizes": [],
    }
    if out.exists():
        kept = json.loads(out.read_text(encoding="utf-8"))
        if options.only or kept["hardware"] == result["hardware"]:
            result = kept
    if options.only:
        one = measured(*options.only)
        if result["hardware"] != hardware():
            one["hardware"] = hardware()
        sizes = [each for each in result["sizes"] if _size(each) != _size(one)]
        result["sizes"] = [*sizes, one]
        result["exponents"] = growth(result["sizes"])
        out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
        return
    done = {_size(each) for each in result["sizes"]}
    for size in SIZES:
        if size not in done:
            result["sizes"].append(measured(*size))
            result["exponents"] = growth(result["sizes"])
            out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
            print(json.dumps(result["sizes"][-1]["wall_s"]), flush=True)


if __name__ == "__main__":
    main()
