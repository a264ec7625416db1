"""The machine that figures were taken on."""

import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.rounds.flower.installed import version as flower_version
from precad import __version__
from precad.common.kernel import kernel_in_use

_PACKAGES = ("numpy", "torch", "crypten", "grpcio", "protobuf", "cryptography")


def hardware() -> dict[str, Any]:
    """Processor, cores that this process may use, memory, versions, and the kernel in use."""
    return {
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(
            os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1
        ),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "precad": __version__,
        **{package: version(package) for package in _PACKAGES},
        # The extra of the benchmark; its absence is said in the tables.
        "flwr": flower_version(),
        "kernel": kernel_in_use(),
    }


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
