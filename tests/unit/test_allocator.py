"""Freed buffers are kept: the next ones aren't fetched from the system page by page."""

import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys
from precad.common.allocator import keep_freed_buffers

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
        [sys.executable, "-c", PROGRAM, mode],
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
from precad.common.allocator import PIECES, give_back_freed, keep_freed_buffers

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
