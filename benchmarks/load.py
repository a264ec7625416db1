"""A thousand clients at real servers, a tenth of them bad; writes results/load.json.

Dealer, server B and server A are processes of their own with mutual TLS, gRPC and
CrypTen, as in production; all clients are one further process, this one. Every client
keeps its own certificate, its own connection to each server and its notices open for
the whole training. The run fails unless every answer, every outcome and both servers'
counts are what they must be.

    PYTHONPATH=. python benchmarks/load.py [--clients 1000] [--dimension 100000] [--out
    FILE]
"""

import argparse
import asyncio
import itertools
import json
import os
import platform
import tempfile
import time
from collections import Counter
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from examples.demo.local_processes import LocalDeployment

from benchmarks.crowd.client import SERVERS, LoadClient
from benchmarks.crowd.crowd import Crowd, Played, Script, expected_sum
from benchmarks.crowd.misdeeds import (
    COUNTED,
    HONEST,
    MISDEEDS,
    SILENT,
    UNINVITED,
    Misdeed,
)
from benchmarks.crowd.resident import (
    forget_peak,
    open_files,
    peak_resident_mib,
    resident_mib,
)
from precad.common.identifiers import ClientId, Role
from precad.common.identity.credentials import Identity
from precad.common.task import Task
from precad.common.wire.connections import connections_for

RESULTS = Path(__file__).parent / "results" / "load.json"
CLIENT_RATE = 0.2
RECORD_RATE = 0.2
COLLECT_S = 40.0
TRAINING_S = 900.0
BAD_EVERY = 10
STRANGERS = 10
NOISE_LIMIT = 10.0
"""Standard deviations within which all of a round's noise must lie."""


def task_of(clients: int, dimension: int, rounds: int) -> Task:
    """A task whose η over the denominator is 1: θ moves by the noisy sum itself."""
    return Task.parse(
        {
            "name": "load",
            "model": {"parameters": [{"name": "w", "shape": [dimension]}]},
            "privacy": {
                "record_clip": 1.0,
                "client_clip": 64.0,
                "noise_multiplier": 2.0,
                "record_rate": RECORD_RATE,
                "client_rate": CLIENT_RATE,
            },
            "training": {
                "learning_rate": clients * RECORD_RATE * CLIENT_RATE,
                "rounds": rounds,
            },
            "enrolment": {"clients": clients, "max_expected_records": 1.0},
            "fractional_bits": 16,
            "deadlines": {"enrol": 600.0, "collect": COLLECT_S, "peer": 120.0},
        }
    )


def only(submitting: int) -> Script:
    """That many of the drawn clients submit; the others are silent."""

    def script(place: int, drawn: bool) -> Misdeed | None:
        if not drawn:
            return None
        return HONEST if place < submitting else SILENT

    return script


def one_in_ten(misdeeds: "itertools.cycle[Misdeed]") -> Script:
    """Every tenth drawn client takes the next misdeed; a few that weren't drawn submit too.

    The first one drawn is silent, so that the round is open until its deadline and
    nobody who sends several times comes too late.
    """

    def script(place: int, drawn: bool) -> Misdeed | None:
        if not drawn:
            return UNINVITED if place < STRANGERS else None
        if place == 0:
            return SILENT
        return next(misdeeds) if place % BAD_EVERY == BAD_EVERY - 1 else HONEST

    return script


