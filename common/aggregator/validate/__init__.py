"""Norm validation over Z_2^64 that can't be forged: a range test, then the exact norm."""

from precad.common.aggregator.validate.batch import (
    comparisons_per_client,
    deal_request,
    validate,
)

__all__ = ["comparisons_per_client", "deal_request", "validate"]
