"""ResNet-18 (He et al. 2016) with group normalisation in place of batch normalisation.

Batch norm mixes the records of a batch, so that no record has a gradient of its own;
groups of channels are normalised within a record (Wu and He 2018).
"""

import torch
from torch import nn
from torch.nn import functional

from precad.simulation.datasets import DataSet
from research.models import MODELS

GROUPS = 32
WIDTHS = (64, 128, 256, 512)


class Block(nn.Module):
    """Two convolutions, and what came in added."""

    def __init__(self, enter: int, leave: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(enter, leave, 3, stride, padding=1, bias=False)
        self.first_norm = nn.GroupNorm(GROUPS, leave)
        self.second = nn.Conv2d(leave, leave, 3, padding=1, bias=False)
        self.second_norm = nn.GroupNorm(GROUPS, leave)
        self.short = (
            nn.Identity()
            if enter == leave and stride == 1
            else nn.Sequential(
                nn.Conv2d(enter, leave, 1, stride, bias=False),
                nn.GroupNorm(GROUPS, leave),
            )
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """As He et al. have it."""
        inner = functional.relu(self.first_norm(self.first(x)))
        inner = self.second_norm(self.second(inner))
        return functional.relu(inner + self.short(x))


@MODELS.register("resnet18")
def resnet18(data: DataSet) -> nn.Module:
    """For 32×32 images: a first convolution of 3×3 and no pooling after it."""
    layers: list[nn.Module] = [
        nn.Conv2d(data.train_x.shape[1], WIDTHS[0], 3, padding=1, bias=False),
        nn.GroupNorm(GROUPS, WIDTHS[0]),
        nn.ReLU(),
    ]
    enter = WIDTHS[0]
    for place, width in enumerate(WIDTHS):
        layers += [Block(enter, width, 1 if place == 0 else 2), Block(width, width, 1)]
        enter = width
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(enter, data.classes)]
    return nn.Sequential(*layers)
