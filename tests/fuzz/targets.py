"""Every parser of bytes from outside, as a function of bytes that raises PrecadError alone.

A target has seeds: well-formed inputs, from which both hypothesis (tests/property) and the
coverage-guided run (run.py beside this file) start. ``check`` is what holds for every input.
"""

from collections.abc import Sequence
from functools import cache

from tests.fuzz import calls, files, owners, peers
from tests.fuzz.target import Target

TARGETS: dict[str, Target] = calls.TARGETS | peers.TARGETS | owners.TARGETS | files.TARGETS


@cache
def seeds_of(name: str) -> Sequence[bytes]:
    """A target's seeds, the same throughout the process."""
    return TARGETS[name].seeds()
