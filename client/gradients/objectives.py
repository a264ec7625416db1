"""What one record's gradient is of: DP-CERT's objectives.

Wu et al. 2024, Algorithm 2 and Table 1. A record's copies are made from that record, θ
and noise of its own, and their gradients are averaged before the record's clip. So
whatever the objective, the clip bounds all that a record can do, and the accountant's
numbers are those of plain training.
"""

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from scipy.special import ndtri
from torch import Tensor, nn
from torch.func import grad, vmap
from torch.nn import functional

from precad.common import (
    Integers,
    Keystream,
    LossName,
    Misconfiguration,
    ObjectiveSection,
    Secret,
    Task,
    frozen_dataclass,
)

Loss = Callable[[Tensor, Tensor], Tensor]
"""``loss(outputs, targets)`` as torch has it, for a batch of one record; its sum is
taken."""
Model = Callable[[Tensor], Tensor]
"""``[copies, …]`` to ``[copies, classes]``, at one θ."""

_BY_NAME: dict[LossName, Loss] = {
    "cross-entropy": functional.cross_entropy,
    "squared-error": functional.mse_loss,
    "absolute-error": functional.l1_loss,
    "huber": functional.huber_loss,
}
_ELEMENTWISE = (
    functional.mse_loss,
    functional.l1_loss,
    functional.smooth_l1_loss,
    functional.huber_loss,
)
"""torch's losses that compare outputs with targets number by number."""
_ELEMENTWISE_MODULES = (nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss)
"""The same losses as layers."""


def loss_in(task: Task, own: Loss | None = None) -> Loss:
    """Return the owner's own loss, or the one that the task names."""
    return own or _BY_NAME[task.loss]


def compared(loss: Loss, outputs: Tensor, targets: Tensor) -> Tensor:
    """Return what a loss gives for outputs ``[n, …]`` and targets ``[n, …]``.

    A loss that compares number by number gets targets in the outputs' shape: of ``[n]``
    beside ``[n, 1]`` torch would make ``[n, n]``, and warn.
    """
    plain_loss = loss.func if isinstance(loss, partial) else loss
    if (
        (plain_loss in _ELEMENTWISE or isinstance(plain_loss, _ELEMENTWISE_MODULES))
        and isinstance(outputs, Tensor)
        and targets.numel() == outputs.numel()
    ):
        targets = targets.reshape(outputs.shape)
    return loss(outputs, targets)


def loss_of_record(loss: Loss, output: Tensor, target: Tensor) -> Tensor:
    """Return the loss of one record's output, a scalar."""
    return compared(loss, output.unsqueeze(0), target.unsqueeze(0)).sum()


MOST_COPIES = 4
"""Copies of a record that go through the model at once; more are taken in pieces, in
the same memory. With five and more, a convolution's gradient has other last bits in
another slot of its chunk."""
_SURE = 1e-6
"""Nearest that an averaged probability comes to 0 or 1 before Φ⁻¹, which is infinite
there."""
_TINY = 1e-30
"""Keeps logarithms and quotients of zero finite."""
_MATRIX = 2
"""Dimensions of outputs with one column for each class."""


