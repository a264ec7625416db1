"""Pages of loaded libraries that only their loading needed are let go.

Libraries are read while they are loaded: torch's a hundred MiB, of which a server's rounds need a
tenth. Those pages are unchanged copies of files that lie in the system's cache. The system would
take them where memory is short; here they go before a round's vectors come, and so don't add to the
most that the process ever has. What is used again is mapped again, without a read from the disk.
"""

import ctypes
import re
import sys
from pathlib import Path

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
    """From and to which address libraries are mapped with nothing changed.

    Args:
        smaps: as proc(5) describes /proc/pid/smaps.
    """
    found: list[tuple[int, int]] = []
    mapped: tuple[int, int] | None = None
    counted: dict[str, str] = {}
    for line in smaps.splitlines():
        if mapping := _MAPPING.fullmatch(line):
            start, end, allowed, path = mapping.groups()
            fixed = allowed[1] == "-" and allowed[3] == "p" and _LIBRARY.fullmatch(path)
            mapped, counted = (int(start, 16), int(end, 16)) if fixed else None, {}
        else:
            name, _, rest = line.partition(":")
            counted[name] = rest.strip()
            # The last line of each mapping. A count that isn't there isn't known to be none.
            unchanged = counted.get("Anonymous") == counted.get("Swap") == "0 kB"
            if name == "VmFlags" and mapped is not None and unchanged:
                found.append(mapped)
    return found
