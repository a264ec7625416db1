"""Resident memory of a process on this machine, from Linux's /proc."""

from pathlib import Path


def resident_mib(pid: int) -> float:
    """Memory that the process holds now, in MiB."""
    return _status_mib(pid, "VmRSS")


def peak_resident_mib(pid: int) -> float:
    """Most memory that the process held since it began, or since ``forget_peak``, in MiB."""
    return _status_mib(pid, "VmHWM")


def file_resident_mib(pid: int) -> float:
    """Unchanged pages of files, libraries above all, that the process has in memory, in MiB."""
    return _status_mib(pid, "RssFile")


def forget_peak(pid: int) -> None:
    """Let the peak begin anew at what the process holds now."""
    Path(f"/proc/{pid}/clear_refs").write_text("5", encoding="ascii")


def open_files(pid: int) -> int:
    """Descriptors that the process has open."""
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


def _status_mib(pid: int, field: str) -> float:
    for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
        if line.startswith(f"{field}:"):
            return round(int(line.split()[1]) / 1024, 1)
    raise ValueError(
        f"/proc/{pid}/status has no {field}: not Linux, or the process is gone"
    )
