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
from benchmarks.rounds.sample import OVER, Sample, between, require_right
from precad.common.identifiers import ClientId, Role
from precad.common.task import Task
from precad.common.wire.calls import StepCost

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
BOTH = (Role.SERVER_A, Role.SERVER_B)
_WAIT_S = 3600.0


def task_of(
    dimension: int, clients: int, rounds: int, validation: str = "crypten"
) -> Task:
    """A task in which everybody is drawn and θ moves by the noisy sum itself.

    β is near the largest that a task may have, and the noise that of an everyday task:
    a step for owners is as wide as one would have. Both servers' noise hides no missing
    vector from the check, which is longer than 20 of its deviations. Nobody waits to
    hide how long gradients took.
    """
    waits = {"enrol": _WAIT_S, "collect": _WAIT_S, "peer": _WAIT_S, "work": 0.0}
    return Task.parse(
        {
            "name": "benchmark",
            "model": {"parameters": [{"name": "w", "shape": [dimension]}]},
            "privacy": {
                "record_clip": 1.0,
                "client_clip": 30.0,
                "noise_multiplier": 1.0,
                "record_rate": 1.0,
                "client_rate": 1.0,
            },
            "training": {
                "learning_rate": float(clients),
                "rounds": rounds,
                "compact_release": True,
            },
            "enrolment": {
                "clients": clients,
                "max_expected_records": 1.0,
                "planned_units": clients,
            },
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
        self._warmed_up: tuple[int, dict[str, int]] = (0, {})
        """Attempts, and bytes by link, of the first sample: first models are whole."""

    def play(self) -> Sample:
        """Two attempts: a whole one, and one whose validation is apart from its uploads."""
        with self._wire.round():
            marks, said = self._attempt(held=False)
        self._require_right()
        moments = self._moments(marks, said)
        lines = self._wire.last
        phases = {name: between(marks[a], marks[b]) for name, (a, b) in PHASES.items()}
        wall = {f"{name}_s": phase.at_s for name, phase in phases.items()}
        wall["round_s"] = sum(wall.values())
        wall |= {part: said["received"][part] for part in CLIENT_PARTS}
        marks, _ = self._attempt(held=True)
        self._require_right()
        phases |= self._split(marks["received"], marks["over"])
        if not self._warmed_up[0]:
            self._warmed_up = self._attempts, self._counted()
        wall |= {f"{name}_s": phases[name].at_s for name in ("validate", "release")}
        return Sample(
            wall_s=wall,
            cpu_s={name: phase.cpu_s for name, phase in phases.items()},
            lines=lines,
            moments=moments,
        )

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
        for role in BOTH:
            agreed = self._steps(role)["validate"]
            at_s, cpu_s[role.value] = max(at_s, agreed.ended), agreed.cpu_ended
        agreed_at = Reading(at_s, cpu_s)
        return {
            "validate": between(received, agreed_at),
            "release": between(agreed_at, over),
        }

    def _steps(self, role: Role) -> dict[str, StepCost]:
        """Each step of the last attempt on one server."""
        with closing(self._deployment.operator(role).reports()) as reports:
            report = next(
                each for each in reports if each.attempt == self._attempts - 1
            )
        return {cost.step: cost for cost in report.steps}

    def _moments(
        self, marks: dict[str, Reading], said: dict[str, Message]
    ) -> dict[str, float]:
        """Seconds from the last attempt's beginning to what happened in it, in order."""
        found: dict[str, float] = dict(said["received"]["moments"])
        for role in BOTH:
            for step, cost in self._steps(role).items():
                found[f"{role.title}: {step}"] = cost.ended
        found[OVER] = said["over"]["at_s"]
        found["all have heard of the next"] = said["opened"]["at_s"]
        begin = marks["begin"].at_s
        return {
            name: at_s - begin
            for name, at_s in sorted(found.items(), key=lambda each: each[1])
        }

    def _counted(self) -> dict[str, int]:
        """Bytes by link as the servers count them, so far."""
        return {
            link: count
            for role in BOTH
            for link, count in (
                self._deployment.operator(role).status().bytes_by_link.items()
            )
        }

    def facts(self) -> dict[str, Any]:
        """Bytes of a round by link: as the servers count, and on the wire where a relay counts."""
        before, bytes_before = self._warmed_up
        payload: dict[str, float] = {
            link: (count - bytes_before[link]) / (self._attempts - before)
            for link, count in self._counted().items()
        }
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
