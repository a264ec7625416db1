"""Correlated randomness: what the dealer gives, and what each server makes of it."""

from precad.common.deal.dealer import DealerRole
from precad.common.deal.randomness import BinaryTriple, DealtRandomness
from precad.common.deal.request import DealRequest
from precad.common.deal.spent import MemorySpentTriples, SpentTriples

__all__ = [
    "BinaryTriple",
    "DealRequest",
    "DealerRole",
    "DealtRandomness",
    "MemorySpentTriples",
    "SpentTriples",
]
