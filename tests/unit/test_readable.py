"""A pipe whose number is beyond what ``select.select`` takes."""

import fcntl
import os

from precad.common.aggregator.service.descriptors import allow_descriptors
from precad.common.readable import readable_within


def test_a_pipe_beyond_the_1024th_descriptor_is_waited_for() -> None:
    allow_descriptors(1100)
    low, writes = os.pipe()
    reads = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, 1050)
    try:
        assert list(readable_within(0.0, reads)) == []
        os.write(writes, b"x")
        assert list(readable_within(None, reads)) == [reads]
    finally:
        for number in (low, reads, writes):
            os.close(number)
