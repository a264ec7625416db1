"""Rounds while every port of every part is besieged; writes results/besieged.json.

A deployment of real processes (dealer, two servers with a worker and metrics each) and
four owners. Then one certified client that has no business there holds so many
connections to each port of each part, each with a call whose message doesn't come whole
(60 KB of 500): what is closed is made again, a few a second at each port. To the
metrics' ports, which know no TLS, go silent connections. Measured before and meanwhile:
the median round, each process's memory, how long server B takes to be back after it was
killed. Then, of refused calls as fast as that client can make them, how many a second
and the processor time of the server.

    PYTHONPATH=src:. python -m benchmarks.besieged [--connections 600] [--out FILE]
"""

import argparse
import contextlib
import json
import socket
import ssl
import statistics
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

from examples.demo.local_processes import LocalDeployment
from tests.conftest import task_values
from tests.integration.workers.test_servers_with_workers import ports_of, workers_of
from tests.rig.crew import CHANGES, SERVERS, deployed, version
from tests.rig.waiting import until

from benchmarks.crowd.resident import resident_mib
from benchmarks.rounds.hardware import hardware
from precad.common.errors import PeerUnavailable, PrecadError
from precad.common.identifiers import Role
from precad.common.identity.credentials import Identity
from precad.common.identity.deployment_keys import Deployment
from precad.common.identity.mutual_tls import WIRE_VERSION, open_channel
from precad.common.identity.party_certificate import Principal
from precad.common.task import Task
from precad.common.wire.calls import errors_of
from precad.protos import precad_pb2 as pb
from precad.protos.precad_pb2_grpc import OperationStub

RESULT = Path(__file__).parent / "results" / "besieged.json"
ROUNDS = 30
AGAIN_PER_S = 5.0
"""Connections that are made again at each port."""
REFUSED_S = 10.0
BAD = "besieger"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"
PART_BYTES, WHOLE_BYTES = 60_000, 500_000


