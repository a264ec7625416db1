"""Linear models' trainings beside each other, by products of matrices alone.

For `default_settings.py`: what `precad simulate --try` trains for any model
(simulation/search.py), many times as fast, on the same samples and noise. A record's
gradient is the outer product of its error and its input, so its norm is a product of
two norms, and that of an owner's sum follows from products of records.
"""

import numpy as np
import torch
from torch import Tensor

from precad.common.arrays import Floats, Integers
from precad.simulation.search import SideBySide


class LinearSideBySide(SideBySide):
    """As ``SideBySide``, of a model of one layer whose inputs are ``[n, features]``.

    Targets are labels, or numbers under the mean squared error.
    """

    def _sums(self, settings: Integers, rows: Integers) -> Floats:
        """Return the sum of owners' clipped updates for each setting."""
        found = np.zeros(self._thetas.shape)
        products: dict[bytes, tuple[Tensor, Tensor, Tensor | None]] = {}
        for number in range(len(found)):
            drawn = rows[settings == number]
            if not len(drawn):
                continue
            key = drawn.tobytes()
            if key not in products:
                products[key] = self._of_rows(drawn)
            errors, inputs = self._clipped_errors(number, drawn, products[key])
            matrix = errors.T @ inputs
            found[number] = torch.cat([matrix.reshape(-1), errors.sum(dim=0)]).numpy()
        return found

    def _clipped_errors(
        self,
        number: int,
        drawn: Integers,
        products: tuple[Tensor, Tensor, Tensor | None],
    ) -> tuple[Tensor, Tensor]:
        """Return minus the errors that count, ``[n, classes]``, and the inputs.

        Each is clipped for its record and its owner. ``products`` are ``_of_rows``.
        """
        inputs, lengths, gram = products
        weight, _ = self._gradients.parameters
        theta = torch.from_numpy(self._thetas[number]).float()
        matrix = theta[: weight.size].reshape(weight.shape)
        outputs = inputs @ matrix.T + theta[weight.size :]
        errors = _errors(outputs, self._records.targets[drawn])
        norms = torch.linalg.vector_norm(errors, dim=1) * lengths
        clip = float(self._numbers["clip"][number, 0])
        errors *= -torch.clamp(clip / norms, max=1.0)[:, None]
        if gram is not None:
            owners = self._owner_of[drawn]
            first = np.flatnonzero(np.diff(owners, prepend=-1))
            pairs = ((errors @ errors.T) * gram).sum(dim=1).numpy()
            squares = np.maximum(np.add.reduceat(pairs, first), 1e-12)
            bounds = self._numbers["bounds"][number][owners[first]]
            cut = np.minimum(bounds / np.sqrt(squares), 1.0)
            each = np.repeat(cut, np.diff(first, append=len(owners)))
            errors *= torch.from_numpy(each.astype(np.float32))[:, None]
        return errors, inputs

    def _of_rows(self, drawn: Integers) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return what all settings share that drew the same records.

        That is inputs, their norms with the bias's 1, and products of records of one
        owner; None where no owner drew two.
        """
        inputs = self._records.inputs[drawn]
        lengths = (inputs.square().sum(dim=1) + 1).sqrt()
        owners = torch.from_numpy(self._owner_of[drawn])
        if len(torch.unique(owners)) == len(owners):
            return inputs, lengths, None
        gram = inputs @ inputs.T + 1
        gram *= owners[:, None] == owners[None, :]
        return inputs, lengths, gram


def _errors(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the losses' derivatives by the outputs, ``[n, classes]``."""
    if targets.is_floating_point():
        return 2 * (outputs - targets.reshape(outputs.shape))
    errors = torch.softmax(outputs, dim=1)
    errors[torch.arange(len(targets)), targets] -= 1
    return errors
