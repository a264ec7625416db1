"""Additive sharing, salted commitments, signatures, and what a client sends to each server."""

from precad.common.share.additive import SEED_BYTES, mask, reconstruct, split
from precad.common.share.commitment import Commitment, SubmissionContext, commit, committer
from precad.common.share.signature import Signature, Signer, Verifier, signed_bytes
from precad.common.share.submission import Submission, SubmissionHeader, shard

__all__ = [
    "SEED_BYTES",
    "Commitment",
    "Signature",
    "Signer",
    "Submission",
    "SubmissionContext",
    "SubmissionHeader",
    "Verifier",
    "commit",
    "committer",
    "mask",
    "reconstruct",
    "shard",
    "signed_bytes",
    "split",
]
