"""Which freed buffers are kept for the next ones, where the C library can be told so.

glibc gives every buffer above 128 KiB back to the system when it is freed, and gets zeroed pages
for the next one: with pieces of a MiB that costs as much time as what is done with them. With
whole vectors it costs little, and what is kept of them is memory that nothing uses.
"""

import ctypes
import sys

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
