"""What each process loads and how much memory it peaks at; writes results/memory.json.

    PYTHONPATH=. python benchmarks/memory.py [--dimension 1000000] [--clients 10] [--out
    FILE]

First what each import costs, in a fresh process for each role. Then a training of light
clients (no torch) at real servers for each check of norms, with the peak of every
process, and one of an owner with a small model. The noise and all uploads are in it.

A peak is VmHWM: the most resident pages since the process began, its imports included.
Of them ``files_mib`` (RssFile at the end) are pages of programs and libraries,
unchanged: processes of one machine share them, and the system may drop them at any
time.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from examples.demo.local_processes import LocalDeployment

from benchmarks.crowd.resident import file_resident_mib, peak_resident_mib
from precad.common.identifiers import ClientId, Role
from precad.common.task import Task

RESULTS = Path(__file__).parent / "results" / "memory.json"
TRAINING_S = 500.0
FEATURES = 64
GRPC = (
    "numpy",
    "cryptography.x509",
    "precad.protos.precad_pb2_grpc",
    "precad.common.task",
)
IMPORTS = {
    "dealer": (*GRPC, "precad.dealer.process"),
    "light_client": (*GRPC, "precad.client.connection"),
    "owner": (*GRPC, "torch", "scipy.special", "precad.client.data_owner"),
    "server_proof": (*GRPC, "sqlalchemy", "precad.server_a.process"),
    "server_crypten": (
        *GRPC,
        *("sqlalchemy", "torch", "precad.aggregator.validate.crypten_import"),
        "precad.server_a.process",
    ),
}
"""Each role's imports one after the other: an import costs what those before it haven't
loaded."""
LOADER = """
import importlib, json, sys, time

def resident():
    lines = open("/proc/self/smaps_rollup").read().splitlines()
    return int(next(line for line in lines if line.startswith("Rss:")).split()[1]) / 1024

rows, held = [], resident()
rows.append({"module": "python", "mib": round(held, 1), "cpu_s": round(time.process_time(), 2)})
for name in sys.argv[1:]:
    began = time.process_time()
    importlib.import_module(name)
    now = resident()
    spent = time.process_time() - began
    rows.append({"module": name, "mib": round(now - held, 1), "cpu_s": round(spent, 2)})
    held = now
print(json.dumps({"resident_mib": round(held, 1), "modules": len(sys.modules), "imports": rows}))
"""


def loaded(modules: tuple[str, ...]) -> dict[str, Any]:
    """What the imports cost, one after the other, in a fresh process."""
    run = subprocess.run(
        [sys.executable, "-c", LOADER, *modules],
        check=True,
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    found: dict[str, Any] = json.loads(run.stdout)
    return found


def task_of(
    clients: int,
    rounds: int,
    parameters: list[dict[str, Any]],
    validation: str = "crypten",
    **model: str,
) -> Task:
    """A task that every client is drawn for in every round."""
    return Task.parse(
        {
            "name": "memory",
            "model": {"parameters": parameters, **model},
            "privacy": {
                "record_clip": 1.0,
                "client_clip": 64.0,
                "noise_multiplier": 2.0,
                "record_rate": 0.5,
                "client_rate": 1.0,
            },
            "training": {"learning_rate": 0.1, "rounds": rounds},
            "enrolment": {"clients": clients, "max_expected_records": 1.0},
            "fractional_bits": 16,
            "validation": validation,
            "deadlines": {"enrol": 300.0, "collect": 60.0, "peer": 120.0},
        }
    )


def peaks(task: Task, clients: int, *, light: bool) -> dict[str, dict[str, float]]:
    """The peak of each process of a whole training, in MiB, of the clients the largest.

    With what of the parts' memory is unchanged pages of files at the end.
    """
    records = np.zeros((2, FEATURES), dtype=np.float32), np.zeros(2, dtype=np.int64)
    data = {ClientId(f"ward-{number}"): records for number in range(clients)}
    found: dict[str, float] = {}
    files: dict[str, float] = {}

    def look(deployment: LocalDeployment) -> None:
        for name, process in deployment.processes.items():
            role = name if name in deployment.servers else "client"
            try:
                found[role] = max(found.get(role, 0.0), peak_resident_mib(process.pid))
                if role == name:
                    files[name] = file_resident_mib(process.pid)
            except (OSError, ValueError):
                # Gone, and well: who is done ends.
                assert process.wait(1) == 0, name

    with (
        tempfile.TemporaryDirectory() as folder,
        LocalDeployment(Path(folder), task, data) as deployment,
    ):
        deployment.start_servers()
        deployment.operator(Role.SERVER_A).status(120.0, wait=True)
        for client in deployment.clients:
            if light:
                deployment._start(client.name, "-m", "tests.rig.light_process")  # noqa: SLF001
            else:
                deployment.start_client(client)
        for _ in deployment.operator(Role.SERVER_A).reports():
            # After each round: a part may be gone when the last one is over.
            look(deployment)
        ended = deployment.wait(
            tuple(client.name for client in deployment.clients), TRAINING_S
        )
        assert not any(ended.values()), ended
        look(deployment)
    return {"peak_mib": found, "files_mib": files}


def hardware() -> dict[str, Any]:
    """The processor, cores and versions that the figures are of."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    names = [
        line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")
    ]
    return {
        "processor": names[0] if names else platform.processor(),
        "cores": os.cpu_count(),
        "versions": {
            "python": platform.python_version(),
            **{
                name: version(name)
                for name in ("numpy", "torch", "crypten", "grpcio", "sqlalchemy")
            },
        },
    }


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dimension", type=int, default=1_000_000)
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    vector = [{"name": "w", "shape": [given.dimension]}]
    layers = [
        {"name": "1.weight", "shape": [2, FEATURES]},
        {"name": "1.bias", "shape": [2]},
    ]
    light = {
        check: task_of(given.clients, given.rounds, vector, check)
        for check in ("crypten", "proof")
    }
    owners = task_of(2, given.rounds, layers, architecture="logistic")
    results = {
        "what": (
            "MiB resident and CPU seconds by import; peaks in MiB of whole trainings"
        ),
        "hardware": hardware(),
        "loaded": {role: loaded(modules) for role, modules in IMPORTS.items()},
        "light_clients": {
            "dimension": given.dimension,
            "clients": given.clients,
            "vector_mib": round(8 * given.dimension / 2**20, 1),
            **{
                check: peaks(task, given.clients, light=True)
                for check, task in light.items()
            },
        },
        "owners": {
            "dimension": owners.dimension,
            "clients": 2,
            **peaks(owners, 2, light=False),
        },
    }
    text = json.dumps(results, indent=2)
    given.out.write_text(text + "\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
