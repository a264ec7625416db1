"""Virtual data owners: their records, and their updates, one by one or all stacked."""

import itertools
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from precad.client.asked_records import AskedRecords
from precad.client.gradients import (
    CHUNK_BYTES,
    Loss,
    RecordGradients,
    augmentation,
    batches,
    sum_encoded,
)
from precad.client.gradients.local_update import clip_record, local_update
from precad.client.records import Records, as_records
from precad.common import (
    ClientId,
    Enrolment,
    Integers,
    LocalTraining,
    Misconfiguration,
    ModelVector,
    Roster,
    Secret,
    Task,
    clip_update,
    encode_context,
    fixed_point,
    frozen_kw_only_dataclass,
    most_records,
)

Matrix = NDArray[np.int64]
"""``[clients, d] int64``: each row is one client's update, in units of the last place.
"""


@frozen_kw_only_dataclass
class Owner:
    """One virtual owner: its name and its records."""

    name: str
    records: Records | AskedRecords
    start: int
    """Where its records begin among those of all owners."""
    most: int
    """M: a larger sample counts as an empty one, as with real owners."""
    bound: int
    """β_i: the bound on its updates' norms, in units of the last place."""


class Owners(dict[str, Owner]):
    """All owners by name, in the order of their names; all sample with the task's p.

    Args:
        data: each owner's records, in a mapping by its name or in a list; or one data
            set, which is dealt out to ``clients`` owners in equal parts by ``seed``.
        clients: how many owners there are; the task's number unless given.
        task: what they train.
        seed: of the dealing.

    Raises Misconfiguration: no owner, an owner without records, records that can't be
    used, or owners whose records don't have one shape.
    """

    def __init__(
        self,
        data: object,
        clients: int | None,
        task: Task,
        seed: int,
    ) -> None:
        """Deal out the data, check every owner's records, and stack them."""
        super().__init__()
        shares = dict(sorted(_shares(data, clients, task, seed)))
        if not shares:
            raise Misconfiguration(
                "data", "no owners", "give at least one owner's records"
            )
        rate = task.mechanism.unit_rate
        start = 0
        for name, records in shares.items():
            # Refuses what is no client's name.
            ClientId(name)
            count = records.unit_count
            if not count:
                raise Misconfiguration(
                    f"data of {name}", "no records", "give each owner some"
                )
            self[name] = Owner(
                name=name,
                records=records,
                start=start,
                most=most_records(count, rate),
                bound=task.mechanism.bound_of(Enrolment(ClientId(name), count, rate)),
            )
            start += len(records)
        of_models = [one for one in shares.values() if isinstance(one, Records)]
        if task.query is not None:
            return
        try:
            self.stacked = Records(
                torch.cat([records.inputs for records in of_models]),
                torch.cat([records.targets for records in of_models]),
            )
            """All owners' records, one owner after the other."""
        except RuntimeError as error:
            remedy = f"must have one shape at all owners ({error})"
            raise Misconfiguration("data", "owners' records", remedy) from None

    def fitted(self, task: Task, rounds: int | None) -> Task:
        """Return the task for this number of owners, and for ``rounds`` where given.

        Raises Misconfiguration: a real task of such numbers, or an owner's enrolment in
        it, would be refused.
        """
        fitted = task
        count = len(self)
        if count != task.enrolment.clients or rounds is not None:
            values = task.model_dump(mode="json")
            values["enrolment"]["clients"] = count
            values["enrolment"]["min_clients"] = min(task.enrolment.min_clients, count)
            if rounds is not None:
                values["training"]["rounds"] = rounds
            fitted = Task.parse(values)
        for claim in self.roster(fitted).values():
            claim.check(fitted)
        return fitted

    def roster(self, task: Task) -> Roster:
        """Return the roster of the owners' enrolments, which fixes the denominator."""
        rate = task.mechanism.unit_rate
        claims = (
            Enrolment(ClientId(owner.name), owner.records.unit_count, rate)
            for owner in self.values()
        )
        return Roster({claim.client: claim for claim in claims})


