"""Buffers of freed memory are kept for the next ones, where the C library can be told so.

glibc gives every buffer above 128 KiB back to the system when it is freed, and gets zeroed pages
for the next one: with pieces of 512 KiB that costs as much time as what is done with them.
"""

import ctypes
import sys

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
"""glibc's names in malloc.h."""
_FROM_THE_HEAP = 32 << 20
"""Buffers of up to 32 MiB, the most that glibc allows, come from its heap."""
_KEPT = 64 << 20
"""Bytes that stay at a heap's end."""
_HEAPS = 2
"""A heap for each of many threads would keep a multiple."""


def keep_freed_buffers() -> None:
    """For the rest of this process; does nothing where the C library isn't glibc."""
    if not sys.platform.startswith("linux"):
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    mallopt.argtypes = (ctypes.c_int, ctypes.c_int)
    mallopt(_M_MMAP_THRESHOLD, _FROM_THE_HEAP)
    mallopt(_M_TRIM_THRESHOLD, _KEPT)
    mallopt(_M_ARENA_MAX, _HEAPS)
