"""A deployment of this package: servers, a dealer if any, and one process with all clients.

What is measured is what can be seen from outside: the clients' process says when the
last receipt was there, when everybody heard that the round is over and when everybody
heard of the next.
"""

from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from examples.demo.local_processes import LocalDeployment

from benchmarks.rounds.lines import Lines, Wire
from benchmarks.rounds.meter import Reading, read
from benchmarks.rounds.part import Message, Part
from benchmarks.rounds.sample import Sample, between, require_right
from precad.common.identifiers import ClientId, Role
from precad.common.task import Task

CHECKS = ("crypten", "proof")
"""How norms are validated: with a dealer, or by two servers alone."""
SERVERS = ("server-a", "server-b", "dealer")
PHASES = {
    "collect": ("begin", "received"),
    "finish": ("received", "over"),
    "open": ("over", "opened"),
}
"""Each phase of a whole round, from one mark to another; ``open`` is the next one's
opening. Much of the validation is done while others upload."""
CLIENT_PARTS = ("fetch_s", "ask_s", "prepare_s", "prepare_cpu_s", "upload_s")
"""Means over the clients."""
_WAIT_S = 3600.0


def task_of(
    dimension: int, clients: int, rounds: int, validation: str = "crypten"
) -> Task:
    """A task in which everybody is drawn and θ moves by the noisy sum itself.

    β is near the largest and the noise near the least that a task may have, so that
    noise hides no missing vector from the check. Nobody waits to hide how long
    gradients took.
    """
    waits = {"enrol": _WAIT_S, "collect": _WAIT_S, "peer": _WAIT_S, "work": 0.0}
    return Task.parse(
        {
            "name": "benchmark",
            "model": {"parameters": [{"name": "w", "shape": [dimension]}]},
            "privacy": {
                "record_clip": 1.0,
                "client_clip": 30.0,
                "noise_multiplier": 0.01,
                "record_rate": 1.0,
                "client_rate": 1.0,
            },
            "training": {"learning_rate": float(clients), "rounds": rounds},
            "enrolment": {"clients": clients, "max_expected_records": 1.0},
            "fractional_bits": 20,
            "validation": validation,
            "deadlines": waits,
        }
    )


class Precad:
    """A running deployment, named by its check.

    Args:
        deployment: started, everybody joined.
        clients: the process with all clients.
        lines: between the parts.
    """

    def __init__(
        self, deployment: LocalDeployment, clients: Part, lines: Lines
    ) -> None:
        self.name: str = deployment.task.validation
        servers = {name: deployment.processes[name].pid for name in deployment.servers}
        self.processes = servers | {"clients": clients.pid}
        self._deployment, self._clients = deployment, clients
        self._wire = Wire(
            lines, {at: name for name, at in deployment.addresses.items()}
        )
        self._attempts = 0

    def play(self) -> Sample:
        """Two attempts: a whole one, and one whose validation is apart from its uploads."""
        with self._wire.round():
            marks, said = self._attempt(held=False)
        self._require_right()
        phases = {name: between(marks[a], marks[b]) for name, (a, b) in PHASES.items()}
        wall = {f"{name}_s": phase.at_s for name, phase in phases.items()}
        wall["round_s"] = sum(wall.values())
        wall |= {part: said["received"][part] for part in CLIENT_PARTS}
        marks, _ = self._attempt(held=True)
        self._require_right()
        phases |= self._split(marks["received"], marks["over"])
        wall |= {f"{name}_s": phases[name].at_s for name in ("validate", "release")}
        return Sample(wall, {name: phase.cpu_s for name, phase in phases.items()})

    def _attempt(self, *, held: bool) -> tuple[dict[str, Reading], dict[str, Message]]:
        """One attempt, to the opening of the next: each mark's reading, and what was said."""
        marks: dict[str, Reading] = {"begin": read(self.processes)}
        said: dict[str, Message] = {}
        self._clients.tell(attempt=self._attempts, held=held)
        while "opened" not in said:
            answer = self._clients.hear()
            marks[answer["mark"]] = read(self.processes)
            said[answer["mark"]] = answer
        self._attempts += 1
        return marks, said

    def _require_right(self) -> None:
        """Of the last attempt. Its fetch of the model belongs to no round."""
        require_right(self.name, self._clients.ask(check=True))

    def _split(self, received: Reading, over: Reading) -> dict[str, Reading]:
        """Validation, to the agreed set and its sum, and what followed, by the servers' clocks."""
        at_s, cpu_s = received.at_s, dict(over.cpu_s)
        for role in (Role.SERVER_A, Role.SERVER_B):
            with closing(self._deployment.operator(role).reports()) as reports:
                report = next(
                    each for each in reports if each.attempt == self._attempts - 1
                )
            agreed = next(cost for cost in report.steps if cost.step == "validate")
            at_s, cpu_s[role.value] = max(at_s, agreed.ended), agreed.cpu_ended
        agreed_at = Reading(at_s, cpu_s)
        return {
            "validate": between(received, agreed_at),
            "release": between(agreed_at, over),
        }

    def facts(self) -> dict[str, Any]:
        """Bytes of a round by link: as the servers count, and on the wire where a relay counts."""
        payload: dict[str, float] = {}
        for role in (Role.SERVER_A, Role.SERVER_B):
            for link, count in (
                self._deployment.operator(role).status().bytes_by_link.items()
            ):
                payload[link] = count / self._attempts
        # The check fetches each model once more.
        payload["server-a to clients"] -= 4 * self._deployment.task.dimension
        counted = {link: round(count) for link, count in sorted(payload.items())}
        return {"payload_bytes": counted, **self._wire.facts()}


def servers_cpu(found: dict[str, Any], phases: Iterable[str]) -> float:
    """Processor time of all servers, of the dealer too, in some phases of what was measured."""
    cpu = found["cpu_s"]
    return float(
        sum(s for phase in phases for name, s in cpu[phase].items() if name in SERVERS)
    )


@contextmanager
def set_up(
    dimension: int,
    clients: int,
    rounds: int,
    folder: Path,
    lines: Lines,
    *,
    validation: str = "crypten",
) -> Iterator[Precad]:
    """A deployment with everybody enrolled, for ``rounds`` rounds, under one check of norms.

    Raises:
        PrecadError: a part didn't start or join.
    """
    # One more than is played: a measured round ends with the opening of the next.
    task = task_of(dimension, clients, 2 * rounds + 1, validation)
    nothing = np.zeros((1, 1), dtype=np.float32), np.zeros(1, dtype=np.int64)
    data = {ClientId(f"owner-{number:04d}"): nothing for number in range(clients)}
    with LocalDeployment(folder, task, data, way=lines.way) as deployment:
        deployment.start_servers()
        with Part(
            "clients", "benchmarks.rounds.ours.clients", folder / "logs"
        ) as process:
            process.ask(
                task=str(folder / "task.toml"),
                keys=str(folder / "keys"),
                names=[client.name for client in deployment.clients],
                server_a=lines.way("clients", deployment.addresses["server-a"]),
                server_b=lines.way("clients", deployment.addresses["server-b"]),
            )
            yield Precad(deployment, process, lines)
