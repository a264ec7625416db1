# Where each name of the package is at home: __init__.py reads this file.
# ruff: noqa: I001 -- one import a module.

from precad.norm_check.dealing import (
    Answer as Answer,
    BinaryTriple as BinaryTriple,
    DealRequest as DealRequest,
    DealerConversation as DealerConversation,
    Dealing as Dealing,
    DealtRandomness as DealtRandomness,
    SpentTriples as SpentTriples,
    SquareRequest as SquareRequest,
)
from precad.norm_check.norm_proof import (
    ProofWords as ProofWords,
    bit_challenges as bit_challenges,
    bits_of as bits_of,
)
from precad.norm_check.prime_field import (
    FieldKeystream as FieldKeystream,
    FieldVector as FieldVector,
    Group as Group,
    arithmetic as arithmetic,
    first_not_below as first_not_below,
    group_of as group_of,
    of_signed as of_signed,
    powers as powers,
    root_of_unity as root_of_unity,
)
from precad.norm_check.proof_submission import (
    AnySubmission as AnySubmission,
    ForProof as ForProof,
    ProofBodyHash as ProofBodyHash,
    ProofDraft as ProofDraft,
    ProofHeader as ProofHeader,
    ProofSubmission as ProofSubmission,
    Share as Share,
    body_hasher as body_hasher,
    body_layout as body_layout,
)
from precad.norm_check.submission_messages import (
    BODY_WANTED as BODY_WANTED,
    body_is_wanted as body_is_wanted,
    body_messages as body_messages,
    header_from_bytes as header_from_bytes,
    header_from_wire as header_from_wire,
    header_to_wire as header_to_wire,
    upload_pieces as upload_pieces,
)