def _shares(
    data: object,
    clients: int | None,
    task: Task,
    seed: int,
) -> Iterator[tuple[str, Records | AskedRecords]]:
    """Yield each owner's name and records, as ``Owners`` takes the data.

    One data set is dealt out in equal parts, at random by ``seed``; all records of a
    unit go to one owner.

    Raises Misconfiguration: ``clients`` contradicts the data, records can't be used, or
    there are fewer units than owners, or no owner.
    """
    if not isinstance(data, Mapping | list):
        records = _as_records(data)
        count = task.enrolment.clients if clients is None else clients
        units = records.unit_count
        if not 1 <= count <= units:
            remedy = f"there must be from 1 to as many as records, or units ({units})"
            raise Misconfiguration("clients", count, remedy)
        context = int.from_bytes(encode_context("simulated-partition", seed), "little")
        order = np.random.default_rng(context).permutation(units)
        for number, part in enumerate(np.array_split(order, count)):
            yield _name(number, count), records.of_units(np.sort(part))
        return
    count = len(data)
    if clients not in (None, count):
        remedy = f"the data are of {count} owners: leave it out"
        raise Misconfiguration("clients", clients, remedy)
    if isinstance(data, Mapping):
        for name, share in data.items():
            yield str(name), _as_records(share)
    else:
        for number, share in enumerate(data):
            yield _name(number, count), _as_records(share)


def _as_records(data: object) -> Records | AskedRecords:
    """Return records as ``as_records`` does, and those that answer as they are."""
    return data if isinstance(data, AskedRecords) else as_records(data)


def _name(number: int, count: int) -> str:
    """Return the name of an owner without one: its number, with zeros in front.

    So the order of the names is that of the numbers.
    """
    digits = len(str(count))
    return f"client-{number + 1:0{digits}d}"


_BYTES_PER_ELEMENT = 64
"""Memory for one element of a record's gradient: float32 twice, float64, int64 and what
lies between."""
_CACHED = 2**15
"""Numbers that are clipped and encoded together: they stay in the processor's cache."""


@frozen_kw_only_dataclass
class Drawn:
    """An owner that is drawn in one version, and the records that it sampled."""

    owner: Owner
    indices: Integers
    """The sampled records among the owner's own, ``[n]``."""
    copies: Secret
    """The key of the noise of its records' copies, or of the order of its batches."""
    sizes: Integers | None = None
    """How many of the records each sampled unit has; None where each is a unit."""


class Answering:
    """Owners that answer a question: all their records, whatever was drawn."""

    failed = 0
    """Each record answers."""

    def updates(self, _theta: ModelVector, drawn: Sequence[Drawn]) -> Matrix:
        """Return ``[owners, d] int64``: each owner's sum."""
        sums = []
        for sample in drawn:
            records = sample.owner.records
            assert isinstance(records, AskedRecords)
            sums.append(records.total())
        return np.stack(sums)


class PerClient:
    """Updates by a real owner's code for each: ``local_update``, record by record."""

    def __init__(self, model: nn.Module, loss: Loss, task: Task) -> None:
        self._model = model
        self._loss = loss
        self._task = task
        self.failed = 0
        """Records that gave no gradient and counted as zero, so far."""

    def updates(self, theta: ModelVector, drawn: Sequence[Drawn]) -> Matrix:
        """Return ``[owners, d] int64``: each update as ``local_update`` gives it.

        ``theta`` is θ_t, ``[d]``.
        """
        failed: list[int] = []
        updates = np.zeros((len(drawn), self._task.dimension), dtype=np.int64)
        for row, sample in zip(updates, drawn, strict=True):
            row[:] = local_update(
                model=self._model,
                loss=self._loss,
                data=sample.owner.records,
                indices=sample.indices,
                theta=theta,
                task=self._task,
                sizes=sample.sizes,
                bound=sample.owner.bound,
                most=sample.owner.most,
                on_failure=failed.append,
                randomness=sample.copies,
            )
        self.failed += len(failed)
        return updates


