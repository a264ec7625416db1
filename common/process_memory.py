"""Memory that a process keeps or gives back: freed buffers, and pages of loaded libraries."""

import ctypes
import re
import sys
from pathlib import Path

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
"""glibc's names in malloc.h."""
LARGEST = 32 << 20
"""The most that glibc allows."""
PIECES = 2 << 20
"""For a server: the pieces of bodies with their messages, and no vector of a large model."""
_HEAPS = 2
"""A heap for each of many threads would keep a multiple."""


def keep_freed_buffers(largest: int = LARGEST) -> None:
    """For the rest of this process; larger ones are given back at once, ``largest`` in bytes."""
    _tell("mallopt", _M_MMAP_THRESHOLD, largest)
    # What stays at a heap's end.
    _tell("mallopt", _M_TRIM_THRESHOLD, min(8 * largest, 64 << 20))
    _tell("mallopt", _M_ARENA_MAX, _HEAPS)


def give_back_freed() -> None:
    """Give all freed memory back now: before much of another kind is asked for."""
    _tell("malloc_trim", 0)


def _tell(name: str, *values: int) -> None:
    """Does nothing where the C library isn't glibc."""
    if sys.platform.startswith("linux") and (told := getattr(ctypes.CDLL(None), name, None)):
        told(*(ctypes.c_long(value) for value in values))


_MADV_DONTNEED = 4
_MAPPING = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (\S{4}) \S+ \S+ \d+\s*(.*)")
_LIBRARY = re.compile(r"/.*\.so(\.[0-9.]+)?")


def let_go_of_loaded() -> None:
    """Unmap for now what is unchanged of libraries' pages; does nothing but on Linux.

    A page that was changed, such as an address that the loader wrote, has no other copy: mappings
    with any such page, in memory or in swap, are left as they are, and so are writable ones.
    """
    if not sys.platform.startswith("linux"):
        return
    try:
        told = Path("/proc/self/smaps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return
    advise = ctypes.CDLL(None).madvise
    for start, end in unchanged_libraries(told):
        # Where it is refused, as for locked pages, nothing is lost.
        advise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), _MADV_DONTNEED)


def unchanged_libraries(smaps: str) -> list[tuple[int, int]]:
    """From and to which address libraries are mapped with nothing changed, by /proc/pid/smaps."""
    found = []
    for block in re.split(r"^(?=[0-9a-f]+-)", smaps, flags=re.MULTILINE):
        if mapping := _MAPPING.match(block):
            start, end, allowed, path = mapping.groups()
            fixed = allowed[1] == "-" and allowed[3] == "p" and _LIBRARY.fullmatch(path)
            # A count that isn't there isn't known to be none.
            counted = dict(re.findall(r"^(\w+): +(.*)$", block, flags=re.MULTILINE))
            if fixed and counted.get("Anonymous") == counted.get("Swap") == "0 kB":
                found.append((int(start, 16), int(end, 16)))
    return found
