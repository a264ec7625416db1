"""Which records gave no gradient: for the owner alone.

That one exists is what differential privacy hides, so it stands in no log that others may see, in
no message and in no exit code.
"""

import logging
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from precad.common.durable import PRIVATE_MODE

log = logging.getLogger("precad.private")


class PrivateLog:
    """One line for each attempt, whether a record failed or not: attempt, count and indices.

    Args:
        path: readable by this user only; without one, lines go to the logger ``precad.private`` at
            debug level.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def note(self, attempt: int, failed: Sequence[int]) -> None:
        """Write the line. Never raises, and waits for no disk: both would show outside."""
        line = f"attempt {attempt}: {len(failed)} records without a gradient {list(failed)}"
        if self._path is None:
            log.debug("%s", line)
            return
        with suppress(OSError):
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, PRIVATE_MODE)
            with os.fdopen(descriptor, "a", encoding="utf-8") as file:
                file.write(f"{line}\n")
