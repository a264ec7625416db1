"""The model as it comes home: θ with its task and version, into a module or into a file."""

import math
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from precad.common.errors import Misconfiguration
from precad.common.identifiers import Digest
from precad.common.model import ModelVector, load_model, save_model, tensors
from precad.common.task import Task
from precad.common.task_schema import Parameter

if TYPE_CHECKING:
    from torch import nn

Net = TypeVar("Net", bound="nn.Module")
MODEL_FILE = "model.safetensors"
"""In an owner's state folder, once its training has ended."""


@dataclass(frozen=True, slots=True, repr=False)
class TrainedModel:
    """A model that both servers agree on.

    Attributes:
        task: what it was trained for.
        version: t: how many rounds it has been through.
        theta: θ_t, ``[d] float32``, the parameters one after the other in the task's order.
        digest: what both servers call it.
    """

    task: Task
    version: int
    theta: ModelVector = field(compare=False)
    digest: Digest

    @classmethod
    def load(cls, path: str | Path, task: Task | str | Path) -> Self:
        """Read what ``save`` wrote, or a server's ``model.safetensors``, of this task or its file.

        Raises:
            Misconfiguration: a file can't be read, or the model's content isn't what it states.
            TaskMismatch: it is another task's.
        """
        task = task if isinstance(task, Task) else Task.load(Path(task))
        saved = load_model(Path(path), task)
        return cls(task, saved.version, saved.theta, saved.digest)

    @property
    def weights(self) -> dict[str, NDArray[np.floating[Any]]]:
        """θ_t by the parameters' names, in the task's shapes; views."""
        return tensors(self.theta, self.task.model.parameters)

    def load_into(self, module: Net) -> Net:
        """Copies θ_t into a module's parameters, cast to their own dtype, and returns it.

        Buffers (a fixed scaler's numbers) aren't trained and stay as they are.

        Raises Misconfiguration: its parameters aren't the task's, in names, shapes and order.
        """
        check_parameters(module, self.task.model.parameters)
        load_vector(module, self.theta)
        return module

    def save(self, path: str | Path) -> None:
        """Write safetensors: named float32 tensors; in the metadata task, version and privacy.

        The file appears whole or not at all, and only this user may read it.

        Raises Misconfiguration: the file can't be written there.
        """
        facts = self._guarantee() if self.version else {}
        try:
            save_model(Path(path), self.task, self.version, self.theta, self.digest, facts)
        except OSError as error:
            raise Misconfiguration(
                "model file", str(path), f"can't be written ({error}); give another place"
            ) from None

    def _guarantee(self) -> dict[str, str]:
        """The most that it may tell of a record of an owner at the task's rate."""
        from precad.accounting.exact import record_epsilon  # noqa: PLC0415 -- SciPy

        privacy = self.task.privacy
        epsilon = record_epsilon(
            record_rate=privacy.record_rate,
            noise_multiplier=privacy.noise_multiplier,
            delta=privacy.delta,
            participations=self.version,
        )
        return {
            "guarantee": (
                f"(ε = {math.ceil(1e4 * epsilon) / 1e4:.4f}, δ = {privacy.delta:g})-differential "
                "privacy of one record (zero-out) against one curious server, exact accountant, "
                f"for an owner that was counted in all {self.version} rounds, each released once"
            )
        }

    def __str__(self) -> str:
        return f"{self.digest} (round {self.version} of {self.task.name})"

    def __repr__(self) -> str:
        return f"TrainedModel({self})"


def check_parameters(module: "nn.Module", parameters: tuple[Parameter, ...]) -> None:
    """Refuses a model whose parameters aren't the task's, in names, shapes and order.

    Raises Misconfiguration: names the first difference.
    """
    found = [(name, tuple(tensor.shape)) for name, tensor in module.named_parameters()]
    expected = [(parameter.name, parameter.shape) for parameter in parameters]
    for position, (ours, task) in enumerate(zip_longest(found, expected)):
        if ours != task:
            raise Misconfiguration(
                f"model parameter {position}",
                "absent" if ours is None else f"{ours[0]}{list(ours[1])}",
                "the task has none; remove it"
                if task is None
                else f"the task has {task[0]}{list(task[1])}; give the model that it describes",
            )


def load_vector(module: "nn.Module", theta: ModelVector) -> None:
    """Copy θ, ``[d]``, into a torch module's parameters, cast to their dtype; buffers stay.

    The module's shapes are the task's, in its order; names aren't looked at
    (``TrainedModel.load_into`` does).

    Raises Misconfiguration: the vector's length isn't the module's number of parameters.
    """
    import torch  # noqa: PLC0415 -- seconds

    named = dict(module.named_parameters())
    shapes = tuple(Parameter(name=n, shape=tuple(p.shape)) for n, p in named.items())
    with torch.no_grad():
        for name, values in tensors(theta, shapes).items():
            named[name].copy_(torch.from_numpy(values))
