"""How long an exact record-level ε takes at T = 5,000, against dp-accounting's own accountant.

Writes results/account_epsilon.json beside itself. Each time is the median of five, with
nothing cached between them; the first also counts what a fresh process pays to import.
"""

import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from dp_accounting.pld import PLDAccountant

from precad.accounting import exact, losses, rdp
from precad.accounting.events import poisson_gaussian
from precad.accounting.exact import ExactAccountant, epsilon_spent
from precad.accounting.rdp import RdpAccountant

RESULT = Path(__file__).parent / "results" / "account_epsilon.json"
DELTA, ROUNDS, REPEATS = 1e-5, 5000, 5
SETTINGS = [(0.05, 1.0), (0.05, 2.0), (0.2, 2.0), (0.01, 0.7), (0.001, 1.0)]


def forget() -> None:
    """Empty every cache of the accountants."""
    losses.one_round.cache_clear()
    rdp.sampled_gaussian_rdp.cache_clear()
    exact.epsilon_of.cache_clear()


def median_s(work: Callable[[], float]) -> tuple[float, float]:
    """Median seconds of five cold runs of ``work``, and what it answered."""
    times = []
    answer = 0.0
    for _ in range(REPEATS):
        forget()
        start = time.perf_counter()
        answer = work()
        times.append(time.perf_counter() - start)
    return round(statistics.median(times), 4), answer


def ours(rate: float, sigma: float) -> float:
    """Exact ε of a Poisson-sampled Gaussian."""
    accountant = ExactAccountant()
    accountant.compose(
        poisson_gaussian(rate=rate, noise_multiplier=sigma, count=ROUNDS)
    )
    return accountant.epsilon(DELTA)


def ours_rdp(rate: float, sigma: float) -> float:
    """RDP's ε of the same."""
    accountant = RdpAccountant()
    accountant.compose(
        poisson_gaussian(rate=rate, noise_multiplier=sigma, count=ROUNDS)
    )
    return accountant.epsilon(DELTA)


def ours_mixture(rate: float, sigma: float) -> float:
    """Exact ε where a step runs in one round of ten only."""
    accountant = ExactAccountant()
    step = poisson_gaussian(rate=rate, noise_multiplier=sigma)
    accountant.compose(replace(step, participation=0.1, count=ROUNDS))
    return accountant.epsilon(DELTA)


def theirs(rate: float, sigma: float) -> float:
    """ε by dp-accounting's accountant with its default grid of 1e-4."""
    accountant = PLDAccountant()
    step = PoissonSampledDpEvent(rate, GaussianDpEvent(sigma))
    accountant.compose(SelfComposedDpEvent(step, ROUNDS))
    return float(accountant.get_epsilon(DELTA))


def fresh_process_s() -> float:
    """Median seconds of a whole new interpreter that imports and computes one ε."""
    code = (
        "from precad.accounting.events import poisson_gaussian\n"
        "from precad.accounting.exact import epsilon_spent\n"
        "step = poisson_gaussian(rate=0.05, noise_multiplier=1.0)\n"
        f"epsilon_spent(step, counts={{0: {ROUNDS}}}, delta={DELTA})"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True, env=environment)
        times.append(time.perf_counter() - start)
    return round(statistics.median(times), 3)


def live_display_s() -> float:
    """Seconds for ε after each of 60 rounds of the demo."""
    forget()
    start = time.perf_counter()
    step = poisson_gaussian(rate=0.2, noise_multiplier=2.0)
    for taken in range(61):
        epsilon_spent(step, delta=DELTA, counts={0: taken})
    return round(time.perf_counter() - start, 3)


def processor() -> str:
    """The processor's name, as Linux gives it."""
    names = [
        line.split(":", 1)[1].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    return names[0] if names else platform.processor()


def main() -> None:
    """Measure and write the results."""
    rows: list[dict[str, Any]] = []
    for rate, sigma in SETTINGS:
        row: dict[str, Any] = {
            "record_rate": rate,
            "noise_multiplier": sigma,
            "rounds": ROUNDS,
        }
        for name, work in (
            ("exact", ours),
            ("exact_mixture_q0.1", ours_mixture),
            ("rdp", ours_rdp),
            ("dp_accounting_default", theirs),
        ):
            seconds, epsilon = median_s(partial(work, rate, sigma))
            row[name] = {"seconds": seconds, "epsilon": round(epsilon, 6)}
        row["exact_over_dp_accounting"] = round(
            row["exact"]["epsilon"] / row["dp_accounting_default"]["epsilon"] - 1, 6
        )
        rows.append(row)
        print(json.dumps(row))
    result = {
        "what": "exact record-level epsilon at T = 5,000, median of five cold runs",
        "hardware": {
            "processor": processor(),
            "cores": os.cpu_count(),
            "threads": os.environ.get("OMP_NUM_THREADS", "default"),
        },
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in ("numpy", "scipy", "dp-accounting")},
        },
        "delta": DELTA,
        "settings": rows,
        "fresh_process_seconds": fresh_process_s(),
        "live_display_60_rounds_seconds": live_display_s(),
    }
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
