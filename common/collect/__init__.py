"""Receiving submissions: uploads in pieces, checked as they arrive, held until the round closes."""

from precad.common.collect.held import Held
from precad.common.collect.inbox import Inbox
from precad.common.collect.upload import SubmissionHeader, Upload

__all__ = ["Held", "Inbox", "SubmissionHeader", "Upload"]
