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