class Stacked:
    """Updates by batches of records of many owners, with one copy of the parameters.

    They are those of ``PerClient``, except that a gradient may differ from the real
    owner's in its last float32 bits, so its encoding by a unit or so in an element:
    docs/simulate.md, "Two paths". The model's device is used.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        task: Task,
        owners: Owners,
    ) -> None:
        """Choose how many gradients fit into memory and caches at once."""
        self._task = task
        self._records = owners.stacked
        self._gradients = RecordGradients(
            model,
            loss,
            task.mechanism.parameters,
            objective=task.objective,
            class_weights=task.training.class_weights,
        )
        self._gradients.prepare(self._records)
        self._device = next(model.parameters()).device
        # Records whose gradients are computed, and then encoded, together.
        self._chunk = max(1, CHUNK_BYTES // (_BYTES_PER_ELEMENT * task.dimension))
        self._block = max(1, _CACHED // task.dimension)
        self.failed = 0
        """Records that gave no gradient and counted as zero, so far."""

    def updates(self, theta: ModelVector, drawn: Sequence[Drawn]) -> Matrix:
        """Return ``[owners, d] int64``: each owner's update, clipped to β.

        ``theta`` is θ_t, ``[d]``.
        """
        rows, places = _stacked_samples(drawn)
        updates = np.zeros((len(drawn), self._task.dimension), np.int64)
        named = self._gradients.loaded(theta)
        for start in range(0, len(rows), self._chunk):
            chunk = slice(start, start + self._chunk)
            noise = self._noise(drawn, rows[chunk], places[chunk])
            gradients, wrong = self._record_gradients(named, theta, rows[chunk], noise)
            values = gradients.cpu().numpy()
            unusable = wrong.cpu().numpy()
            for first in range(0, len(values), self._block):
                block = slice(first, first + self._block)
                wide = values[block].astype(np.float64)
                failed = unusable[block] | ~np.isfinite(wide).all(axis=1)
                self.failed += int(failed.sum())
                wide[failed] = 0.0
                clipped = clip_record(wide, self._task)
                encoded = fixed_point.encode(clipped, self._task.fractional_bits)
                # Places ascend, so each owner's records are together.
                owners, firsts = np.unique(places[chunk][block], return_index=True)
                updates[owners] -= np.add.reduceat(encoded, firsts, axis=0)
        for row, sample in zip(updates, drawn, strict=True):
            row[:] = clip_update(row, sample.owner.bound, self._task.fractional_bits)
        return updates

    def _noise(
        self,
        drawn: Sequence[Drawn],
        rows: Integers,
        places: Integers,
    ) -> torch.Tensor:
        """Return ``[n, K, …]``: what each record's owner draws for the record's copies.

        ``rows`` are the records among all owners', ``[n]``, and ``places`` their
        owners' places in ``drawn``, ``[n]``. K may be 0.
        """
        copies = self._gradients.objective.noisy
        shape = copies, *self._records.inputs.shape[1:]
        noise = torch.zeros((len(rows), *shape))
        if not copies:
            return noise
        for place in np.unique(places).tolist():
            sample = drawn[place]
            of_owner = places == place
            indices = rows[of_owner] - sample.owner.start
            noise[of_owner] = augmentation(sample.copies, shape, indices, len(indices))
        return noise

    def _record_gradients(
        self,
        named: dict[str, torch.Tensor],
        theta: ModelVector | None,
        rows: Integers,
        noise: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return gradients ``[n, d]``, and ``[n] bool``: the loss can't take the label.

        ``named`` are the parameters at ``theta``, ``rows`` the records among all
        owners', ``[n]``, and ``noise`` their copies' noise. Without ``theta`` each
        record has parameters of its own, and what an operation raises is raised.
        """
        inputs, targets, wrong = self._gradients.taken(self._records, rows)
        try:
            gradients = self._gradients.shared(
                named,
                inputs=inputs,
                targets=targets,
                noise=noise,
                weights_by_record=theta is None,
            )
        except Exception as error:
            self._gradients.reraise_what_no_record_causes(error)
            if theta is None:
                raise
            # Record by record, as owners compute them: NaN where an operation raises.
            failed: list[int] = []
            chunks = self._gradients.chunks(
                self._records, rows, theta, on_failure=failed.append
            )
            found = np.concatenate(list(chunks))[: len(rows)]
            found[np.isin(rows, failed)] = np.nan
            gradients = torch.from_numpy(found).to(self._device)
        return gradients, wrong.to(self._device)


