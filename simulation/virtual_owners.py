"""Virtual data owners: their records, in one array for all, and the roster that they make."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from precad.client.gradients.local_update import most_records
from precad.client.records.torch_records import Records, as_records
from precad.common.errors import Misconfiguration
from precad.common.identifiers import ClientId
from precad.common.keystream import encode_context
from precad.common.roster import Enrolment, Roster
from precad.common.task import Task


@dataclass(frozen=True, slots=True)
class Owner:
    """One virtual owner."""

    name: str
    records: Records
    start: int
    """Where its records begin among those of all owners."""
    most: int
    """M: a larger sample counts as an empty one, as with real owners."""


class Owners(Mapping[str, Owner]):
    """All owners in the order of their names, who all sample with the task's p.

    Args:
        data: each owner's records by its name, or in a list; or one data set (a tuple of inputs
            and targets, or a Dataset), which is dealt out in equal parts.
        clients: how many owners one data set is dealt to.
        task: gives p; see ``fitted``.
        seed: of the dealing.

    Raises:
        Misconfiguration: no owner, an owner without records, records that can't be used, or
            owners whose records don't stack.
    """

    def __init__(self, data: Any, clients: int | None, task: Task, seed: int) -> None:
        shares = dict(sorted(_shares(data, clients, task, seed)))
        if not shares:
            raise Misconfiguration("data", "no owners", "give at least one owner's records")
        self._owners: dict[str, Owner] = {}
        rate, start = task.privacy.record_rate, 0
        for name, records in shares.items():
            ClientId(name)
            if not len(records):
                raise Misconfiguration(f"data of {name}", "no records", "give each owner some")
            self._owners[name] = Owner(name, records, start, most_records(len(records), rate))
            start += len(records)
        try:
            self.stacked = Records(
                torch.cat([each.records.inputs for each in self._owners.values()]),
                torch.cat([each.records.targets for each in self._owners.values()]),
            )
        except RuntimeError as error:
            raise Misconfiguration(
                "data", "owners' records", f"must have one shape at all owners ({error})"
            ) from None

    def __getitem__(self, name: str) -> Owner:
        return self._owners[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._owners)

    def __len__(self) -> int:
        return len(self._owners)

    def fitted(self, task: Task, rounds: int | None) -> Task:
        """The task for so many owners and rounds; refuses what a real one refuses.

        Raises:
            Misconfiguration: the numbers don't fit together, or an owner's claim passes the cap.
        """
        values = task.model_dump(mode="json")
        values["enrolment"]["clients"] = max(len(self), 1)
        values["enrolment"]["min_clients"] = min(task.enrolment.min_clients, len(self))
        if rounds is not None:
            values["training"]["rounds"] = rounds
        if values["enrolment"]["clients"] == task.enrolment.clients and rounds is None:
            fitted = task
        else:
            fitted = Task.parse(values)
        for claim in self.roster(fitted).values():
            claim.check(fitted)
        return fitted

    def roster(self, task: Task) -> Roster:
        """What the owners' enrolment makes; fixes the denominator."""
        rate = task.privacy.record_rate
        claims = [Enrolment(ClientId(each.name), len(each.records), rate) for each in self.values()]
        return Roster({claim.client: claim for claim in claims})


def _shares(data: Any, clients: int | None, task: Task, seed: int) -> Iterator[tuple[str, Records]]:
    if isinstance(data, Mapping | list):
        if clients not in (None, len(data)):
            raise Misconfiguration(
                "clients", clients, f"the data are of {len(data)} owners: leave it out"
            )
        if isinstance(data, Mapping):
            named = ((str(name), share) for name, share in data.items())
        else:
            named = ((_name(n, len(data)), share) for n, share in enumerate(data))
        for name, share in named:
            yield name, as_records(share)
        return
    records = as_records(data)
    count = task.enrolment.clients if clients is None else clients
    if not 1 <= count <= len(records):
        raise Misconfiguration(
            "clients", count, f"there must be from 1 to as many as records ({len(records)})"
        )
    for n, part in enumerate(np.array_split(_order(len(records), seed), count)):
        yield _name(n, count), Records(*records.take(_ascending(part)))


def _ascending(part: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.sort(part)


def _name(number: int, count: int) -> str:
    return f"client-{number + 1:0{len(str(count))}d}"


def _order(records: int, seed: int) -> NDArray[np.int64]:
    """In which order one data set's records are dealt out to clients."""
    context = int.from_bytes(encode_context("simulated-partition", seed), "little")
    return np.random.default_rng(context).permutation(records)
