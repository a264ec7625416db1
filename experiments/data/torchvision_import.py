"""The one place that imports torchvision.

Beside a CPU-only torch, torchvision can't load its compiled operators, and its import then
fails because it registers Python parts of two operators that nobody declared. Its data sets and
transforms need neither. So where they are missing, their schemas are declared first.
"""

from types import ModuleType
from typing import Any

import torch

_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
# Declarations live as long as their library object.
_declared: list[Any] = []


def torchvision_datasets() -> ModuleType:
    """The module ``torchvision.datasets``."""
    try:
        from torchvision import datasets  # noqa: PLC0415
    except RuntimeError:
        _declare_missing_operators()
        from torchvision import datasets  # noqa: PLC0415
    module: ModuleType = datasets
    return module


def _declare_missing_operators() -> None:
    library = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
    for name in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, name):
            library.define(name + _SCHEMA)  # type: ignore[no-untyped-call]
    _declared.append(library)
