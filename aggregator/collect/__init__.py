"""Receiving submissions: uploads in pieces, checked as they arrive, held until it closes."""

from precad.aggregator.collect.inbox import Inbox
from precad.aggregator.collect.upload import Upload

__all__ = ["Inbox", "Upload"]
