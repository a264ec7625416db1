"""The one place that imports CrypTen.

CrypTen 0.4.1 imports ``torch.onnx.symbolic_registry``, which torch 2.9 and later no longer have.
Only its ONNX import reads from it, and precad has no use for that: an empty module of that name
is enough, and has to stand in ``sys.modules`` before CrypTen's first import.
"""

import importlib.util
import sys
from types import ModuleType

_REMOVED = "torch.onnx.symbolic_registry"


def _missing(module: str) -> bool:
    return module not in sys.modules and importlib.util.find_spec(module) is None


if _missing(_REMOVED):
    sys.modules[_REMOVED] = ModuleType(_REMOVED)

import crypten  # noqa: E402 - the empty module must be in place first
import crypten.communicator as crypten_communicator  # noqa: E402
from crypten.mpc.primitives import ArithmeticSharedTensor, BinarySharedTensor  # noqa: E402

__all__ = ["ArithmeticSharedTensor", "BinarySharedTensor", "crypten", "crypten_communicator"]
