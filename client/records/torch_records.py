"""A data owner's records, however they come: arrays, tensors, or a torch Dataset.

They are decoded once, before enrolment, into two arrays of our own, and are checked
there, where refusing is still the owner's own affair. Afterwards nothing that a record
holds may show in what the owner does. So a file that can't be read, or an item that
changes from one reading to the next, has to show now.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, default_collate

from precad.client.records import (
    ColumnNotes,
    Columns,
    Units,
    identifiers_beside,
    require_known_units,
)
from precad.client.records.read_records import read_records
from precad.common import Integers, Keystream, Misconfiguration, Task

_PAIR = 2
"""Inputs and targets."""
MEND = "mend this record or leave it out"
"""Advice on a record that can't be used."""

AnyDataset = Any
"""torch Dataset, or an owner's own class that behaves as one: items are pairs of an
input and a target, by index or in turn."""
AnyValues = Any
"""Array, tensor, list, frame or column of numbers, of whichever library."""


class Records:
    """Inputs and targets with one row for each record.

    They are copied: later changes of the originals don't count.

    Raises Misconfiguration: they aren't arrays of numbers with one row for each record,
    or a value isn't finite (in float32) or too large (in int64); the error names the
    record.
    """

    def __init__(
        self,
        inputs: object,
        targets: object,
        identifiers: Sequence[str] | None = None,
    ) -> None:
        """Copy and check them; ``identifiers`` say whose each is, where units are."""
        self.inputs = _checked("input", inputs)
        """``[n, …]``: float32, or int64 where they came as whole numbers; on the CPU.
        """
        self.targets = _checked("target", targets)
        """``[n, …]``, of the same types."""
        if len(self.inputs) != len(self.targets):
            raise Misconfiguration(
                "data",
                f"{len(self.inputs)} inputs, {len(self.targets)} targets",
                "there must be one target for each input",
            )
        self.units = None if identifiers is None else Units(identifiers)
        """What the records belong to, such as patients; None where each is a unit."""
        if identifiers is not None and len(identifiers) != len(self.inputs):
            raise Misconfiguration(
                "units",
                f"{len(identifiers)} identifiers, {len(self.inputs)} records",
                "there must be one identifier for each record",
            )

    def __len__(self) -> int:
        """Return how many records there are."""
        return len(self.inputs)

    @property
    def unit_count(self) -> int:
        """Return |D_i|, how many units there are."""
        return len(self if self.units is None else self.units)

    def of_units(self, units: Integers) -> "Records":
        """Return the records of these units, ``[k]`` in ascending order."""
        rows = units
        identifiers: list[str] | None = None
        own = self.units
        if own is not None:
            rows = np.flatnonzero(np.isin(own.of_record, units))
            identifiers = [own.identifiers[unit] for unit in own.of_record[rows]]
        inputs, targets = self.take(rows)
        return Records(inputs, targets, identifiers)

    def draw(
        self,
        sampled: Integers,
        most: int | None,
        randomness: Keystream,
    ) -> tuple[Integers, Integers | None]:
        """Return the records that sampled units, ``[k]``, give, as ``Units.draw`` does.

        Where each record is a unit: the same, and None.
        """
        if self.units is None or most is None:
            return sampled, None
        return self.units.draw(sampled, most, randomness)

    def take(self, indices: Integers) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the inputs and targets, both ``[n, …]``, of the records ``[n]``."""
        rows = torch.from_numpy(indices)
        return self.inputs[rows], self.targets[rows]


def as_records(data: object) -> Records:
    """Return the records of a pair of arrays, tensors or frames, or of a Dataset.

    A tuple of three has the units' identifiers beside them, one for each record.

    A Dataset has to have a length. It is read from its first item to its last, once.

    Raises Misconfiguration: the data are none of these, or a record can't be used; the
    error names it.
    """
    if isinstance(data, Records):
        return data
    if isinstance(data, DataLoader):
        raise Misconfiguration(
            "data",
            type(data).__name__,
            "its items are batches, and each record is drawn by itself: give its"
            " .dataset",
        )
    identifiers: Sequence[str] | None = None
    if isinstance(data, tuple | list) and len(data) == _PAIR:
        inputs, targets = data
    elif isinstance(data, tuple) and len(data) == _PAIR + 1:
        inputs, targets, units = data
        identifiers = identifiers_beside(units)
    else:
        inputs, targets = _decoded(data)
    return Records(inputs, targets, identifiers)


def records_in_task(
    data: object,
    task: Task,
    columns: Columns | None = None,
    *,
    notes: list[ColumnNotes] | None = None,
    units: object = None,
) -> Records:
    """Return an owner's records as a task takes them, by its recipe and with its units.

    ``units`` are identifiers beside the records, one for each; the other arguments are
    those of ``read_records``.

    Raises Misconfiguration: as ``read_records`` and ``as_records``; the task has a unit
    of its own and nothing says whose each record is, or the other way round.
    """
    several = task.mechanism.most_records_per_unit is not None
    records = as_records(
        read_records(
            data,
            task.data,
            columns,
            notes,
            with_units=several and units is None,
        )
    )
    if units is not None:
        records = Records(records.inputs, records.targets, identifiers_beside(units))
    column = None if columns is None else columns.unit
    named = column is not None and not several
    require_known_units(task, column, known=named or records.units is not None)
    return records


def require_others(held_out: Records, records: Records) -> None:
    """Refuse held-out records of a unit that is trained on: they would say too much.

    Raises Misconfiguration: names the first record of such a unit. Identifiers stay out
    of errors, which are shown to others.
    """
    if held_out.units is None or records.units is None:
        return
    trained_on = set(records.units.identifiers)
    for unit, identifier in enumerate(held_out.units.identifiers):
        if identifier in trained_on:
            record = int(np.argmax(held_out.units.of_record == unit))
            raise Misconfiguration(
                f"held_out, record {record}",
                "…",
                "whose it is has records in data too: give all records of one to either",
            )


def as_inputs(inputs: object) -> torch.Tensor:
    """Return the inputs ``[n, …]`` of records without targets, float32 or int64.

    Raises Misconfiguration: as ``Records``.
    """
    return _checked("input", inputs)


def _decoded(dataset: AnyDataset) -> list[torch.Tensor]:
    """Return a Dataset's inputs and its targets, each ``[n, …]``, for ``as_records``.

    Raises Misconfiguration: the Dataset has no length or another one than it says, an
    item can't be read, or has another shape or type than the first.
    """
    count = _length(dataset)
    whole = [torch.empty(0), torch.empty(0)]
    for index, item in enumerate(_items(dataset, count)):
        parts = _parts(item, index)
        if index == 0:
            whole = [
                torch.empty((count, *part.shape), dtype=part.dtype) for part in parts
            ]
        for name, part, rows in zip(("input", "target"), parts, whole, strict=True):
            shape = rows.shape[1:]
            if (part.shape, part.dtype) != (shape, rows.dtype):
                raise Misconfiguration(
                    f"data, {name} of record {index}",
                    f"{part.dtype}{list(part.shape)}",
                    f"record 0 has {rows.dtype}{list(shape)}, and all records"
                    f" must have one shape and type: {MEND}",
                )
            rows[index] = part
    return whole


def _length(dataset: AnyDataset) -> int:
    """Return how many records a Dataset says that it has.

    Raises Misconfiguration: it doesn't say so, or is no Dataset.
    """
    try:
        if hasattr(dataset, "__getitem__") or hasattr(dataset, "__iter__"):
            return len(dataset)
    except (TypeError, NotImplementedError):
        pass
    raise Misconfiguration(
        "data",
        type(dataset).__name__,
        "how many records there are is public, and each is drawn by itself: give a"
        " Dataset with __len__ and with __getitem__ or __iter__, or a pair of arrays",
    )


def _items(dataset: AnyDataset, count: int) -> Iterator[object]:
    """Yield the ``count`` items, by index or in the Dataset's own order.

    A Dataset without indices is asked for one item more than it says that it has.

    Raises Misconfiguration: it has fewer or more, or an item can't be read.
    """
    in_own_order = isinstance(dataset, IterableDataset) or not hasattr(
        dataset, "__getitem__"
    )
    by_index = (dataset[index] for index in range(count))
    items = iter(dataset) if in_own_order else by_index
    for index in range(count + in_own_order):
        try:
            item = next(items)
        except StopIteration:
            if index < count:
                raise _wrong_length(dataset, count, f"ended after {index}") from None
            return
        except Exception as error:  # whatever a file's decoder raises
            raise Misconfiguration(
                f"data, record {index}",
                type(error).__name__,
                f"can't be read ({error}): {MEND}",
            ) from error
        if index == count:
            raise _wrong_length(dataset, count, "has more")
        yield item


def _wrong_length(dataset: AnyDataset, count: int, seen: str) -> Misconfiguration:
    """Return the error for a Dataset that says ``count`` and has ``seen`` instead."""
    return Misconfiguration(
        "data",
        type(dataset).__name__,
        f"says that it has {count} records and {seen}: its length must be theirs",
    )


def _parts(item: object, index: int) -> list[torch.Tensor]:
    """Return the input and the target of an item, each as a tensor.

    Raises Misconfiguration: the item is no pair of tensors or numbers.
    """
    try:
        inputs, targets = default_collate([item])
        return [torch.as_tensor(inputs)[0], torch.as_tensor(targets)[0]]
    except (TypeError, ValueError, RuntimeError) as error:
        raise Misconfiguration(
            f"data, record {index}",
            type(item).__name__,
            "items must be (input, target) tensors or numbers; "
            f"for images give the Dataset a transform that makes tensors ({error})",
        ) from None


def _checked(name: str, values: AnyValues) -> torch.Tensor:
    """Return a copy as float32 or int64, ``[n, …]``, for ``Records``.

    ``name`` says in errors what the values are: input or target.

    Raises Misconfiguration: they are no array of numbers with one row for each record,
    or a value is masked, isn't finite or is too large.
    """
    if np.ma.is_masked(values):
        record = int(np.argwhere(np.ma.getmaskarray(values))[0][0])
        raise Misconfiguration(
            f"data, {name} of record {record}",
            "masked",
            f"has no value: {MEND}",
        )
    if not isinstance(values, torch.Tensor) and hasattr(values, "to_numpy"):
        # A frame, or one of its columns. Arrow makes other values of gaps.
        if hasattr(values, "is_valid"):
            valid = np.asarray(values.is_valid())
            if not valid.all():
                raise Misconfiguration(
                    f"data, {name} of record {int(np.argmin(valid))}",
                    "null",
                    f"has no value: {MEND}",
                )
            values = getattr(values, "dictionary_decode", lambda: values)()
        values = np.array(values)
        if values.dtype.kind == "O":
            raise Misconfiguration(
                f"data, {name}s",
                "text, or missing values",
                "give numbers, or a whole frame with a [data] section in the task that"
                " says which number each level gets",
            )
    if isinstance(values, np.ndarray):
        # torch takes no array that is read backwards, or of another processor's byte
        # order, and warns of one that may not be written.
        values = np.require(values, values.dtype.newbyteorder("="), ["C", "W", "E"])
    try:
        tensor = torch.as_tensor(values).detach().cpu()
        if tensor.layout is not torch.strided:
            raise TypeError("a sparse tensor: give .to_dense()")
        if tensor.is_quantized:
            raise TypeError("a quantized tensor: give .dequantize()")
    except (TypeError, ValueError, RuntimeError) as error:
        raise Misconfiguration(
            f"data, {name}s",
            type(values).__name__,
            f"must be an array of numbers ({error})",
        ) from None
    if tensor.ndim == 0 or tensor.is_complex():
        raise Misconfiguration(
            f"data, {name}s",
            f"{tensor.dtype}{list(tensor.shape)}",
            "must have one row per record",
        )
    real = tensor.is_floating_point()
    cast = tensor.to(torch.float32 if real else torch.int64, copy=True)
    if real:
        limit = "finite, as float32 too"
        unusable = ~torch.isfinite(cast)
    else:
        # Whole numbers from 2^63 on, which only uint64 holds, have turned negative.
        limit = "below 2^63"
        unusable = (cast < 0) & (tensor.dtype == torch.uint64)
    if unusable.any():
        record, *place = np.argwhere(unusable.numpy())[0].tolist()
        raise Misconfiguration(
            f"data, {name}{place or ''} of record {record}",
            tensor[(record, *place)].item(),
            f"must be {limit}: {MEND}",
        )
    return cast
