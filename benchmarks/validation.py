"""Time of one client's norm validation, by step and in all; writes results/validation.json.

Both servers run in two threads of this process over a link in memory, so the whole is with no
network and no encryption of the link, and the two share the interpreter's lock.
"""

import json
import os
import platform
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tests.rig.spent import MemorySpentTriples

from precad.common.aggregator.round.states import Shared
from precad.common.aggregator.validate import deal_request, validate
from precad.common.aggregator.validate.norm import excess_share
from precad.common.aggregator.validate.rows import project
from precad.common.deal.dealer import DealerRole
from precad.common.deal.randomness import DealtRandomness
from precad.common.identifiers import ClientId, Digest, Role
from precad.common.keystream import Keystream
from precad.common.link import PeerLink, memory_pair
from precad.common.secret import Secret
from precad.common.task import Task

RESULTS = Path(__file__).parent / "results" / "validation.json"
CLIENTS = {10_000: 50, 1_000_000: 8}
REPEATS = 5


def task_of(dimension: int) -> Task:
    """A task with k = 40 rows and β near 2^21."""
    return Task.parse(
        {
            "name": "benchmark",
            "model": {"parameters": [{"name": "w", "shape": [dimension]}]},
            "privacy": {
                "record_clip": 1.0,
                "client_clip": 30.0,
                "noise_multiplier": 2.0,
                "record_rate": 0.2,
                "client_rate": 1.0,
            },
            "training": {"learning_rate": 1.0, "rounds": 1},
            "enrolment": {"clients": 100, "max_expected_records": 1000.0},
            "fractional_bits": 16,
        }
    )


def best_ms(work: Callable[[], object]) -> float:
    """Least of a few timings, in milliseconds."""
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return round(1000 * min(times), 3)


def steps(task: Task) -> dict[str, float]:
    """One server's local work for one client, and the dealer's, each on one core."""
    d = task.dimension
    words = Keystream(Secret.random(), "benchmark").words(d)
    request = deal_request(task, 0, 0, 1, bytes(64))
    keys = {role: Secret.random() for role in (Role.SERVER_A, Role.SERVER_B)}
    key = keys[Role.SERVER_A]
    nothing = np.empty(0, dtype=np.int64)

    def triple() -> object:
        return DealtRandomness(Role.SERVER_A, key, request, nothing).inner_product_triple(0)

    def corrections() -> object:
        # A dealer deals a batch once; with the same keys the words are the same.
        return DealerRole(task.digest, task.dimension, keys).corrections(Role.SERVER_B, request)

    secret, digest = Secret.random(), Digest.of(b"benchmark")
    return {
        "projections_ms": best_ms(
            lambda: project(
                secret,
                words,
                task.projections,
                task=digest,
                attempt=0,
                client=ClientId("c"),
                commitment_a=bytes(32),
                commitment_b=bytes(32),
            )
        ),
        "triple_expansion_ms": best_ms(triple),
        "norm_share_ms": best_ms(lambda: excess_share(Role.SERVER_A, words, words, 1, task.bound)),
        "dealer_corrections_ms": best_ms(corrections),
    }


def whole(task: Task, clients: int) -> dict[str, float]:
    """Both servers' validation of one batch of honest updates, per client."""
    dealer = DealerRole(task.digest, task.dimension)
    request = deal_request(task, 0, 0, clients, bytes(64))
    corrections = {r: dealer.corrections(r, request) for r in (Role.SERVER_A, Role.SERVER_B)}
    stream = Keystream(Secret.random(), "benchmark")
    shares = [stream.words(task.dimension) for _ in range(clients)]
    ends = dict(zip(corrections, memory_pair(), strict=True))

    def play(role: Role) -> int:
        link = PeerLink(ends[role], task.digest, max_message_bytes=1 << 30, timeout_s=120)
        verdicts = validate(
            [
                Shared(
                    ClientId(f"c-{i}"),
                    bytes(32),
                    bytes(32),
                    share if role is Role.SERVER_A else -share,
                )
                for i, share in enumerate(shares)
            ],
            task=task,
            attempt=0,
            role=role,
            link=link,
            row_secret=Secret(bytes(32)),
            randomness=DealtRandomness(role, dealer.key_for(role), request, corrections[role]),
            spent=MemorySpentTriples(),
        )
        assert verdicts == (None,) * clients
        return link.bytes_sent

    start = time.perf_counter()
    with ThreadPoolExecutor(max_workers=2) as threads:
        sent = list(threads.map(play, corrections))
    elapsed = time.perf_counter() - start
    return {
        "clients_in_batch": clients,
        "both_servers_ms_per_client": round(1000 * elapsed / clients, 3),
        "bytes_between_servers_per_client": sum(sent) // clients,
        "correction_bytes_per_client": 8 * request.correction_words // clients,
    }


def hardware() -> dict[str, Any]:
    """What the figures were taken on."""
    model = platform.processor()
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            model = line.split(":", 1)[1].strip()
            break
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "torch": torch.__version__,
    }


def main() -> None:
    """Measure, print and write."""
    torch.set_num_threads(1)
    results: dict[str, Any] = {"hardware": hardware(), "rows": 40, "by_dimension": {}}
    for dimension, clients in CLIENTS.items():
        task = task_of(dimension)
        whole(task, clients)  # first use loads code
        results["by_dimension"][str(dimension)] = {**steps(task), **whole(task, clients)}
    text = json.dumps(results, indent=2)
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(text + "\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
