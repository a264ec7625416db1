"""Additive sharing, salted commitments, and what a client sends to each server."""

from precad.common.share.additive import SEED_BYTES, mask, reconstruct, split
from precad.common.share.commitment import Commitment, SubmissionContext, commit, committer
from precad.common.share.submission import Submission, shard

__all__ = [
    "SEED_BYTES",
    "Commitment",
    "Submission",
    "SubmissionContext",
    "commit",
    "committer",
    "mask",
    "reconstruct",
    "shard",
    "split",
]
