"""What a result was measured on."""

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from precad import __version__

_PACKAGES = ("numpy", "scipy", "torch", "scikit-learn", "dp-accounting")


def environment(device: str) -> dict[str, Any]:
    """Versions and hardware, as plain values.

    A processor's name may be a family's. The widest instructions that torch uses there
    decide the last bits too: wider ones add in another order.
    """
    on_cpu = device == "cpu"
    return {
        "device": _processor() if on_cpu else _accelerator(device),
        **({"instructions": torch.backends.cpu.get_cpu_capability()} if on_cpu else {}),
        "cores": os.cpu_count(),
        "versions": {
            "precad": __version__,
            "python": platform.python_version(),
            **{name: _version(name) for name in _PACKAGES},
        },
    }


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _processor() -> str:
    """The processor's name, as Linux gives it."""
    file = Path("/proc/cpuinfo")
    lines = file.read_text("utf-8").splitlines() if file.is_file() else []
    names = [
        line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")
    ]
    return names[0] if names else platform.processor()


def _accelerator(device: str) -> str:
    name: str = torch.cuda.get_device_name(device)
    return name