class StackedTraining(Stacked):
    """Updates by owners that train by themselves, a step of all of them at once.

    As with ``Stacked``, last bits may differ from the real owner's. An operation that
    raises at some values does so here; ``PerClient`` has what owners do then.
    """

    @np.errstate(all="ignore")  # θ may hold any numbers
    def updates(self, theta: ModelVector, drawn: Sequence[Drawn]) -> Matrix:
        """Return ``[owners, d] int64``: what each owner's training changed.

        ``theta`` is θ_t, ``[d]``.
        """
        training = self._task.mechanism.contribution
        assert isinstance(training, LocalTraining)
        start = theta.astype(np.float64)
        trained = np.tile(start, (len(drawn), 1))
        failed: set[int] = set()
        steps_of_owners = [
            batches(sample.owner.start + sample.indices, training, sample.copies)
            for sample in drawn
        ]
        over = np.empty(0, np.int64)
        for step in itertools.zip_longest(*steps_of_owners, fillvalue=over):
            counts = np.array([len(batch) for batch in step])
            rows = np.concatenate(step)
            places = np.repeat(np.arange(len(step)), counts)
            sums = torch.zeros(trained.shape, dtype=torch.float64, device=self._device)
            for first in range(0, len(rows), self._chunk):
                chunk = slice(first, first + self._chunk)
                owners = places[chunk]
                named = self._gradients.loaded_by_record(trained[owners])
                gradients, wrong = self._record_gradients(named, None, rows[chunk])
                unusable = wrong | ~torch.isfinite(gradients).all(dim=1)
                gradients[unusable] = 0.0
                failed.update(rows[chunk][unusable.cpu().numpy()].tolist())
                at = torch.from_numpy(owners).to(self._device)
                sums.index_add_(0, at, gradients.double())
            rates = training.learning_rate / np.maximum(counts, 1)
            trained -= rates[:, None] * sums.cpu().numpy()
        changes = start - trained
        updates = np.zeros(changes.shape, dtype=np.int64)
        for row, change, sample in zip(updates, changes, drawn, strict=True):
            if np.isfinite(change).all():
                encoded = sum_encoded([change[None]], self._task)
                bound = sample.owner.bound
                row[:] = clip_update(encoded, bound, self._task.fractional_bits)
            else:
                failed.update((sample.owner.start + sample.indices).tolist())
        self.failed += len(failed)
        return updates


def _stacked_samples(
    drawn: Sequence[Drawn],
) -> tuple[Integers, Integers]:
    """Return all sampled records, and for each its owner's place in ``drawn``.

    Both are ``[n] int64``, and places ascend. A record is its number among those of all
    owners. A sample of more than M records is left out, as with real owners.
    """
    rows = [np.empty(0, np.int64)]
    places = [np.empty(0, np.int64)]
    for place, sample in enumerate(drawn):
        count = len(sample.indices)
        if count <= sample.owner.most:
            rows.append(sample.owner.start + sample.indices)
            places.append(np.full(count, place, np.int64))
    return np.concatenate(rows), np.concatenate(places)