def plan(clients: int) -> dict[str, Script]:
    """Each round's name and script."""
    drawn = int(clients * CLIENT_RATE)
    misdeeds = itertools.cycle(MISDEEDS)
    return {
        f"{drawn // 4} submit": only(drawn // 4),
        f"{drawn // 2} submit": only(drawn // 2),
        "all honest": only(clients),
        "a tenth bad (1)": one_in_ten(misdeeds),
        "a tenth bad (2)": one_in_ten(misdeeds),
        "a tenth bad (3)": one_in_ten(misdeeds),
    }


class Meter:
    """Each process's memory and processor time, round by round."""

    def __init__(self, processes: dict[str, int]) -> None:
        self._processes = processes
        self._before = {name: _cpu_s(pid) for name, pid in processes.items()}
        self.start = self._read()
        self.rounds: list[dict[str, dict[str, float]]] = []

    def mark(self) -> None:
        """A round begins: what was read since the last mark belongs to the one before."""
        self.rounds.append(self._read())
        for pid in self._processes.values():
            forget_peak(pid)

    def _read(self) -> dict[str, dict[str, float]]:
        read = {}
        for name, pid in self._processes.items():
            now = _cpu_s(pid)
            read[name] = {
                "peak_rss_mib": peak_resident_mib(pid),
                "rss_mib": resident_mib(pid),
                "cpu_s": round(now - self._before[name], 2),
                "open_files": open_files(pid),
            }
            self._before[name] = now
        return read


def _cpu_s(pid: int) -> float:
    fields = (
        Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    )
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def rehearse(
    deployment: LocalDeployment, scripts: list[Script], meter: Meter
) -> tuple[Crowd, list[Played], float]:
    """Join with everybody and play all rounds. Returns also how long joining took."""
    addresses = {role: deployment.addresses[role.value] for role in SERVERS}
    keys = deployment.folder / "keys"
    clients = [
        LoadClient(
            deployment.task, client, addresses, Identity.load(keys / client.name)
        )
        for client in deployment.clients
    ]
    started = time.monotonic()
    async with Crowd(clients, scripts, on_open=meter.mark) as crowd:
        joined_s = time.monotonic() - started
        rounds = await crowd.play(TRAINING_S)
        meter.mark()
        return crowd, rounds, joined_s


def check(
    deployment: LocalDeployment, crowd: Crowd, rounds: list[Played]
) -> dict[str, int]:
    """Every answer, outcome, count and sum; raises SystemExit where one is wrong.

    Returns:
        Payload bytes by link.
    """
    wrong = [miss for played in rounds for miss in played.misses()]
    outcomes = [(c.name, how) for each in rounds for c, how in each.outcomes.items()]
    counted = Counter(name for name, how in outcomes if how == COUNTED)
    rejected = Counter(how for _, how in outcomes if how not in {COUNTED, ""})
    links: dict[str, int] = {}
    for role in SERVERS:
        status = deployment.operator(role).status()
        if dict(status.participations) != dict(counted):
            wrong.append(f"{role.value} charged others than those who counted")
        if dict(status.rejected) != dict(rejected):
            wrong.append(
                f"{role.value} rejected {dict(status.rejected)}, clients heard"
                f" {rejected}"
            )
        links |= dict(status.bytes_by_link)
    task, played = deployment.task, rounds[-1]
    server_a = deployment.operator(Role.SERVER_A)
    newest = task.training.rounds
    moved = np.ldexp(
        server_a.model(task, newest) - server_a.model(task, newest - 1),
        task.fractional_bits,
    )
    noise = np.abs(moved - expected_sum(crowd, played.outcomes)) / (
        2**0.5 * task.mechanism.noise_units
    )
    if noise.max() > NOISE_LIMIT:
        wrong.append(f"the last sum is off by {noise.max():.1f} standard deviations")
    if wrong:
        raise SystemExit("\n".join(wrong[:50]))
    return dict(sorted(links.items()))


def hardware() -> dict[str, Any]:
    """What the figures were taken on."""
    model = platform.processor()
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            model = line.split(":", 1)[1].strip()
            break
    packages = ("grpcio", "numpy", "torch", "crypten", "cryptography", "sqlalchemy")
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        **{package: version(package) for package in packages},
    }


def main() -> None:
    """Run, check, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--dimension", type=int, default=100_000)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument(
        "--keep", type=Path, help="folder for the deployment; temporary if absent"
    )
    arguments = parser.parse_args()
    scripts = plan(arguments.clients)
    task = task_of(arguments.clients, arguments.dimension, len(scripts))
    connections_for(arguments.clients)
    nothing = np.zeros((1, 1), dtype=np.float32), np.zeros(1, dtype=np.int64)
    data = {
        ClientId(f"ward-{number:04d}"): nothing for number in range(arguments.clients)
    }
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.keep or Path(temporary)
        started = time.monotonic()
        with LocalDeployment(folder, task, data) as deployment:
            prepared_s = time.monotonic() - started
            deployment.start_servers()
            for role in SERVERS:
                deployment.operator(role).status(60.0, wait=True)
            processes = {name: each.pid for name, each in deployment.processes.items()}
            meter = Meter({**processes, "clients": os.getpid()})
            crowd, rounds, joined_s = asyncio.run(
                rehearse(deployment, list(scripts.values()), meter)
            )
            links = check(deployment, crowd, rounds)
            reports = [played.counts() for played in rounds]
    results = {
        "hardware": hardware(),
        "clients": arguments.clients,
        "dimension": arguments.dimension,
        "client_rate": CLIENT_RATE,
        "collect_deadline_s": COLLECT_S,
        "keys_made_s": round(prepared_s, 1),
        "joined_s": round(joined_s, 1),
        "before_joining": meter.start,
        "enrolment": meter.rounds[0],
        "rounds": [
            {
                "script": name,
                "drawn": played.drawn,
                "submitting": sum(
                    1 for act in played.acts.values() if act not in (SILENT, UNINVITED)
                ),
                "outcomes": counts,
                "bad": dict(
                    sorted(
                        Counter(
                            act.name
                            for act in played.acts.values()
                            if act is not HONEST
                        ).items()
                    )
                ),
                "last_honest_answer_s": round(played.uploaded_s, 2),
                "round_s": round(played.over_s, 2),
                "processes": figures,
            }
            for name, played, counts, figures in zip(
                scripts, rounds, reports, meter.rounds[1:], strict=True
            )
        ],
        "payload_bytes_by_link": links,
    }
    text = json.dumps(results, indent=2)
    arguments.out.parent.mkdir(exist_ok=True)
    arguments.out.write_text(text + "\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
