"""What a process gives back to the system, and what it keeps."""

import subprocess
import sys

import pytest

from precad.common.process import unchanged_libraries

# --- libraries' pages that only their loading needed ---------------------------------------------


def mapping(
    start: int, allowed: str, path: str, *, anonymous: int | None = 0, swap: int | None = 0
) -> str:
    lines = [f"{start:x}-{start + 4096:x} {allowed} 00000000 08:01 7    {path}", "Rss:   4 kB"]
    lines += [] if anonymous is None else [f"Anonymous:     {anonymous} kB"]
    lines += [] if swap is None else [f"Swap:     {swap} kB"]
    return "\n".join([*lines, "VmFlags: rd mr mw me \n"])


def test_only_unchanged_pages_of_libraries_are_let_go() -> None:
    found = unchanged_libraries(
        mapping(0x10000, "r-xp", "/usr/lib/libc.so.6")
        + mapping(0x20000, "r--p", "/usr/lib/x/_core.cpython-311.so")
        # The loader wrote addresses there, and then made it read-only.
        + mapping(0x30000, "r--p", "/usr/lib/libc.so.6", anonymous=4)
        + mapping(0x40000, "r--p", "/usr/lib/libc.so.6", swap=4)
        + mapping(0x50000, "rw-p", "/usr/lib/libc.so.6")
        + mapping(0x60000, "r--s", "/usr/lib/libc.so.6")
        + mapping(0x70000, "r--p", "/var/lib/state.db")
        + mapping(0x80000, "r--p", "")
        + mapping(0x90000, "r-xp", "[vdso]")
        + mapping(0xA0000, "r-xp", "/usr/lib/libc.so.6 (deleted)")
        # A kernel that doesn't say.
        + mapping(0xB0000, "r-xp", "/usr/lib/libc.so.6", swap=None)
        + mapping(0xC0000, "r-xp", "/usr/lib/libc.so.6", anonymous=None, swap=None)
    )
    assert found == [(0x10000, 0x11000), (0x20000, 0x21000)]


LETS_GO = """
import re
import numpy, cryptography.x509
import grpc
from precad.common.process import let_go_of_loaded

def of_files():
    return int(re.search(r"RssFile:\\s+(\\d+)", open("/proc/self/status").read())[1])

before = of_files()
let_go_of_loaded()
after = of_files()
channel = grpc.insecure_channel("127.0.0.1:1")
channel.close()
assert numpy.arange(10).sum() == 45
print(before, after)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux alone is told")
def test_what_was_loaded_is_let_go_and_still_works() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LETS_GO], capture_output=True, text=True, check=True, timeout=60
    )
    before, after = (int(each) for each in done.stdout.split())
    assert after < before / 2, (before, after)


# --- freed buffers -------------------------------------------------------------------------------

WORKS = """
import resource, sys
from precad.common.process import keep_freed_buffers

if sys.argv[1] == "kept":
    keep_freed_buffers()

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def work():
    # The second keeps the first from lying at the heap's end.
    return bytearray(3 << 20), bytearray(5 << 20)

for _ in range(3):
    work()
before = faults()
for _ in range(20):
    work()
print(faults() - before)
"""


def faults(mode: str) -> int:
    done = subprocess.run(
        [sys.executable, "-c", WORKS, mode],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env={"PYTHONPATH": ":".join(sys.path), "MALLOC_MMAP_THRESHOLD_": "131072"},
    )
    return int(done.stdout)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc alone is told")
def test_kept_buffers_cost_no_page_faults() -> None:
    given_back, kept = faults("given back"), faults("kept")
    assert kept < given_back / 10, (kept, given_back)


VECTORS = """
import re
from precad.common.process import PIECES, give_back_freed, keep_freed_buffers

keep_freed_buffers(PIECES)

def anonymous():
    return int(re.search(r"RssAnon:\\s+(\\d+)", open("/proc/self/status").read())[1]) // 1024

at_first = anonymous()
vectors = [bytearray(8 << 20) for _ in range(4)]
# Every other one goes: what is left keeps the rest from lying at the heap's end.
pieces = [bytearray(512 << 10) for _ in range(64)]
held = anonymous()
del vectors[::2]
without_vectors = anonymous()
del pieces[::2]
give_back_freed()
print(held - at_first, without_vectors - at_first, anonymous() - at_first)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc alone is told")
def test_a_server_gives_vectors_back_at_once_and_pieces_when_told() -> None:
    done = subprocess.run(
        [sys.executable, "-c", VECTORS], capture_output=True, text=True, check=True, timeout=60
    )
    held, without_vectors, at_last = (int(each) for each in done.stdout.split())
    assert held >= 64, held
    assert without_vectors <= held - 16, (held, without_vectors)
    assert at_last <= held - 16 - 14, (held, without_vectors, at_last)
