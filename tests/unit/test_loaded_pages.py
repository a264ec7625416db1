"""Libraries' pages that only their loading needed don't count in a server's peak."""

import subprocess
import sys

import pytest

from precad.common.loaded_pages import unchanged_libraries


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


PROGRAM = """
import re
import numpy, cryptography.x509
import grpc
from precad.common.loaded_pages import let_go_of_loaded

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
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=60
    )
    before, after = (int(each) for each in done.stdout.split())
    assert after < before / 2, (before, after)
