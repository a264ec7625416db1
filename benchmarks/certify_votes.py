"""How long it takes to certify 10,000 points by the votes of 1,000 models, on one core.

Writes results/certify_votes.json beside itself: votes counted from labels, confidence
bounds, and certified radii against additions and against deletions, cold, for each
guarantee. Beside it, one pair by dp-accounting's own mixture of Gaussians, and how many
pairs the search needed.
"""

import json
import os
import platform
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

# Before NumPy starts its threads.
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"

import numpy as np  # noqa: E402
from dp_accounting.pld import privacy_loss_distribution  # noqa: E402
from scipy.stats import binom  # noqa: E402

from precad.accounting.events import poisson_gaussian  # noqa: E402
from precad.accounting.gdp import clt_mu  # noqa: E402
from precad.certify import group_guarantees  # noqa: E402
from precad.certify.group_guarantees import ExactGroups, RenyiGroups  # noqa: E402
from precad.certify.guarantee import GaussianDP, Guarantee  # noqa: E402
from precad.certify.intervals import ConfidenceBudget, simuem, votes_of  # noqa: E402
from precad.certify.prediction import certify_predictions  # noqa: E402

RESULT = Path(__file__).parent / "results" / "certify_votes.json"
POINTS, MODELS, CLASSES = 10_000, 1_000, 10
RATE, NOISE = 128 / 60_000, 3.0
ROUNDS = (47, 469, 938)


def hardware() -> dict[str, Any]:
    """The processor and the cores at hand; this benchmark keeps to one."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    names = [
        line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")
    ]
    return {
        "processor": names[0] if names else platform.processor(),
        "cores": len(os.sched_getaffinity(0)),
        "cores_used": 1,
    }


def seconds_of(start: float) -> float:
    """Seconds since ``start``, to the millisecond."""
    return round(time.perf_counter() - start, 3)


def guarantees(rounds: int) -> list[Guarantee]:
    """All four guarantees of one mechanism."""
    mechanism = poisson_gaussian(rate=RATE, noise_multiplier=NOISE, count=rounds)
    return [
        ExactGroups(mechanism),
        RenyiGroups(mechanism),
        ExactGroups(mechanism).as_approximate(),
        GaussianDP(clt_mu(RATE, NOISE, rounds), asymptotic=True),
    ]


def dp_accounting_pair(group: int, rounds: int, interval: float) -> float:
    """Seconds for one group's pair by dp-accounting, on the same grid."""
    start = time.perf_counter()
    weights = binom.pmf(np.arange(group + 1), group, RATE)
    privacy_loss_distribution.from_mixture_gaussian_mechanism(
        NOISE,
        list(range(group + 1)),
        (weights / weights.sum()).tolist(),
        value_discretization_interval=interval,
    ).self_compose(rounds)
    return seconds_of(start)


def main() -> None:
    """Measure, print and keep."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    generator = np.random.default_rng(0)
    certainty = generator.dirichlet(np.full(CLASSES, 0.1), POINTS)
    counts = generator.multinomial(MODELS, certainty)
    labels = np.repeat(np.tile(np.arange(CLASSES), POINTS), counts.ravel()).reshape(
        POINTS, MODELS
    )

    start = time.perf_counter()
    votes = votes_of(labels, CLASSES)
    counting = seconds_of(start)
    start = time.perf_counter()
    intervals = simuem(votes, ConfidenceBudget(confidence=0.999, classes=CLASSES))
    bounding = seconds_of(start)

    rows = []
    for rounds in ROUNDS:
        for guarantee in guarantees(rounds):
            group_guarantees._group_pair.cache_clear()  # noqa: SLF001
            group_guarantees._group_divergences.cache_clear()  # noqa: SLF001
            start = time.perf_counter()
            found = certify_predictions(intervals, guarantee)
            results = found.results()
            seconds = seconds_of(start)
            assert len(results) == POINTS
            rows.append(
                {
                    "rounds": rounds,
                    "guarantee": guarantee.name,
                    "seconds_additions_and_deletions": seconds,
                    "seconds_in_all": round(counting + bounding + seconds, 3),
                    "largest_radius": int(found.radius[found.certified].max()),
                    "distinct_radii": len(np.unique(found.radius[found.certified])),
                    "group_pairs_made": group_guarantees._group_pair.cache_info().misses,  # noqa: SLF001
                    "certified_points": int(found.certified.sum()),
                }
            )
            print(rows[-1])

    pair_start = time.perf_counter()
    group_guarantees._group_pair.cache_clear()  # noqa: SLF001
    ExactGroups(poisson_gaussian(rate=RATE, noise_multiplier=NOISE, count=469)).sticks(
        100
    )
    ours = seconds_of(pair_start)
    interval = 0.0065
    document = {
        "what": f"{POINTS} points, votes of {MODELS} models, {CLASSES} classes, one core, cold",
        "hardware": hardware(),
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in ("numpy", "scipy", "dp-accounting")},
        },
        "mechanism": {"sampling_rate": RATE, "noise_multiplier": NOISE},
        "seconds_counting_votes": counting,
        "seconds_confidence_bounds": bounding,
        "certified": rows,
        "one_pair_group_100_rounds_469": {
            "seconds": ours,
            "dp_accounting_seconds": dp_accounting_pair(100, 469, interval),
            "dp_accounting_interval": interval,
        },
    }
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    print(f"{RESULT.name} written")


if __name__ == "__main__":
    main()
