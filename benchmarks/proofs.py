"""What a proof of the norm costs: the owner's work, a server's, and bytes, by the model's length.

    python -m benchmarks.proofs

An owner shares an update; each server answers once, from a held body. CPU seconds of
this process, the least of a few; memory is what the work needed beyond the update.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import numpy as np

from benchmarks.rounds.hardware import hardware
from precad.aggregator.validate.check_by_proof import ByProof, words_bytes
from precad.common.identifiers import ClientId, Digest, Role, Secret
from precad.common.kernel import kernel_in_use
from precad.common.proof_shape import ProofShape
from precad.common.ring import WORD_BYTES
from precad.common.submission import Signature, SubmissionContext
from precad.norm_check.norm_proof import Query
from precad.norm_check.proof_submission import PREFIX_BYTES, ForProof
from precad.norm_check.share_update import share_with_proof

RESULT = Path(__file__).parent / "results" / "proofs.json"
DIMENSIONS = (650, 10**4, 10**5, 10**6, 10**7)
BOUND = 2**24
Found = TypeVar("Found")


class Pen:
    """Signs nothing: what is measured is the proof."""

    def sign(self, signed: bytes) -> Signature:
        """Bytes in a signature's place."""
        return Signature(Digest.of(signed).value, (b"certificate",))


def least(work: Callable[[], Found], times: int) -> tuple[Found, float]:
    """What the work gives, and the least CPU seconds of a few."""
    seconds = []
    for _ in range(times):
        began = time.process_time()
        found = work()
        seconds.append(time.process_time() - began)
    return found, min(seconds)


def peak_mib() -> float:
    """Of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(dimension: int, times: int) -> dict[str, Any]:
    """One length, in a process of its own."""
    shape = ProofShape(dimension, BOUND)
    # The work is the same whatever is in it.
    x = np.full(dimension, 3, dtype=np.int64)
    name, model = ClientId("owner"), Digest.of(b"model")
    context = SubmissionContext(
        task=Digest.of(b"task"), version=0, attempt=0, client=name, model=model
    )
    stated = ForProof((model, model), Role.SERVER_A)
    before = peak_mib()
    share_with_proof(x, shape, context, stated, Pen())
    needed = peak_mib() - before
    pair, prove_s = least(
        lambda: share_with_proof(x, shape, context, stated, Pen()), times
    )
    query = Query.drawn(shape, Secret.random(), pair[0].header.whole_digest)
    answers = {}
    for half in pair:
        task = SimpleNamespace(proof=shape, dimension=dimension, name="benchmark")
        server = cast(
            "Any",
            SimpleNamespace(task=task, role=half.role, bound_of=lambda _: shape.bound),
        )
        check = ByProof(server, 0, (name,))
        _, answers[half.role.value] = least(lambda: check._answer(half, query), times)  # noqa: SLF001, B023
    more = PREFIX_BYTES + WORD_BYTES * (shape.body_words - dimension)
    return {
        "dimension": dimension,
        "points": shape.points,
        "columns": shape.columns,
        "more_to_upload_bytes": more,
        "between_servers_bytes": 2 * words_bytes(shape),
        "prove_cpu_s": prove_s,
        "answer_cpu_s": {
            "seed_holder": answers["server-a"],
            "body_holder": answers["server-b"],
        },
        "memory_beyond_the_update_mib": round(needed, 1),
    }


def main() -> None:
    """Each length in a process of its own, and the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--dimension", type=int, help="measure this one alone, and print it"
    )
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--output", type=Path, default=RESULT)
    given = parser.parse_args()
    if given.dimension is not None:
        print(json.dumps(measure(given.dimension, given.times)))
        return
    found = []
    for dimension in DIMENSIONS:
        command = [
            sys.executable,
            "-m",
            "benchmarks.proofs",
            "--dimension",
            str(dimension),
        ]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        found.append(json.loads(done.stdout))
        print(found[-1], flush=True)
    document = {
        "what": (
            "proofs of norms: CPU seconds of the owner and of a server, bytes, memory"
        ),
        "hardware": hardware(),
        "kernel": kernel_in_use(),
        "measured": found,
    }
    given.output.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
