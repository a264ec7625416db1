"""Processor time and peak memory of processes of this machine, from outside; Linux."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from precad.common.errors import PeerUnavailable

_SCHEDULED = 2
"""CPUCLOCK_SCHED: all threads' time in user and kernel mode, ended threads' too."""


@dataclass(frozen=True, slots=True)
class Reading:
    """When it was taken, and each process's processor time until then."""

    at_s: float
    cpu_s: Mapping[str, float]


def read(processes: Mapping[str, int]) -> Reading:
    """Read the processes' clocks now.

    Args:
        processes: process identifiers by name; a process's own children count with it.

    Raises:
        PeerUnavailable: one of them has ended.
    """
    return Reading(
        time.monotonic(),
        {name: sum(map(_cpu_s, family(pid))) for name, pid in processes.items()},
    )


def peak_mib(processes: Mapping[str, int]) -> dict[str, float]:
    """Most memory that each held at once since it began (VmHWM), its children's added, in MiB."""
    return {
        name: round(sum(map(_peak_kib, family(pid))) / 1024, 1)
        for name, pid in processes.items()
    }


def _cpu_s(pid: int) -> float:
    # As clock_getcpuclockid(3) makes it: nanoseconds, where /proc/…/stat counts in 10
    # ms.
    try:
        return time.clock_gettime((~pid << 3) | _SCHEDULED)
    except OSError:
        raise PeerUnavailable(
            f"process {pid}, which was to be measured, has ended"
        ) from None


def _peak_kib(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1])
    raise PeerUnavailable(f"process {pid}, which was to be measured, has ended")


def family(pid: int) -> list[int]:
    """The process and its descendants that run now."""
    found = [pid]
    try:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            for child in (thread / "children").read_text(encoding="ascii").split():
                found += family(int(child))
    except OSError:
        # A thread or child that ended between two looks.
        return found
    return found
