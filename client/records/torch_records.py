"""A data owner's records, however they come: arrays, tensors, or a torch Dataset.

They are decoded once, before enrolment, into two arrays of our own, and checked there,
where refusing is still the owner's own affair. Afterwards nothing that a record holds
may show in what the owner does, so a file that can't be read or an item that changes
has to show now.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, IterableDataset, default_collate

from precad.common.errors import Misconfiguration

_PAIR = 2
MEND = "mend this record or leave it out"


class Records:
    """Inputs and targets with one row a record, copied: later changes of the originals don't count.

    Raises Misconfiguration: they aren't arrays of numbers with one row a record, or a
    value isn't finite (in float32) or too large (in int64); names the record.
    """

    def __init__(self, inputs: Any, targets: Any) -> None:
        self.inputs = _checked("input", inputs)
        """``[n, …]``: float32, or int64 where they came as whole numbers; on the CPU.
        """
        self.targets = _checked("target", targets)
        """The same for the targets."""
        if len(self.inputs) != len(self.targets):
            raise Misconfiguration(
                "data",
                f"{len(self.inputs)} inputs, {len(self.targets)} targets",
                "there must be one target for each input",
            )

    def __len__(self) -> int:
        """|D_i|."""
        return len(self.inputs)

    def take(self, indices: NDArray[np.int64]) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs ``[n, …]`` and targets ``[n, …]`` of these records."""
        rows = torch.from_numpy(indices)
        return self.inputs[rows], self.targets[rows]


def as_records(data: Any) -> Records:
    """``Records`` from a pair of arrays, tensors or frames, or a Dataset that has a length.

    A Dataset is read from its first item to its last, once.

    Raises Misconfiguration: the data are none of these, or a record can't be used;
    names it.
    """
    if isinstance(data, Records):
        return data
    if isinstance(data, DataLoader):
        remedy = (
            "its items are batches, and each record is drawn by itself: give its"
            " .dataset"
        )
        raise Misconfiguration("data", type(data).__name__, remedy)
    if isinstance(data, tuple | list) and len(data) == _PAIR:
        return Records(*data)
    return Records(*_decoded(data))


def as_inputs(inputs: Any) -> torch.Tensor:
    """Records without targets, ``[n, …]`` float32 or int64. Raises as ``Records``."""
    return _checked("input", inputs)


def _decoded(dataset: Any) -> list[torch.Tensor]:
    count = _length(dataset)
    whole = [torch.empty(0), torch.empty(0)]
    for index, item in enumerate(_items(dataset, count)):
        parts = _parts(item, index)
        if index == 0:
            whole = [
                torch.empty((count, *part.shape), dtype=part.dtype) for part in parts
            ]
        for name, part, rows in zip(("input", "target"), parts, whole, strict=True):
            if (part.shape, part.dtype) != (rows.shape[1:], rows.dtype):
                raise Misconfiguration(
                    f"data, {name} of record {index}",
                    f"{part.dtype}{list(part.shape)}",
                    f"record 0 has {rows.dtype}{list(rows.shape[1:])}, and all records"
                    f" must have one shape and type: {MEND}",
                )
            rows[index] = part
    return whole


def _length(dataset: Any) -> int:
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


def _items(dataset: Any, count: int) -> Iterator[Any]:
    """Every item, by index or, where there are none, in the Dataset's own order."""
    ordered = isinstance(dataset, IterableDataset) or not hasattr(
        dataset, "__getitem__"
    )
    items = iter(dataset) if ordered else (dataset[index] for index in range(count))
    for index in range(count + ordered):
        try:
            item = next(items)
        except StopIteration:
            if index < count:
                raise _wrong_length(dataset, count, f"ended after {index}") from None
            return
        except Exception as error:  # whatever a file's decoder raises
            remedy = f"can't be read ({error}): {MEND}"
            raise Misconfiguration(
                f"data, record {index}", type(error).__name__, remedy
            ) from error
        if index == count:
            raise _wrong_length(dataset, count, "has more")
        yield item


def _wrong_length(dataset: Any, count: int, found: str) -> Misconfiguration:
    remedy = f"says that it has {count} records and {found}: its length must be theirs"
    return Misconfiguration("data", type(dataset).__name__, remedy)


def _parts(item: Any, index: int) -> list[torch.Tensor]:
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


def _checked(name: str, values: Any) -> torch.Tensor:
    """A copy as float32 or int64, with every value in range."""
    if np.ma.is_masked(values):
        record = int(np.argwhere(np.ma.getmaskarray(values))[0][0])
        raise Misconfiguration(
            f"data, {name} of record {record}", "masked", f"has no value: {MEND}"
        )
    if not isinstance(values, torch.Tensor) and hasattr(values, "to_numpy"):
        values = np.array(values.to_numpy())  # a frame's, or a column's
        if values.dtype.kind == "O":
            raise Misconfiguration(
                f"data, {name}s",
                "text, or missing values",
                "give numbers, or a whole frame with a [data] section in the task that"
                " says which number each level gets",
            )
    try:
        tensor = torch.as_tensor(values).detach().cpu()
        if tensor.layout is not torch.strided:
            raise TypeError("a sparse tensor: give .to_dense()")
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
    # Whole numbers from 2^63 on, which only uint64 holds, would turn negative.
    unusable = (
        ~torch.isfinite(cast) if real else (cast < 0) & (tensor.dtype == torch.uint64)
    )
    if unusable.any():
        record, *place = np.argwhere(unusable.numpy())[0].tolist()
        limit = "finite, as float32 too" if real else "below 2^63"
        raise Misconfiguration(
            f"data, {name}{place or ''} of record {record}",
            tensor[(record, *place)].item(),
            f"must be {limit}: {MEND}",
        )
    return cast
