"""Linear models' trainings beside each other, by products of matrices alone.

For `default_settings.py`: what `precad simulate --try` trains for any model
(simulation/search.py), many times as fast, on the same samples and noise. A record's
gradient is the outer product of its error and its input, so its norm is a product of
two norms, and that of an owner's sum follows from products of records.
"""

import numpy as np
import torch
from torch import Tensor

from precad.simulation.search import SideBySide


class LinearSideBySide(SideBySide):
    """As ``SideBySide``, of a model of one layer whose inputs are ``[n, features]``.

    Targets are labels, or numbers under the mean squared error.
    """

    def _sums(self, group: list[int], rows: list[Tensor]) -> Tensor:
        """Return the sum of owners' clipped updates for each setting."""
        found = torch.zeros(len(group), self._thetas.shape[1])
        weight, bias = self._parameters
        products: dict[bytes, tuple[Tensor, Tensor, Tensor, Tensor | None]] = {}
        for place, (number, drawn) in enumerate(zip(group, rows, strict=True)):
            if not len(drawn):
                continue
            key = drawn.numpy().tobytes()
            if key not in products:
                products[key] = self._of_rows(drawn)
            inputs, squares, owners, gram = products[key]
            theta = self._thetas[number].float()
            matrix = theta[: weight.size].reshape(weight.shape)
            outputs = inputs @ matrix.T + theta[weight.size :]
            errors = self._errors(outputs, self._targets[drawn])
            norms = torch.linalg.vector_norm(errors, dim=1) * squares
            setting = self.settings[number]
            errors *= -torch.clamp(setting.clip / norms, max=1.0)[:, None]
            if gram is not None:
                of_pairs = (errors @ errors.T) * gram
                first = torch.from_numpy(
                    np.flatnonzero(np.diff(owners.numpy(), prepend=-1))
                )
                lengths = np.add.reduceat(of_pairs.sum(dim=1).numpy(), first.numpy())
                bounds = setting.bounds[owners[first]]
                cut = torch.clamp(
                    bounds / torch.from_numpy(lengths).clamp(min=1e-12).sqrt(), max=1.0
                )
                counts = torch.diff(first, append=torch.tensor([len(owners)]))
                errors *= torch.repeat_interleave(cut, counts)[:, None]
            found[place, : weight.size] = (errors.T @ inputs).reshape(-1)
            found[place, weight.size :] = errors.sum(dim=0)
        return found

    def _of_rows(self, drawn: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Return what all settings share that drew the same records.

        That is inputs, their norms with the bias's 1, owners, and products of records
        of one owner; None where no owner drew two.
        """
        inputs = self._inputs[drawn]
        squares = (inputs.square().sum(dim=1) + 1).sqrt()
        owners = self._owner_of[drawn]
        if len(torch.unique(owners)) == len(owners):
            return inputs, squares, owners, None
        gram = inputs @ inputs.T + 1
        gram *= owners[:, None] == owners[None, :]
        return inputs, squares, owners, gram

    @staticmethod
    def _errors(outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the losses' derivatives by the outputs, ``[n, classes]``."""
        if targets.is_floating_point():
            return 2 * (outputs - targets.reshape(outputs.shape))
        errors = torch.softmax(outputs, dim=1)
        errors[torch.arange(len(targets)), targets] -= 1
        return errors
