"""Virtual data owners: their records, and their updates one by one or all of them stacked."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from precad.client.gradients.local_update import local_update
from precad.client.gradients.objectives import Augmentation, Loss
from precad.client.gradients.record_gradients import CHUNK_BYTES, RecordGradients
from precad.client.records.torch_records import Records, as_records
from precad.common.errors import Misconfiguration
from precad.common.fixed_point import RECORD_MARGIN, clip_update
from precad.common.identifiers import ClientId, Secret
from precad.common.model import ModelVector
from precad.common.ring import encode_context
from precad.common.roster import Enrolment, Roster, most_records
from precad.common.task import Task
from precad.common.task_schema import ObjectiveSection

Matrix = NDArray[np.int64]
"""``[clients, d] int64``, a client's update a row, in units of the last place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """One virtual owner."""

    name: str
    records: Records
    start: int
    """Where its records begin among those of all owners."""
    most: int
    """M: a larger sample counts as an empty one, as with real owners."""


class Owners(dict[str, Owner]):
    """All owners in the order of their names, who all sample with the task's p.

    ``data`` are each owner's records by its name, or in a list; or one data set, which
    is dealt out to ``clients`` owners in equal parts by ``seed``. Raises
    Misconfiguration: no owner, an owner without records, records that can't be used, or
    owners whose records don't stack.
    """

    def __init__(
        self,
        data: Any,
        clients: int | None,
        task: Task,
        seed: int,
    ) -> None:
        super().__init__()
        shares = dict(sorted(_shares(data, clients, task, seed)))
        if not shares:
            raise Misconfiguration(
                "data", "no owners", "give at least one owner's records"
            )
        rate = task.mechanism.unit_rate
        start = 0
        for name, records in shares.items():
            ClientId(name)
            if not len(records):
                raise Misconfiguration(
                    f"data of {name}", "no records", "give each owner some"
                )
            self[name] = Owner(
                name=name,
                records=records,
                start=start,
                most=most_records(len(records), rate),
            )
            start += len(records)
        try:
            self.stacked = Records(
                torch.cat([each.records.inputs for each in self.values()]),
                torch.cat([each.records.targets for each in self.values()]),
            )
        except RuntimeError as error:
            remedy = f"must have one shape at all owners ({error})"
            raise Misconfiguration("data", "owners' records", remedy) from None

    def fitted(self, task: Task, rounds: int | None) -> Task:
        """The task for so many owners and rounds; refuses what a real one refuses."""
        values = task.model_dump(mode="json")
        fitted = task
        values["enrolment"]["clients"] = len(self)
        values["enrolment"]["min_clients"] = min(task.enrolment.min_clients, len(self))
        if rounds is not None:
            values["training"]["rounds"] = rounds
        if len(self) != task.enrolment.clients or rounds is not None:
            fitted = Task.parse(values)
        for claim in self.roster(fitted).values():
            claim.check(fitted)
        return fitted

    def roster(self, task: Task) -> Roster:
        """What the owners' enrolment makes; fixes the denominator."""
        rate = task.mechanism.unit_rate
        claims = [
            Enrolment(ClientId(each.name), len(each.records), rate)
            for each in self.values()
        ]
        return Roster({claim.client: claim for claim in claims})


def _shares(
    data: Any,
    clients: int | None,
    task: Task,
    seed: int,
) -> Iterator[tuple[str, Records]]:
    if isinstance(data, Mapping | list):
        if clients not in (None, len(data)):
            remedy = f"the data are of {len(data)} owners: leave it out"
            raise Misconfiguration("clients", clients, remedy)
        if isinstance(data, Mapping):
            named = ((str(name), share) for name, share in data.items())
        else:
            named = ((_name(n, len(data)), share) for n, share in enumerate(data))
        yield from ((name, as_records(share)) for name, share in named)
        return
    records = as_records(data)
    count = task.enrolment.clients if clients is None else clients
    if not 1 <= count <= len(records):
        remedy = f"there must be from 1 to as many as records ({len(records)})"
        raise Misconfiguration("clients", count, remedy)
    context = int.from_bytes(encode_context("simulated-partition", seed), "little")
    order = np.random.default_rng(context).permutation(len(records))
    for n, part in enumerate(np.array_split(order, count)):
        yield _name(n, count), Records(*records.take(np.sort(part)))


def _name(number: int, count: int) -> str:
    return f"client-{number + 1:0{len(str(count))}d}"


_BYTES_PER_ELEMENT = 64
"""Of a record's gradient: float32 twice, float64, int64 and what lies between."""
_ENCODED_BYTES = 2**23
"""Of gradients in float64 that are clipped at once: as much as caches hold, and as
malloc hands out again, where larger arrays come from the system page by page, round
after round."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """An owner in one version, the records that it sampled, and the key of their copies' noise."""

    owner: Owner
    indices: NDArray[np.int64]
    copies: Secret


class PerClient:
    """The code of a real owner for each: ``local_update``, record for record."""

    def __init__(self, model: nn.Module, loss: Loss, task: Task) -> None:
        self._model = model
        self._loss = loss
        self._task = task
        self.failed = 0
        """Records that gave no gradient and counted as zero, so far."""

    def updates(self, theta: ModelVector, drawn: Sequence[Drawn]) -> Matrix:
        """``[owners, d] int64``, each as ``local_update`` gives it."""
        failed: list[int] = []
        update = partial(
            local_update,
            self._model,
            self._loss,
            theta=theta,
            task=self._task,
        )
        counted = partial(update, on_failure=failed.append)
        rows = [
            counted(
                one.owner.records,
                one.indices,
                most=one.owner.most,
                randomness=one.copies,
            )
            for one in drawn
        ]
        self.failed += len(failed)
        return np.array(rows, dtype=np.int64).reshape(len(rows), self._task.dimension)


