"""Waiting for what a pipe brings, in a process with any number of open files.

``select.select`` refuses descriptors from 1024 on; a server with many owners, or a long run of
tests, has them.
"""

import selectors
from collections.abc import Collection


def readable_within(timeout_s: float | None, *descriptors: int) -> Collection[int]:
    """Those that can be read, or are at their end; empty after ``timeout_s`` seconds.

    Args:
        timeout_s: None waits without an end.
        descriptors: of files without a buffer of this process's own.
    """
    with selectors.DefaultSelector() as selector:
        for descriptor in descriptors:
            selector.register(descriptor, selectors.EVENT_READ)
        return [key.fd for key, _ in selector.select(timeout_s)]
