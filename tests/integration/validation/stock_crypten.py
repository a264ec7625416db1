"""PRECAD's check as stock CrypTen computes it; run as a script in its own processes.

Two CrypTen parties with CrypTen's own communicator and provider, 16 fractional bits. Prints one
JSON object: for each vector whether x·x − C² ≤ 0.
"""

import json
import sys

from precad.common.aggregator.mpc.crypten_import import crypten

BOUND = 30.0


@crypten.mpc.run_multiprocess(world_size=2)  # type: ignore[untyped-decorator]
def check(vectors: dict[str, list[float]]) -> dict[str, bool]:
    import torch  # noqa: PLC0415

    accepted = {}
    for name, vector in vectors.items():
        x = crypten.cryptensor(torch.tensor(vector, dtype=torch.float64), src=0)
        excess = x.square().sum() - BOUND**2
        accepted[name] = bool((excess <= 0).get_plain_text().item() == 1)
    return accepted


if __name__ == "__main__":
    results = check(json.loads(sys.argv[1]))
    assert results[0] == results[1]
    print(json.dumps(results[0]))  # noqa: T201
