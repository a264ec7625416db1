"""Waiting for a condition: the one place where tests pass real time.

A verdict never depends on how fast a machine is. A test says what it waits for; when
that never comes, one generous deadline ends it, and the error says what was awaited and
how things stood.
"""

import selectors
import threading
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

DEADLINE_S = 240.0  # Nothing here takes a tenth of it on a quiet machine
POLL_S = (
    0.03  # Above what servers let an operator ask in the long run: fifty times a second
)

Found = TypeVar("Found")


def until(
    ready: Callable[[], Found],
    what: str | Callable[[], str] = "it",
    *,
    poll_s: float = POLL_S,
) -> Found:
    """The first true answer of ``ready``.

    Where it never comes, the error says ``what``; called then, where it can be, as logs
    are read.
    """
    deadline = time.monotonic() + DEADLINE_S
    while not (found := ready()):
        if time.monotonic() > deadline:
            raise AssertionError(f"never came: {what() if callable(what) else what}")
        time.sleep(poll_s)
    return found


@contextmanager
def beside(*runs: Callable[[threading.Event], object]) -> Iterator[None]:
    """In threads of their own until the block ends, when the event is set; their errors count."""
    over = threading.Event()
    with ThreadPoolExecutor(len(runs)) as threads:
        running = [threads.submit(run, over) for run in runs]
        try:
            yield
        finally:
            over.set()
        for each in running:
            each.result()


def readable_within(timeout_s: float | None, *descriptors: int) -> Collection[int]:
    """The descriptors with data or at their end, of files without a buffer in this process."""
    with selectors.DefaultSelector() as selector:
        for descriptor in descriptors:
            selector.register(descriptor, selectors.EVENT_READ)
        return [key.fd for key, _ in selector.select(timeout_s)]
