"""Import CrypTen, unchanged, in this one place; ``crypten_comparisons`` replaces parts.

CrypTen 0.4.1 converts models from ONNX in a module that imports
``torch.onnx.symbolic_registry``, which torch 2.9 and later no longer have, and onnx,
which takes 6 MiB. No model is converted here. So a module with the same names, and
nothing behind them, stands in ``sys.modules`` before CrypTen's first import.
"""

import sys
from types import ModuleType

_no_converter = ModuleType("crypten.nn.onnx_converter")
for _name in ("from_onnx", "from_pytorch", "from_tensorflow", "TF_AND_TF2ONNX"):
    setattr(_no_converter, _name, None)
sys.modules.setdefault(_no_converter.__name__, _no_converter)

import crypten  # noqa: E402 - the empty module must be in place first
from crypten.mpc.primitives import BinarySharedTensor  # noqa: E402

__all__ = ["BinarySharedTensor", "crypten"]
