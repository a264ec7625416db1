"""Which buffers of freed memory are kept for the next ones, where the C library can be told so.

glibc gives every buffer above 128 KiB back to the system when it is freed, and gets zeroed pages
for the next one: with pieces of 512 KiB that costs as much time as what is done with them. With
whole vectors it costs little, and what is kept of them is memory that nothing uses.
"""

import ctypes
import sys

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
"""glibc's names in malloc.h."""
LARGEST = 32 << 20
"""The most that glibc allows."""
PIECES = 1 << 20
"""For a server: the pieces of bodies, and no vector of a large model."""
_KEPT = 8
"""How many of the largest stay at a heap's end, at most 64 MiB."""
_HEAPS = 2
"""A heap for each of many threads would keep a multiple."""


def keep_freed_buffers(largest: int = LARGEST) -> None:
    """For the rest of this process; does nothing where the C library isn't glibc.

    Args:
        largest: bytes; larger buffers are given back when they are freed.
    """
    mallopt = _of_glibc("mallopt")
    if mallopt is None:
        return
    mallopt.argtypes = (ctypes.c_int, ctypes.c_int)
    mallopt(_M_MMAP_THRESHOLD, largest)
    mallopt(_M_TRIM_THRESHOLD, min(_KEPT * largest, 2 * LARGEST))
    mallopt(_M_ARENA_MAX, _HEAPS)


def give_back_freed() -> None:
    """Give all freed memory back now: when what follows needs other buffers than what was."""
    trim = _of_glibc("malloc_trim")
    if trim is not None:
        trim.argtypes = (ctypes.c_size_t,)
        trim(0)


def _of_glibc(name: str) -> "ctypes._NamedFuncPointer | None":
    if not sys.platform.startswith("linux"):
        return None
    try:
        found: ctypes._NamedFuncPointer = getattr(ctypes.CDLL(None), name)
    except (OSError, AttributeError):
        return None
    return found