class Stacked:
    """The same by batches of records of many owners, with one copy of the parameters.

    A gradient may differ from the real owner's in its last float32 bits, so its
    encoding by a unit or so in an element: docs/simulate.md, "Two paths". The model's
    device is used.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        task: Task,
        owners: Owners,
    ) -> None:
        self._task = task
        self._records = owners.stacked
        parameters = task.mechanism.parameters
        self._gradients = RecordGradients(
            model, loss, parameters, objective=task.objective
        )
        self._gradients.prepare(self._records)
        self._device = next(model.parameters()).device
        self._chunk = max(1, CHUNK_BYTES // (_BYTES_PER_ELEMENT * task.dimension))
        self._block = max(1, _ENCODED_BYTES // (8 * task.dimension))
        self.failed = 0

    def updates(self, theta: ModelVector, drawn: Sequence[Drawn]) -> Matrix:
        """``[owners, d] int64``, each clipped to β."""
        whole = [one for one in drawn if len(one.indices) <= one.owner.most]
        rows = [
            np.empty(0, np.int64),
            *(one.owner.start + one.indices for one in whole),
        ]
        numbers = [
            n for n, one in enumerate(drawn) if len(one.indices) <= one.owner.most
        ]
        place = np.repeat(
            np.array(numbers, np.int64), [len(one.indices) for one in whole]
        )
        every = np.concatenate(rows)
        places = torch.from_numpy(place)
        shape = (len(drawn), self._task.dimension)
        sums = torch.zeros(shape, dtype=torch.int64, device=self._device)
        named = self._gradients.loaded(theta)
        for start in range(0, len(every), self._chunk):
            some = slice(start, start + self._chunk)
            noise = self._noise(drawn, every[some], places[some])
            gradients, bad = self._found(named, theta, every[some], noise)
            pieces = (
                torch.split(all_of, self._block)
                for all_of in (places[some], gradients, bad)
            )
            for at, piece, wrong in zip(*pieces, strict=True):
                # Places ascend; ``index_add_`` of int64 is slow.
                owners, counts = torch.unique_consecutive(at, return_counts=True)
                parts = torch.split(self._encoded(piece, wrong), counts.tolist())
                for owner, rows_of in zip(owners.tolist(), parts, strict=True):
                    sums[owner] += rows_of.sum(dim=0)
        found = sums.cpu().numpy()
        bound = self._task.mechanism.bound
        bits = self._task.fractional_bits
        for number in range(len(found)):
            found[number] = clip_update(found[number], bound, bits)
        return found

    def _noise(
        self, drawn: Sequence[Drawn], rows: NDArray[np.int64], places: torch.Tensor
    ) -> torch.Tensor:
        """``[n, K, …]``: what each record's owner draws for its copies."""
        copies = self._gradients.objective.noisy
        shape = tuple(self._records.inputs.shape[1:])
        found = torch.zeros(len(rows), copies, *shape)
        for number in np.unique(places.numpy()).tolist() if copies else ():
            one = drawn[number]
            mine = places == number
            indices = rows[mine.numpy()] - one.owner.start
            found[mine] = Augmentation(one.copies, copies, shape).of(
                indices, len(indices)
            )
        return found

    def _found(
        self,
        named: dict[str, torch.Tensor],
        theta: ModelVector,
        rows: NDArray[np.int64],
        noise: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """``[n, d]`` gradients, and ``[n] bool`` where the loss can't take the label."""
        inputs, targets = self._records.take(rows)
        wrong = self._gradients.wrong_labels(targets)
        usable = torch.where(wrong, 0, targets)
        try:
            found = self._gradients.shared(
                named,
                inputs=inputs,
                targets=usable,
                noise=noise,
            )
        except Exception as error:  # noqa: BLE001 -- whatever a model's operations raise
            self._gradients.reraise_what_no_record_causes(error)
            found = self._one_by_one(theta, rows)
        return found, (wrong.flatten(1).any(dim=1) if wrong.ndim > 1 else wrong).to(
            self._device
        )

    def _encoded(self, gradients: torch.Tensor, wrong: torch.Tensor) -> torch.Tensor:
        """``[n, d] int64``: −gradients clipped to R and encoded toward zero."""
        found = gradients.double()
        # Squares of float32 numbers can't overflow in float64: only what isn't finite
        # has a norm that isn't, and to look at the norms alone is much faster.
        norms = torch.linalg.vector_norm(found, dim=1)
        bad = wrong | ~torch.isfinite(norms)
        self.failed += int(bad.sum())
        found[bad] = norms[bad] = 0.0
        clip = self._task.mechanism.unit_clip * RECORD_MARGIN
        factors = factors_of(norms, clip, self._task.objective)
        found *= (-factors * 2.0**self._task.fractional_bits)[:, None]
        return found.long()

    def _one_by_one(self, theta: ModelVector, rows: NDArray[np.int64]) -> torch.Tensor:
        """As owners do where an operation raises on one record's values: NaN for that one."""
        failed: list[int] = []
        chunks = self._gradients.chunks(
            self._records, rows, theta, on_failure=failed.append
        )
        found = np.concatenate(list(chunks))[: len(rows)]
        found[np.isin(rows, failed)] = np.nan
        return torch.from_numpy(found).to(self._device)


def factors_of(
    norms: torch.Tensor, clip: float, objective: ObjectiveSection | None
) -> torch.Tensor:
    """What each gradient is multiplied by, ``[n]``, from its norm: the rules of ``clip_record``."""
    if objective is None or objective.clipping == "flat":
        return torch.clamp(clip / norms, max=1.0)
    return clip / (norms + objective.stabiliser / (norms + objective.stabiliser))
