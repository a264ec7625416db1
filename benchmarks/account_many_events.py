"""How long 300 different events take, exactly, and how far that is above a finer grid's ε.

Both the accountant alone, and ``precad account`` over as many tasks from its start to
its end. Writes results/account_many_events.json beside itself. Nothing is cached before
a measurement. The events' rates, noises and counts are spread over what trainings use,
by a fixed seed.
"""

import json
import os
import platform
import subprocess
import sys
import time
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from precad.accounting import composition, losses
from precad.accounting.events import SampledGaussian, poisson_gaussian
from precad.accounting.exact import ExactAccountant

RESULT = Path(__file__).parent / "results" / "account_many_events.json"
EVENTS = 300
TASK = """
name = "one-of-many"
model.parameters = [{{ name = "w", shape = [650] }}]
training = {{ learning_rate = 1.0, rounds = {rounds} }}
enrolment = {{ clients = 50, max_expected_records = 600.0 }}
[privacy]
record_clip = 1.0
client_clip = 20.0
noise_multiplier = {noise_multiplier}
record_rate = {record_rate}
client_rate = {client_rate}
delta = {delta}
"""
FINER = 64
"""The finer grid adds this many times less variance: cells an eighth as wide."""


def events(most_rounds: int) -> list[SampledGaussian]:
    """300 different ones: rates 1e-4 to .5, σ .6 to 50, up to ``most_rounds`` each."""
    generator = np.random.default_rng(9)
    found = []
    for i in range(EVENTS):
        rate = float(10 ** generator.uniform(-4, -0.3))
        sigma = float(10 ** generator.uniform(-0.2, 1.7))
        count = int(10 ** generator.uniform(0, np.log10(most_rounds)))
        one = poisson_gaussian(rate=rate, noise_multiplier=sigma, count=count)
        found.append(replace(one, participation=0.3) if i % 5 == 0 else one)
    return found


def measured(made: list[SampledGaussian], delta: float) -> tuple[float, float]:
    """Seconds and ε, with nothing cached."""
    losses.one_round.cache_clear()
    losses.natural_cell.cache_clear()
    start = time.perf_counter()
    accountant = ExactAccountant()
    for event in made:
        accountant.compose(event)
    epsilon = accountant.epsilon(delta)
    return round(time.perf_counter() - start, 2), epsilon


def command(delta: float) -> dict[str, Any]:
    """`precad account` over a task for each event: seconds, and the largest joint exact ε."""
    with TemporaryDirectory() as folder:
        arguments = []
        for place, event in enumerate(events(300)):
            path = Path(folder) / f"{place}.toml"
            path.write_text(
                TASK.format(
                    rounds=event.count,
                    noise_multiplier=event.noise_multiplier,
                    record_rate=event.rate,
                    client_rate=event.participation,
                    delta=delta,
                )
            )
            arguments += ["--task", str(path)]
        start = time.perf_counter()
        ended = subprocess.run(
            [sys.executable, "-m", "precad", "account", *arguments, "--json"],
            check=True,
            capture_output=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        )
        seconds = round(time.perf_counter() - start, 2)
    found = [
        statement
        for statement in json.loads(ended.stdout)["together"]
        if statement["accountant"] == "exact"
        and statement["adversary"] != "client-level"
    ]
    return {
        "delta": delta,
        "seconds": seconds,
        "epsilon": {each["adversary"]: round(each["epsilon"], 6) for each in found},
    }


def processor() -> str:
    """The processor's name, as Linux gives it."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [
        line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")
    ]
    return names[0] if names else platform.processor()


def main() -> None:
    """Measure and write the results."""
    rows: list[dict[str, Any]] = []
    usual = composition._ADDED_VARIANCE  # noqa: SLF001
    for most_rounds in (300, 30_000):
        made = events(most_rounds)
        for delta in (1e-5, 1e-15):
            seconds, epsilon = measured(made, delta)
            composition._ADDED_VARIANCE = usual / FINER  # noqa: SLF001
            _, finer = measured(made, delta)
            composition._ADDED_VARIANCE = usual  # noqa: SLF001
            row = {
                "rounds": sum(event.count for event in made),
                "delta": delta,
                "seconds": seconds,
                "epsilon": round(epsilon, 6),
                "above_a_finer_grid": round(epsilon / finer - 1, 7),
            }
            rows.append(row)
            print(json.dumps(row))
    one = poisson_gaussian(rate=0.01, noise_multiplier=1.0, count=10**7)
    seconds, epsilon = measured([one], 1e-15)
    commands = [command(delta) for delta in (1e-5, 1e-15)]
    print(json.dumps(commands))
    result = {
        "what": (
            f"exact epsilon of {EVENTS} different events, cold; a finer grid has cells"
            " an eighth as wide"
        ),
        "hardware": {"processor": processor(), "cores": os.cpu_count()},
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in ("numpy", "scipy")},
        },
        "accounts": rows,
        "command": commands,
        "ten_million_rounds": {
            "delta": 1e-15,
            "seconds": seconds,
            "epsilon": round(epsilon, 6),
        },
    }
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
