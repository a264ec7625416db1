"""What is audited: this system, or one with a fault that an audit must find."""

import math
from enum import StrEnum

MODELS, ONE_SERVER, PRESENCE = "models", "one server", "presence"
"""Statements by who looks, and at what: records by the models, by one server; owners by both."""
RELEASES = 16
"""How often a curious server has a round released that draws noise anew."""
LOOSE = 8.0
"""How many times as long as stated an update may be where nobody stops it."""


class Build(StrEnum):
    """What runs."""

    SOUND = "sound"
    HALF_NOISE = "half-noise"
    """Both servers draw noise of half the standard deviation."""
    OTHER_SILENT = "other-silent"
    """Server A adds no noise: server B takes its own off and sees the sum."""
    REDRAWN = "redrawn"
    """Server A draws its noise anew when a round's release is tried again, which B brings about."""
    UNCLIPPED = "unclipped"
    """Records are clipped to eight times the clip that the task states."""
    UNCHECKED = "unchecked"
    """Nobody checks norms: owners submit eight times what the client clip allows."""


_NONE = 1e6
_LESS = {
    Build.HALF_NOISE: {MODELS: 2.0, ONE_SERVER: 2.0, PRESENCE: 2.0},
    Build.OTHER_SILENT: {MODELS: math.sqrt(2.0), ONE_SERVER: _NONE, PRESENCE: math.sqrt(2.0)},
    Build.REDRAWN: {ONE_SERVER: math.sqrt(RELEASES)},
    Build.UNCLIPPED: {MODELS: LOOSE, ONE_SERVER: LOOSE},
    Build.UNCHECKED: {PRESENCE: LOOSE},
}
OF_RECORDS = tuple(build for build in Build if build is not Build.UNCHECKED)
OF_PRESENCE = (Build.SOUND, Build.HALF_NOISE, Build.UNCHECKED)
"""What audits of records, and of owners' presence, can play."""


def less_noise(build: Build, view: str) -> float:
    """How many times less noise than stated hides a canary from this view, for its length."""
    return _LESS.get(build, {}).get(view, 1.0)
