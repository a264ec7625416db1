"""The second tier: minutes and real processes; see ``make soak``."""

from tests.faults.conftest import forks, play

__all__ = ["forks", "play"]
