"""What the demo is going to run: data, partition, task, and who misbehaves."""

import math
import os
from dataclasses import dataclass, field

from torch.nn.functional import cross_entropy

from precad.cli.demo import DemoRequest
from precad.cli.local_deployment import Data
from precad.client.gradients.local_update import padded_work_s
from precad.client.gradients.torch_models import build
from precad.common.errors import Misconfiguration
from precad.common.identifiers import ClientId
from precad.common.task import Task
from precad.simulation.bad_client import KINDS
from precad.simulation.datasets import DataSet, load, shards
from precad.simulation.demo_tasks import demo_task

SHARDS_PER_CLIENT = 4
COLLECT_S = 60.0
REJOIN_S = 1.0
LEAST_WAIT_S = 0.05
ROOM = 2.0
"""Of the wait above the work."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """Everything that is decided before a process starts."""

    dataset: DataSet = field(repr=False)
    model: str
    task: Task
    data: dict[ClientId, Data] = field(repr=False)
    attack: str | None
    bad: dict[ClientId, str]

    @property
    def honest(self) -> tuple[ClientId, ...]:
        """Clients that follow the protocol."""
        return tuple(client for client in self.data if client not in self.bad)


def make_scenario(request: DemoRequest) -> Scenario:
    """Decide everything, or refuse. Raises Misconfiguration naming the option."""
    clients, bad_count = request.clients, _attackers(request)
    data = load(request.dataset, request.data)
    values = demo_task(data, request.model, clients, request.rounds, request.client_rate)
    values["validation"] = request.validation
    if request.objective is not None:
        values["objective"] = {"name": request.objective}
    deadlines = {"collect": COLLECT_S, "rejoin": REJOIN_S}
    values["deadlines"] = deadlines
    parts = shards(data.train_y, clients, SHARDS_PER_CLIENT, request.seed)
    most = max(parts, key=len)
    deadlines["work"] = _wait_s(
        Task.parse(values), (data.train_x[most], data.train_y[most]), clients
    )
    width = len(str(clients))
    names = [ClientId(f"owner-{number:0{width}d}") for number in range(1, clients + 1)]
    return Scenario(
        dataset=data,
        model=request.model,
        task=Task.parse(values),
        data={
            name: (data.train_x[part], data.train_y[part])
            for name, part in zip(names, parts, strict=True)
        },
        attack=request.attack,
        # The last ones: which clients are bad makes no difference to the protocol.
        bad={
            name: request.attack
            for name in names[clients - bad_count :]
            if request.attack is not None
        },
    )


def _wait_s(task: Task, data: Data, clients: int) -> float:
    """A ``deadlines.work`` that all owners keep on this machine, which they share.

    Owners elsewhere measure their own (``precad doctor``), and the task takes the longest.
    """
    work_s = padded_work_s(
        build(task.model), cross_entropy, data, len(data[1]), task.privacy.record_rate, task
    )
    together_s = work_s * max(1.0, clients / (os.cpu_count() or 1))
    return min(COLLECT_S / 2, max(LEAST_WAIT_S, math.ceil(20 * ROOM * together_s) / 20))


def _attackers(request: DemoRequest) -> int:
    if request.attack is None:
        if request.attackers:
            raise Misconfiguration(
                "--attackers", request.attackers, f"say what they do: --attack {'|'.join(KINDS)}"
            )
        return 0
    if request.attack not in KINDS:
        raise Misconfiguration("--attack", request.attack, f"use one of {', '.join(KINDS)}")
    count = 1 if request.attackers is None else request.attackers
    if not 1 <= count < request.clients:
        raise Misconfiguration(
            "--attackers", count, f"must be at least 1 and fewer than the {request.clients} clients"
        )
    return count
