"""What one record's gradient is of: DP-CERT's objectives (Wu et al. 2024, Algorithm 2, Table 1).

A record's copies are made from that record, θ and noise of its own, and their gradients
are averaged before the record's clip. So whatever the objective, the clip bounds all
that a record can do, and the accountant's numbers are those of plain training.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import grad, vmap
from torch.nn import functional

from precad.common.errors import Misconfiguration
from precad.common.identifiers import Secret
from precad.common.ring import Keystream
from precad.common.task_schema import ObjectiveSection

Loss = Callable[[Tensor, Tensor], Tensor]
"""``loss(outputs, targets)`` as torch has it, for a batch of one record; its sum is
taken."""
Model = Callable[[Tensor], Tensor]
"""``[copies, …]`` to ``[copies, classes]``, at one θ."""

MOST_COPIES = 4
"""Of a record that go through the model at once; more are taken in pieces, in the same
memory. With five and more, a convolution's gradient has other last bits in another slot
of its chunk."""
_SURE = 1e-6
"""Nearest that an averaged probability comes to 0 or 1 before Φ⁻¹, which is infinite
there."""
_TINY = 1e-30


@dataclass(frozen=True, slots=True)
class Objective:
    """L' of Algorithm 2, line 5, whose gradient is one record's: of its copies' outputs.

    Works inside torch.func transforms, on one record at a time; ``base`` is the owner's
    loss of it.
    """

    section: ObjectiveSection
    base: Loss = functional.cross_entropy

    @property
    def noisy(self) -> int:
        """K: how many draws of noise one record needs."""
        return 0 if self.section.name == "plain" else self.section.copies

    @property
    def needs_labels(self) -> bool:
        """Whether it is made for classes: a column each in outputs, a whole label a target."""
        return self.section.name not in ("plain", "dp-gaussian")

    @property
    def _first(self) -> int:
        """Copies before the noisy ones; the stability term compares with the record itself."""
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
        """The record, where it counts, and its K noisy copies: ``[copies, …]``; constants of θ.

        ``randomness`` is standard normal, ``[K, …]``. For ``dp-smoothadv`` the noise is
        around x', which projected gradient ascent finds in the L2 ball (eq. 3, 4;
        Salman et al. 2019).
        """
        if not self.noisy:
            return x.unsqueeze(0)
        around = self.section.noise * randomness
        adversary = self.section.name == "dp-smoothadv"
        middle = (
            self._adversarial(
                model,
                x=x,
                y=y,
                around=around,
            )
            if adversary
            else x
        )
        noisy = middle.unsqueeze(0) + around
        return torch.cat([x.unsqueeze(0), noisy]) if self._first else noisy

    def of_outputs(self, outputs: Tensor, y: Tensor) -> Tensor:
        """L', the mean loss of the copies with the regulariser, from ``[copies, classes]``."""
        counted = (
            outputs
            if self.section.original or not self.noisy
            else outputs[-self.noisy :]
        )
        losses = vmap(lambda one: self.base(one.unsqueeze(0), y.unsqueeze(0)).sum())(
            counted
        )
        noisy = outputs[self._first :]
        weight = self.section.weight
        match self.section.name:
            case "dp-stability":  # eq. 5; the record's own term is zero
                term = divergence(outputs[:1], noisy).sum() / len(counted)
            case "dp-consistency":  # eq. 13
                mean = torch.softmax(noisy, dim=1).mean(dim=0, keepdim=True)
                term = divergence(mean.clamp_min(_TINY).log(), noisy).sum() / len(
                    counted
                )
            case "dp-macer":  # eq. 14
                probabilities = torch.softmax(noisy, dim=1).mean(dim=0)
                term = macer_hinge(probabilities, y, self.section.margin)
            case _:
                return losses.mean()
        return losses.mean() + weight * term

    def _adversarial(
        self,
        model: Model,
        *,
        x: Tensor,
        y: Tensor,
        around: Tensor,
    ) -> Tensor:
        """X' near x with a high −log of the mean probability of y over the noise (eq. 4)."""
        radius = self.section.attack_radius
        steps = self.section.attack_steps
        pieces = torch.split(around, MOST_COPIES)

        def logs_of(moved: Tensor, piece: Tensor) -> Tensor:
            logs = functional.log_softmax(model(moved.unsqueeze(0) + piece), dim=1)
            mine: Tensor = logs.gather(1, y.expand(len(logs), 1)).squeeze(1)
            return mine

        def slope(moved: Tensor) -> Tensor:
            if len(pieces) == 1:
                of_sum = grad(
                    lambda at: -torch.logsumexp(logs_of(at, pieces[0]), dim=0)
                )
                whole: Tensor = of_sum(moved)
                return whole
            # The gradient of a log of a sum: each copy's own, weighted by its part of
            # the sum.
            parts = torch.softmax(
                torch.cat([logs_of(moved, piece) for piece in pieces]), dim=0
            )
            found = torch.zeros_like(moved)
            for piece, part in zip(
                pieces, torch.split(parts, MOST_COPIES), strict=True
            ):
                found = found + grad(
                    lambda at, p=piece, w=part: -(w * logs_of(at, p)).sum()
                )(moved)
            return found

        moved = x
        for _ in range(steps):
            up = slope(moved)
            unit = up / up.square().sum().clamp_min(_TINY).sqrt()
            moved = moved + (2 * radius / steps) * unit
            away = moved - x
            length = away.square().sum().clamp_min(_TINY).sqrt()
            moved = x + away * torch.clamp(radius / length, max=1.0)
        return moved


