"""What the demo is going to run: data, partition, task, and who misbehaves."""

from dataclasses import dataclass, field

from precad.common.errors import Misconfiguration
from precad.common.identifiers import ClientId
from precad.common.task import Task
from precad.experiments.bad_client import KINDS
from precad.experiments.data import DataSet, load
from precad.experiments.defaults import demo_task
from precad.experiments.local.files import Data
from precad.experiments.partition import shards

SHARDS_PER_CLIENT = 4
COLLECT_S = 60.0
REJOIN_S = 1.0


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


def make_scenario(
    dataset: str,
    model: str,
    clients: int,
    rounds: int | None,
    client_rate: float,
    attack: str | None,
    attackers: int | None,
    seed: int,
) -> Scenario:
    """Decide everything, or refuse.

    Raises:
        Misconfiguration: names the option, its value and what would do.
    """
    bad_count = _attackers(attack, attackers, clients)
    data = load(dataset)
    values = demo_task(data, model, clients, rounds, client_rate)
    values["deadlines"] = {"collect": COLLECT_S, "rejoin": REJOIN_S}
    task = Task.parse(values)
    parts = shards(data.train_y, clients, SHARDS_PER_CLIENT, seed)
    width = len(str(clients))
    names = [ClientId(f"owner-{number:0{width}d}") for number in range(1, clients + 1)]
    return Scenario(
        dataset=data,
        model=model,
        task=task,
        data={
            name: (data.train_x[part], data.train_y[part])
            for name, part in zip(names, parts, strict=True)
        },
        attack=attack,
        # The last ones: which clients are bad makes no difference to the protocol.
        bad={name: attack for name in names[clients - bad_count :] if attack is not None},
    )


def _attackers(attack: str | None, attackers: int | None, clients: int) -> int:
    if attack is None:
        if attackers:
            raise Misconfiguration(
                "--attackers", attackers, f"say what they do: --attack {'|'.join(KINDS)}"
            )
        return 0
    if attack not in KINDS:
        raise Misconfiguration("--attack", attack, f"use one of {', '.join(KINDS)}")
    count = 1 if attackers is None else attackers
    if not 1 <= count < clients:
        raise Misconfiguration(
            "--attackers", count, f"must be at least 1 and fewer than the {clients} clients"
        )
    return count
