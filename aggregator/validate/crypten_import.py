"""The one place that imports CrypTen.

CrypTen 0.4.1 converts models from ONNX in a module that imports ``torch.onnx.symbolic_registry``,
which torch 2.9 and later no longer have, and onnx, which takes 6 MiB. No model is converted here:
a module with that one's names and nothing behind them stands in ``sys.modules`` before CrypTen's
first import.
"""

import sys
from types import ModuleType

_CONVERTER = "crypten.nn.onnx_converter"


def _no_converter() -> ModuleType:
    module = ModuleType(_CONVERTER)
    for name in ("from_onnx", "from_pytorch", "from_tensorflow", "TF_AND_TF2ONNX"):
        setattr(module, name, None)
    return module


sys.modules.setdefault(_CONVERTER, _no_converter())

import crypten  # noqa: E402 - the empty module must be in place first
import crypten.communicator as crypten_communicator  # noqa: E402
from crypten.mpc.primitives import ArithmeticSharedTensor, BinarySharedTensor  # noqa: E402

__all__ = ["ArithmeticSharedTensor", "BinarySharedTensor", "crypten", "crypten_communicator"]
