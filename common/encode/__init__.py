"""Fixed point: float64 vectors to ring elements and back, and the clips that fit it."""

from precad.common.encode.clip import (
    CLIENT_MARGIN,
    RECORD_MARGIN,
    clip_record_adaptively,
    clip_record_norm,
    clip_update,
)
from precad.common.encode.fixed_point import decode, encode

__all__ = [
    "CLIENT_MARGIN",
    "RECORD_MARGIN",
    "clip_record_adaptively",
    "clip_record_norm",
    "clip_update",
    "decode",
    "encode",
]
