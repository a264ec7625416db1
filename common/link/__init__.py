"""The servers' link: frames in order over a replaceable transport."""

from precad.common.link.frame import SETUP_ATTEMPT, Frame, FrameTransport
from precad.common.link.memory import memory_pair
from precad.common.link.peer import PeerLink

__all__ = ["SETUP_ATTEMPT", "Frame", "FrameTransport", "PeerLink", "memory_pair"]