def unfinished_call() -> bytes:
    """HTTP/2's first words, a call's headers, and the beginning of its message."""
    headers = {
        ":method": "POST",
        ":scheme": "https",
        ":path": "/precad.v1.Aggregation/Describe",
        ":authority": "any",
        "te": "trailers",
        "content-type": "application/grpc",
        "user-agent": f"precad-wire/{WIRE_VERSION}",
    }
    block = b"".join(
        bytes([0, len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
        for name, value in headers.items()
    )
    data = b"\0" + WHOLE_BYTES.to_bytes(4, "big") + bytes(PART_BYTES - 5)
    pieces = [data[start : start + 16_000] for start in range(0, len(data), 16_000)]
    ends_headers = b"\4"
    return b"".join(
        [
            PREFACE,
            len(block).to_bytes(3, "big")
            + b"\1"
            + ends_headers
            + (1).to_bytes(4, "big")
            + block,
            *(
                len(p).to_bytes(3, "big") + b"\0\0" + (1).to_bytes(4, "big") + p
                for p in pieces
            ),
        ]
    )


class Siege:
    """Connections to one port, as many as told for as long as the block lasts."""

    def __init__(self, port: int, most: int, tls: ssl.SSLContext | None) -> None:
        self._address = "127.0.0.1", port
        self._most = most
        self._tls = tls
        self._held: list[socket.socket] = []
        self._over = threading.Event()
        self.full = threading.Event()
        self.made = 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._words = unfinished_call()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._over.set()
        self._thread.join()
        for each in self._held:
            each.close()

    def _run(self) -> None:
        while not self._over.is_set():
            if self.made >= self._most:
                self.full.set()
                self._over.wait(1 / AGAIN_PER_S)
                self._held = [each for each in self._held if self._lives(each)]
            if len(self._held) < self._most:
                self._one_more()

    def _one_more(self) -> None:
        self.made += 1
        with contextlib.suppress(OSError):
            made = socket.create_connection(self._address, timeout=5)
            if self._tls is not None:
                made = self._tls.wrap_socket(made)
                made.sendall(self._words)
            made.setblocking(False)
            self._held.append(made)

    @staticmethod
    def _lives(connection: socket.socket) -> bool:
        try:
            while connection.recv(1 << 16):
                pass
        except (BlockingIOError, ssl.SSLWantReadError):
            return True
        except OSError:
            pass
        connection.close()
        return False


def rounds_s(deployment: LocalDeployment) -> float:
    """The mean of so many rounds, in seconds."""
    first = version(deployment)
    began = time.perf_counter()
    until(lambda: version(deployment) >= first + ROUNDS, "rounds", poll_s=0.05)
    return (time.perf_counter() - began) / (version(deployment) - first)


def rejoin_s(deployment: LocalDeployment) -> float:
    """From server B's start, after it was killed, to the next round's end."""
    deployment.processes["server-b"].kill()
    deployment.processes["server-b"].wait()
    first = version(deployment)
    began = time.perf_counter()
    deployment.start_server("server-b")

    def goes_on() -> bool:
        with contextlib.suppress(PeerUnavailable):
            return version(deployment) > first + 1
        return False

    until(goes_on, "server B", poll_s=0.05)
    return time.perf_counter() - began


def parts(deployment: LocalDeployment) -> dict[str, int]:
    """Process ids by name."""
    found = {name: deployment.processes[name].pid for name in (*SERVERS, "dealer")}
    for name in SERVERS:
        for number, pid in enumerate(workers_of(deployment, name)):
            found[f"{name}'s worker {number}"] = pid
    return found


def measure(deployment: LocalDeployment) -> dict[str, Any]:
    """What is compared."""
    return {
        "round_s": round(statistics.median(rounds_s(deployment) for _ in range(3)), 4),
        "memory_mib": {
            name: resident_mib(pid) for name, pid in parts(deployment).items()
        },
    }


def refused(deployment: LocalDeployment, keys: Path) -> dict[str, float]:
    """Calls that a client may not make, over four connections and as fast as they are answered."""
    pid, identity = deployment.processes["server-a"].pid, Identity.load(keys)
    ends, made = time.perf_counter() + REFUSED_S, [0] * 16
    before = cpu_s(pid)

    def ask(number: int) -> None:
        address = deployment.addresses["server-a"]
        with open_channel(address, identity, Role.SERVER_A) as channel:
            stub = OperationStub(channel)
            while time.perf_counter() < ends:
                with contextlib.suppress(PrecadError), errors_of("server A", address):
                    stub.Status(pb.StatusRequest(), timeout=2)
                made[number] += 1

    with ThreadPoolExecutor(len(made)) as threads:
        list(threads.map(ask, range(len(made))))
    return {
        "calls_per_s": round(sum(made) / REFUSED_S, 1),
        "cores_of_server_a": round((cpu_s(pid) - before) / REFUSED_S, 3),
    }


def cpu_s(pid: int) -> float:
    """Processor seconds of a process."""
    fields = (
        Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    )
    return (int(fields[11]) + int(fields[12])) / 100


def main() -> None:
    """Measure, and write the result."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--connections", type=int, default=600)
    parser.add_argument("--out", type=Path, default=RESULT)
    arguments = parser.parse_args()
    values = task_values(64)
    for name, value in (CHANGES | {"validation": "crypten"}).items():
        section, _, field = name.rpartition(".")
        (values.setdefault(section, {}) if section else values)[field] = value
    task = Task.parse(values)
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made) / "run"
        settings = 'workers = 1\nmetrics = "127.0.0.1:0"\n'
        with deployed(folder, task, settings) as (deployment, crowd), crowd.at_work():
            until(lambda: version(deployment) > ROUNDS, "a warm training")
            keys = Path(made) / BAD
            Deployment.open(folder / "keys").issue(Principal.client(BAD), out=keys)
            tls = ssl.create_default_context(cafile=keys / "ca.pem")
            tls.check_hostname = False
            tls.load_cert_chain(keys / "cert.pem", keys / "key.pem")
            tls.set_alpn_protocols(["h2"])
            result: dict[str, Any] = {"connections": arguments.connections}
            result["calm"] = measure(deployment) | {
                "rejoin_s": round(rejoin_s(deployment), 2)
            }
            until(lambda: len(parts(deployment)) == 5, "workers")
            result["calm"]["memory_mib"] = measure(deployment)["memory_mib"]
            with contextlib.ExitStack() as stack:
                sieges = []
                for name, pid in parts(deployment).items():
                    for port in ports_of(pid):
                        plain = (
                            name in SERVERS
                            and str(port) not in deployment.addresses[name]
                        )
                        siege = Siege(
                            port, arguments.connections, None if plain else tls
                        )
                        sieges.append(stack.enter_context(siege))
                for siege in sieges:
                    siege.full.wait()
                result["besieged"] = measure(deployment)
                result["besieged"]["rejoin_s"] = round(rejoin_s(deployment), 2)
                result["besieged"]["made"] = sum(siege.made for siege in sieges)
                result["besieged"]["ports"] = len(sieges)
            result["refused"] = refused(deployment, keys)
    calm, besieged = result["calm"], result["besieged"]
    result["ratio"] = round(besieged["round_s"] / calm["round_s"], 2)
    result["more_memory_mib"] = {
        name: round(besieged["memory_mib"].get(name, 0) - mib, 1)
        for name, mib in calm["memory_mib"].items()
    }
    result["hardware"] = hardware()
    arguments.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
