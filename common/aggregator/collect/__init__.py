"""Receiving submissions: uploads in pieces, checked as they arrive, held until it closes."""

from precad.common.aggregator.collect.inbox import Inbox
from precad.common.aggregator.collect.upload import Upload

__all__ = ["Inbox", "Upload"]