@frozen_dataclass
class Objective:
    """L' of Algorithm 2, line 5, of one record's copies: its gradient is the record's.

    It works inside torch.func's transforms, on one record at a time. ``base`` is the
    owner's loss.
    """

    section: ObjectiveSection
    base: Loss = functional.cross_entropy
    class_weights: tuple[float, ...] | None = None
    """What L' and its gradient are multiplied by, for each class, before the clip."""

    @property
    def noisy(self) -> int:
        """Return K, how many noisy copies one record has."""
        return 0 if self.section.name == "plain" else self.section.copies

    @property
    def needs_labels(self) -> bool:
        """Return whether it is for classes alone.

        Outputs have one column for each class then, and a target is a whole label.
        """
        names = ("plain", "dp-gaussian")
        return self.section.name not in names or bool(self.class_weights)

    @property
    def _first(self) -> int:
        """Return how many copies stand before the noisy ones: 1 or 0.

        The stability term compares with the record itself, so it needs that one.
        """
        return int(
            self.section.original
            or self.noisy == 0
            or self.section.name == "dp-stability"
        )

    def copies(
        self,
        model: Model,
        *,
        x: Tensor,
        y: Tensor,
        randomness: Tensor,
    ) -> Tensor:
        """Return the record, where it counts, and its K noisy copies: ``[copies, …]``.

        They count as constants of θ. For ``dp-smoothadv`` the noise is around x', which
        projected gradient ascent finds in the L2 ball (eq. 3 and 4; Salman et al.
        2019).

        Args:
            model: the model at θ.
            x: the record's input, ``[…]``.
            y: its target.
            randomness: standard normal numbers, ``[K, …]``.
        """
        if not self.noisy:
            return x.unsqueeze(0)
        noise = self.section.noise * randomness
        centre = x
        if self.section.name == "dp-smoothadv":
            centre = self._adversarial(
                model,
                x=x,
                y=y,
                noise=noise,
            )
        noisy = centre.unsqueeze(0) + noise
        return torch.cat([x.unsqueeze(0), noisy]) if self._first else noisy

    def of_outputs(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return L', the copies' mean loss plus the weighted regulariser, a scalar.

        ``outputs`` are the model's for ``copies``, ``[copies, classes]``; ``y`` is the
        record's target.
        """
        counted = outputs
        if self.noisy and not self.section.original:
            counted = outputs[-self.noisy :]

        mean_loss = vmap(partial(loss_of_record, self.base, target=y))(counted).mean()
        noisy = outputs[self._first :]
        match self.section.name:
            case "dp-stability":  # eq. 5; the record's own term is zero
                distances = divergence(outputs[:1], noisy)
                term = distances.sum() / len(counted)
            case "dp-consistency":  # eq. 13
                mean = torch.softmax(noisy, dim=1).mean(dim=0, keepdim=True)
                distances = divergence(mean.clamp_min(_TINY).log(), noisy)
                term = distances.sum() / len(counted)
            case "dp-macer":  # eq. 14
                probabilities = torch.softmax(noisy, dim=1).mean(dim=0)
                term = macer_hinge(probabilities, y, self.section.margin)
            case _:
                return mean_loss
        return mean_loss + self.section.weight * term

    def _adversarial(
        self,
        model: Model,
        *,
        x: Tensor,
        y: Tensor,
        noise: Tensor,
    ) -> Tensor:
        """Return x' near x with a high −log of the mean probability of y (eq. 4).

        The mean is over the noise, ``[K, …]``; x' is shaped as x.
        """
        radius = self.section.attack_radius
        steps = self.section.attack_steps
        pieces = torch.split(noise, MOST_COPIES)

        def logs_of(moved: Tensor, piece: Tensor) -> Tensor:
            """Return log p(y) of ``moved`` with each noise of a piece, ``[noises]``."""
            logs = functional.log_softmax(model(moved.unsqueeze(0) + piece), dim=1)
            return logs.gather(1, y.expand(len(logs), 1)).squeeze(1)

        def loss_of_all(moved: Tensor) -> Tensor:
            return -torch.logsumexp(logs_of(moved, pieces[0]), dim=0)

        def loss_of_piece(moved: Tensor, piece: Tensor, weights: Tensor) -> Tensor:
            return -(weights * logs_of(moved, piece)).sum()

        def ascent(moved: Tensor) -> Tensor:
            """Return the loss's gradient at ``moved``, shaped as x."""
            if len(pieces) == 1:
                whole: Tensor = grad(loss_of_all)(moved)
                return whole
            # The gradient of a log of a sum: each copy's own, weighted by its part of
            # the sum.
            logs = torch.cat([logs_of(moved, piece) for piece in pieces])
            weights = torch.softmax(logs, dim=0)
            total = torch.zeros_like(moved)
            for piece, piece_weights in zip(
                pieces, torch.split(weights, MOST_COPIES), strict=True
            ):
                total = total + grad(loss_of_piece)(moved, piece, piece_weights)
            return total

        moved = x
        for _ in range(steps):
            slope = ascent(moved)
            direction = slope / slope.square().sum().clamp_min(_TINY).sqrt()
            moved = moved + (2 * radius / steps) * direction
            # Back into the ball around x.
            offset = moved - x
            length = offset.square().sum().clamp_min(_TINY).sqrt()
            moved = x + offset * torch.clamp(radius / length, max=1.0)
        return moved


def divergence(of: Tensor, against: Tensor) -> Tensor:
    """Return KL(softmax(of) ‖ softmax(against)) in nats, ``[rows]``.

    ``of`` are logits ``[1, classes]``, ``against`` logits ``[rows, classes]``.
    """
    log_p = functional.log_softmax(of, dim=1)
    log_q = functional.log_softmax(against, dim=1)
    return (log_p.exp() * (log_p - log_q)).sum(dim=1)


def macer_hinge(probabilities: Tensor, label: Tensor, margin: float) -> Tensor:
    """Return max(0, γ − (Φ⁻¹(p_y) − Φ⁻¹(p_{ŷ≠y}))) of one record, a scalar.

    DP-CERT, eq. (14), with a mask. The printed equation leaves out that it holds for
    right predictions only (MACER's own decomposition). Of a wrong one it would push y
    and its rival, which the loss does already, so it is 0 there.

    ``probabilities``, ``[classes]``, are averaged over noise; ``margin`` is γ.
    """
    is_label = torch.arange(len(probabilities), device=probabilities.device) == label
    p_label = torch.where(is_label, probabilities, 0.0).sum()
    p_rival = torch.where(is_label, 0.0, probabilities).amax()
    sure = probabilities.new_tensor(_SURE)
    label_quantile = torch.special.ndtri(torch.clamp(p_label, sure, 1 - sure))
    apart = label_quantile - torch.special.ndtri(torch.clamp(p_rival, sure, 1 - sure))
    hinge = torch.clamp(margin - apart, min=0.0)
    return torch.where(p_label > p_rival, hinge, 0.0)


def check_usable(
    objective: Objective,
    outputs: object,
    *,
    x: Tensor,
    y: Tensor,
) -> None:
    """Refuse records that an objective can't be of, by shapes and types alone.

    ``outputs`` are what the model gives for one record; ``x`` are inputs ``[n, …]`` and
    ``y`` targets ``[n, …]``.

    Raises Misconfiguration: the objective adds noise and inputs aren't real numbers, or
    it is for classes and there are none.
    """
    name = objective.section.name
    if objective.noisy and not x.is_floating_point():
        raise Misconfiguration(
            "objective.name",
            name,
            "adds noise to inputs, and these are whole numbers: use plain",
        )
    if not objective.needs_labels:
        return
    columns = 1
    if isinstance(outputs, Tensor) and outputs.ndim == _MATRIX:
        columns = outputs.shape[1]
    whole_labels = y.ndim == 1 and not y.is_floating_point()
    weights = objective.class_weights
    if weights and not (whole_labels and columns == len(weights)):
        raise Misconfiguration(
            "training.class_weights",
            weights,
            "go with a whole label a record and a model with a column for each class;"
            f" it has {columns}",
        )
    if not (columns > 1 and whole_labels):
        raise Misconfiguration(
            "objective.name",
            name,
            "is for classes: a whole label a record, and a model with a column for"
            " each; use dp-gaussian, which takes any loss",
        )


_BITS = 52
"""Bits of a random word that become a float64, which holds half of one beside them."""
_HALF = 0.5


def augmentation(
    key: Secret, shape: tuple[int, ...], indices: Integers, rows: int
) -> Tensor:
    """Return standard normal numbers for K copies of records, ``[rows, K, …] float32``.

    A record's numbers depend on the key and its index alone, so that two data sets that
    differ in one record train all others on the same copies. The key is a fresh one for
    each version; privacy doesn't rest on it. The rows after the records' are numbers of
    no record, which cost the same work.

    ``shape`` is K and the shape of one record's input, ``indices`` are the records'.
    """
    count = math.prod(shape)
    if not count:
        # No copies, of any record: nothing is drawn for them.
        return torch.empty(rows, *shape)
    words = np.empty((rows, count), np.uint64)
    padding = range(-1, len(indices) - rows - 1, -1)
    for row, index in zip(words, [*indices.tolist(), *padding], strict=True):
        stream = Keystream(key, "augmentation", index % 2**64)
        row[:] = stream.words(count).view(np.uint64)
    # Between 0 and 1, and neither of them: the quantile is finite.
    fractions = (words >> np.uint64(64 - _BITS)).astype(np.float64)
    normal = ndtri((fractions + _HALF) * 2.0**-_BITS)
    return torch.from_numpy(normal.astype(np.float32)).reshape(rows, *shape)