def divergence(of: Tensor, against: Tensor) -> Tensor:
    """KL(softmax(of) ‖ softmax(against)), ``[rows]``: of logits ``[1, c]`` and ``[rows, c]``."""
    p = functional.log_softmax(of, dim=1)
    q = functional.log_softmax(against, dim=1)
    return (p.exp() * (p - q)).sum(dim=1)


def macer_hinge(probabilities: Tensor, label: Tensor, margin: float) -> Tensor:
    """max(0, γ − (Φ⁻¹(p_y) − Φ⁻¹(p_{ŷ≠y}))) of one record, DP-CERT eq. (14), with its mask.

    ``probabilities``, ``[classes]``, are averaged over noise; γ is the margin. The
    printed equation leaves out that it holds for right predictions only (MACER's own
    decomposition); of a wrong one it would push y and its rival, which the loss does
    already.
    """
    mine = torch.arange(len(probabilities), device=probabilities.device) == label
    p_true = torch.where(mine, probabilities, 0.0).sum()
    p_other = torch.where(mine, 0.0, probabilities).amax()
    sure = probabilities.new_tensor(_SURE)
    apart = torch.special.ndtri(
        torch.clamp(p_true, sure, 1 - sure)
    ) - torch.special.ndtri(torch.clamp(p_other, sure, 1 - sure))
    return torch.where(p_true > p_other, torch.clamp(margin - apart, min=0.0), 0.0)


def check_usable(
    objective: Objective,
    outputs: object,
    *,
    x: Tensor,
    y: Tensor,
) -> None:
    """Refuse records that the objective can't be of, by shapes and types alone.

    Raises Misconfiguration: inputs aren't real numbers, or it takes classes and there
    are none.
    """
    name = objective.section.name
    if objective.noisy and not x.is_floating_point():
        raise Misconfiguration(
            "objective.name",
            name,
            "adds noise to inputs, and these are whole numbers: use plain",
        )
    classes = isinstance(outputs, Tensor) and outputs.ndim == 2 and outputs.shape[1] > 1  # noqa: PLR2004
    if objective.needs_labels and not (
        classes and y.ndim == 1 and not y.is_floating_point()
    ):
        raise Misconfiguration(
            "objective.name",
            name,
            "is for classes: a whole label a record, and a model with a column for"
            " each; use dp-gaussian, which takes any loss",
        )


_BITS = 53
_HALF = 0.5


class Augmentation:
    """Standard normal numbers for K copies of any record, by its index; the same at every call.

    A record's numbers depend on the key and its index alone, so that two data sets that
    differ in one record train all others on the same copies. The key is a fresh one for
    each version; privacy doesn't rest on it.
    """

    def __init__(self, key: Secret, copies: int, shape: tuple[int, ...]) -> None:
        self._key = key
        self._shape = (copies, *shape)
        self._count = math.prod(self._shape)

    def of(self, indices: NDArray[np.int64], rows: int) -> Tensor:
        """``[rows, K, …] float32``: these records', then nobody's, with the same work for each."""
        if not self._count:
            # No copies, of any record: nothing is drawn for them.
            return torch.empty(rows, *self._shape)
        pairs = (self._count + 1) // 2
        words = np.empty((rows, 2 * pairs), np.uint64)
        nobody = range(-1, len(indices) - rows - 1, -1)
        for row, index in zip(words, [*indices.tolist(), *nobody], strict=True):
            stream = Keystream(self._key, "augmentation", index % 2**64)
            row[:] = stream.words(len(row)).view(np.uint64)
        # In (0, 1): Box and Muller's logarithm is finite.
        uniform = (
            (words >> np.uint64(64 - _BITS)).astype(np.float64) + _HALF
        ) * 2.0**-_BITS
        lengths = np.sqrt(-2 * np.log(uniform[:, :pairs]))
        angles = 2 * math.pi * uniform[:, pairs:]
        normal = np.concatenate(
            [lengths * np.cos(angles), lengths * np.sin(angles)], axis=1
        )
        found = torch.from_numpy(normal[:, : self._count].astype(np.float32))
        return found.reshape(rows, *self._shape)
