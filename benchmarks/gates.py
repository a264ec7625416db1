"""CPU time of a submission's gates by how many go together; writes results/gates.json.

A submission has 41 gates on 64 bits: 40 ranges and the norm. The dealer makes both servers' keys,
roots and all, and writes their bytes; a server reads its keys, evaluates them at public points and
packs the bits. Cases in turn on one core; least and median, because other processes may share the
machine. Beside them AES alone on as many blocks: no implementation of these trees can do without.
"""

import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

# Before NumPy starts its threads.
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"

import numpy as np  # noqa: E402

from precad.common.identifiers import Digest  # noqa: E402
from precad.common.keystream import Keystream  # noqa: E402
from precad.common.process_memory import keep_freed_buffers  # noqa: E402
from precad.common.secret import Secret  # noqa: E402
from precad.common.task import MAX_BOUND  # noqa: E402
from precad.norm_check.comparison_keys import (  # noqa: E402  # noqa: E402  # noqa: E402
    MOST_BITS,
    PRG_KEY_BYTES,
    TERMINATED,
    WORD,
    FixedKeyPrg,
    gate_bytes,
    keys_bytes,
    keys_from_bytes,
)
from precad.norm_check.norm_gates import (  # noqa: E402  # noqa: E402
    deal_gates,
    evaluate_gates,
    gate_context,
    pack,
    submission_bytes,
    verdicts,
)

RESULT = Path(__file__).parent / "results" / "gates.json"
GATES = 41
TURNS = {1: 400, 10: 120, 100: 40}
"""By submissions that go together."""
GOALS = {"deal": {1: 2.5, 10: 0.45, 100: 0.16}, "evaluate": {1: 1.1, 10: 0.18, 100: 0.06}}
"""Milliseconds a submission."""
LEVELS = MOST_BITS - TERMINATED
BLOCKS = {"deal": 4 * LEVELS + 2, "evaluate": 2 * LEVELS + 2}
"""A gate's: two children at both servers and their leaves; two points' ways to their leaves."""


def hardware() -> dict[str, Any]:
    """The processor, what it can do that matters here, and the cores at hand."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    found = {line.split(":")[0].strip(): line.split(":", 1)[1].strip() for line in lines if line}
    flags = set(found.get("flags", "").split())
    return {
        "processor": found.get("model name", platform.processor()),
        "can": sorted(flags & {"aes", "avx2", "avx512bw", "vaes"}),
        "cores": len(os.sched_getaffinity(0)),
        "cores_used": 1,
    }


def cases(submissions: int) -> dict[str, Callable[[], object]]:
    """What is measured, by its name in the results; checked once before."""
    stream = Keystream(Secret.random(), "benchmark")
    shape = submissions, GATES
    offsets, points = (stream.words(submissions * GATES).reshape(shape) for _ in range(2))
    ctx = Digest.of(b"benchmark")
    contexts = [gate_context(ctx, *[Secret.random()] * 3) for _ in range(submissions)]
    right = np.ones(submissions, dtype=bool)
    dealt = deal_gates(offsets, contexts)
    of_a, of_b = (keys.to_bytes() for keys in dealt)

    def evaluate(data: bytes = of_a, party: int = 0) -> bytes:
        keys = keys_from_bytes(data, party=party, gates=submissions * GATES)
        return pack(evaluate_gates(keys, points, MAX_BOUND), right)

    # Sums are uniform, so that nobody's 40 ranges hold; zero sums are in every range.
    assert not verdicts(evaluate(), evaluate(of_b, 1), GATES).any()
    points[:] = -offsets
    points[:, -1] -= 1
    assert verdicts(evaluate(), evaluate(of_b, 1), GATES).all()

    def permute(blocks: int) -> Callable[[], object]:
        x = np.zeros((submissions * GATES * blocks // LEVELS, 2), dtype=WORD)
        prg, out = FixedKeyPrg(bytes(PRG_KEY_BYTES)), np.empty_like(x)

        def levels() -> None:
            for _ in range(LEVELS):
                prg.stretch(x, out)

        return levels

    return {
        "deal": lambda: deal_gates(offsets, contexts),
        "encode": lambda: [keys.to_bytes() for keys in dealt],
        "evaluate": evaluate,
        **{f"aes of {name}": permute(blocks) for name, blocks in BLOCKS.items()},
    }


def measure(submissions: int) -> dict[str, Any]:
    """Milliseconds a submission."""
    measured = cases(submissions)
    times: dict[str, list[float]] = {name: [] for name in measured}
    for _ in range(TURNS[submissions]):
        for name, case in measured.items():
            start = time.process_time()
            case()
            times[name].append(1000 * (time.process_time() - start) / submissions)
    return {
        "submissions": submissions,
        "turns": TURNS[submissions],
        "least_ms": {name: round(min(each), 4) for name, each in times.items()},
        "median_ms": {name: round(statistics.median(each), 4) for name, each in times.items()},
        "goal_ms": {name: goal[submissions] for name, goal in GOALS.items()},
        "reaches_the_goals": all(min(times[name]) <= GOALS[name][submissions] for name in GOALS),
    }


def main() -> None:
    """Measure, print and keep."""
    # As in every process of precad.
    keep_freed_buffers()
    machine = hardware()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    document = {
        "what": f"CPU ms a submission of {GATES} gates on {MOST_BITS} bits, by submissions that "
        "go together: the dealer's keys for both servers, one server's evaluation",
        "hardware": machine,
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in ("numpy", "cryptography")},
        },
        "bytes": {
            "key of a gate": gate_bytes(),
            "keys of a submission to a server": keys_bytes(GATES),
            "bits of a submission between the servers": submission_bytes(GATES),
        },
        "measured": [measure(submissions) for submissions in TURNS],
    }
    print(json.dumps(document, indent=2))
    RESULT.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
