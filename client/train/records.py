"""A data owner's records, however they come: arrays, tensors, or a torch Dataset."""

from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import IterableDataset, default_collate

from precad.common.errors import Misconfiguration

_PAIR = 2


@runtime_checkable
class Records(Protocol):
    """Records by index, as training reads them."""

    def __len__(self) -> int:
        """|D_i|."""
        ...

    def take(self, indices: NDArray[np.int64]) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs ``[n, …]`` and targets ``[n, …]`` of these records, on the CPU.

        Floating-point values as float32, whole numbers as int64.
        """
        ...


class ArrayRecords:
    """Records held as two arrays or tensors with one row each."""

    def __init__(self, inputs: Any, targets: Any) -> None:
        self._inputs = _tensor("inputs", inputs)
        self._targets = _tensor("targets", targets)
        if len(self._inputs) != len(self._targets):
            raise Misconfiguration(
                "data",
                f"{len(self._inputs)} inputs, {len(self._targets)} targets",
                "there must be one target for each input",
            )

    def __len__(self) -> int:
        return len(self._inputs)

    def take(self, indices: NDArray[np.int64]) -> tuple[torch.Tensor, torch.Tensor]:
        """See ``Records.take``."""
        rows = torch.from_numpy(indices)
        return self._inputs[rows], self._targets[rows]


class DatasetRecords:
    """Records of a map-style torch Dataset whose items are ``(input, target)``."""

    def __init__(self, dataset: Any) -> None:
        if isinstance(dataset, IterableDataset) or not (
            hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")
        ):
            raise Misconfiguration(
                "data",
                type(dataset).__name__,
                "Poisson sampling needs records by index: "
                "give a Dataset with __len__ and __getitem__, or a pair of arrays",
            )
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    def take(self, indices: NDArray[np.int64]) -> tuple[torch.Tensor, torch.Tensor]:
        """See ``Records.take``."""
        items = [self._dataset[int(index)] for index in indices]
        try:
            inputs, targets = default_collate(items)
        except (TypeError, ValueError, RuntimeError) as error:
            raise Misconfiguration(
                "data",
                type(self._dataset).__name__,
                "its items must be (input, target) tensors or numbers of one shape; "
                f"for images give the Dataset a transform that makes tensors ({error})",
            ) from None
        return _tensor("inputs", inputs), _tensor("targets", targets)


def as_records(data: Any) -> Records:
    """``Records`` from a pair of arrays or tensors, a map-style Dataset, or ``Records``.

    Raises:
        Misconfiguration: the data are none of these, or hold no usable numbers.
    """
    if isinstance(data, Records):
        return data
    if isinstance(data, tuple | list) and len(data) == _PAIR:
        return ArrayRecords(*data)
    return DatasetRecords(data)


def _tensor(name: str, values: Any) -> torch.Tensor:
    try:
        tensor = torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise Misconfiguration(
            f"data, {name}", type(values).__name__, f"must be an array of numbers ({error})"
        ) from None
    if tensor.ndim == 0 or tensor.is_complex():
        raise Misconfiguration(
            f"data, {name}", f"{tensor.dtype}{list(tensor.shape)}", "must have one row per record"
        )
    wanted = torch.float32 if tensor.is_floating_point() else torch.int64
    return tensor.to("cpu", wanted)
