"""CPU time of one submission's projections by kernel; writes results/projections.json.

For each kernel that was built and runs here, on 40 rows and 1,000,000 words: the
product alone, and all of what a server does (key, keystream, product) in pieces as they
come. Beside it the keystream alone and one wrapping dot product of the norm check.
Everything in turn, medians.
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

from precad.common.identifiers import Secret  # noqa: E402
from precad.common.kernel import (  # noqa: E402
    BLOCK,
    MASK_BYTES,
    MASKS,
    Projection,
    Rows,
    built_library,
    kernel_in_use,
    kernels,
)
from precad.common.ring import Keystream, dot  # noqa: E402

RESULT = Path(__file__).parent / "results" / "projections.json"
WORDS, ROWS, REPEATS = 1_000_000, 40, 21
PIECE = 2**16
"""Words of a piece in which a server absorbs a share."""
STEP = 256
"""Blocks whose masks stand in the cache together, as ``Rows`` has them."""


def hardware() -> dict[str, Any]:
    """The processor, what it can do that matters here, and the cores at hand."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    found = {
        line.split(":")[0].strip(): line.split(":", 1)[1].strip()
        for line in lines
        if line
    }
    flags = set(found.get("flags", "").split())
    return {
        "processor": found.get("model name", platform.processor()),
        "can": sorted(flags & {"avx2", "avx512bw", "avx512_vnni", "aes", "vaes"}),
        "cores": len(os.sched_getaffinity(0)),
        "cores_used": 1,
    }


def cases() -> dict[str, Callable[[], object]]:
    """What is measured, by its name in the results."""
    key = Secret.random()
    stream = Keystream(key, "benchmark")
    x, y = stream.words(WORDS), stream.words(WORDS)
    blocks = -(-WORDS // BLOCK)
    padded = np.concatenate([x, np.zeros(blocks * BLOCK - WORDS, dtype=np.int64)])
    masks = stream.words(STEP * ROWS * MASKS).view("<u8").reshape(STEP, ROWS, MASKS)

    def product(projection: Projection) -> None:
        z = np.zeros((ROWS, 2), dtype=np.int64)
        for block in range(0, blocks, STEP):
            words = padded[block * BLOCK : (block + STEP) * BLOCK]
            projection(words, masks[: words.size // BLOCK], z)

    def in_all(projection: Projection) -> None:
        rows = Rows(key, WORDS, ROWS, projection)
        for start in range(0, WORDS, PIECE):
            rows.absorb(x[start : start + PIECE])
        rows.z()

    def keystream() -> None:
        out = memoryview(bytearray(STEP * ROWS * MASK_BYTES))
        left = blocks * ROWS * MASK_BYTES
        drawn = Keystream(key, "benchmark")
        while left:
            left -= len(drawn.read_into(out[: min(left, len(out))]))

    found: dict[str, Callable[[], object]] = {"keystream": keystream}
    for name, projection in kernels(built_library()).items():
        found[f"product {name}"] = lambda projection=projection: product(projection)  # type: ignore[misc]
        found[f"in_all {name}"] = lambda projection=projection: in_all(projection)  # type: ignore[misc]
    # One piece again and again: it comes from the cache, as in a pass over a share.
    left, right = x[:PIECE], y[:PIECE]
    found["dot"] = lambda: [dot(left, right) for _ in range(WORDS // PIECE)]
    found["dot by np.dot"] = lambda: [
        np.dot(left, right) for _ in range(WORDS // PIECE)
    ]
    return found


def main() -> None:
    """Measure, print and keep."""
    machine = hardware()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    measured = cases()
    times: dict[str, list[float]] = {name: [] for name in measured}
    for _ in range(REPEATS):
        for name, case in measured.items():
            start = time.process_time()
            case()
            times[name].append(1000 * (time.process_time() - start))
    medians = {name: round(statistics.median(each), 2) for name, each in times.items()}
    by_kernel = {
        name: {part: medians[f"{part} {name}"] for part in ("product", "in_all")}
        for name in kernels(built_library())
    }
    document = {
        "what": (
            f"CPU ms of {ROWS} projections of {WORDS} words, medians of {REPEATS} in"
            " turn"
        ),
        "hardware": machine,
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in ("numpy", "cryptography")},
        },
        "kernel_in_use": kernel_in_use(),
        "keystream_bytes": -(-WORDS // BLOCK) * ROWS * MASK_BYTES,
        "keystream_ms": medians["keystream"],
        "by_kernel_ms": by_kernel,
        "dots_of_pieces_ms": {
            "ring.dot": medians["dot"],
            "np.dot": medians["dot by np.dot"],
        },
    }
    print(json.dumps(document, indent=2))
    RESULT.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
