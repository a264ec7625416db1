"""A submission as it crosses the network and lies on an owner's disk.

First comes its header (SubmissionHeader in protos/precad.proto), then its body in
pieces (SubmissionPiece). What is read is checked for its form alone: the server checks
signature, context and commitments when the submission comes in.
"""

from collections.abc import Iterable, Iterator

from google.protobuf.message import DecodeError

from precad.common import (
    MESSAGE_BYTES,
    SERVERS,
    Body,
    ClientId,
    Digest,
    Misconfiguration,
    RejectedSubmission,
    Rejection,
    Role,
    Secret,
    Signature,
    SignedHeader,
    Submission,
    SubmissionContext,
    in_pieces,
)
from precad.norm_check import AnySubmission, ProofHeader, ProofSubmission
from precad.protos import precad_pb2 as pb

BODY_WANTED = (("precad-body", "wanted"),)
"""Initial metadata with which a server says that it reads the body. A call that ends
before has none of it."""


def body_is_wanted(metadata: Iterable[tuple[str, str | bytes]] | None) -> bool:
    """Whether a call's initial metadata says that the server reads the body.

    If not, the call is over, and the server reads nothing more.
    """
    return BODY_WANTED[0] in {(key, value) for key, value in metadata or ()}


def header_to_wire(submission: AnySubmission) -> pb.SubmissionHeader:
    """Return the first message of an upload: all of a submission but the body.

    Seed and salt are empty for a server that gets none. Which digests it has depends on
    the task's check of norms.
    """
    header = submission.header
    context = submission.context
    message = pb.SubmissionHeader(
        task_digest=context.task.value,
        version=context.version,
        attempt=context.attempt,
        client=context.client.name,
        model_digest=context.model.value,
        nonce=context.nonce,
        signature=header.signature.value,
        certificates=header.signature.certificates,
        seed=b"" if submission.seed is None else submission.seed.reveal(),
        salt=b"" if submission.salt is None else submission.salt.reveal(),
    )
    if isinstance(header, SignedHeader):
        message.commitment_a = header.commitment_a.value
        message.commitment_b = header.commitment_b.value
        message.body_digest = header.body_digest.value
    else:
        message.body_digest = header.update_digest.value
        opening_a, opening_b = header.openings
        proof = pb.ProofHeader(
            opening_a=opening_a.value,
            opening_b=opening_b.value,
            commitment=header.commitment.value,
            bits_digest=header.bits_digest.value,
            proof_digest=header.proof_digest.value,
        )
        message.proof.CopyFrom(proof)
    return message


def header_from_wire(message: pb.SubmissionHeader, role: Role) -> AnySubmission:
    """Return the submission that the server ``role`` gets, without its body.

    The inverse of ``header_to_wire``. Only its form is checked. Raises
    RejectedSubmission: the message is malformed or unsigned.
    """
    try:
        context = SubmissionContext(
            task=Digest(message.task_digest),
            version=message.version,
            attempt=message.attempt,
            client=ClientId(message.client),
            model=Digest(message.model_digest),
            nonce=message.nonce,
        )
        body_digest = Digest(message.body_digest)
        if message.HasField("proof"):
            return _with_proof(message, role, context, body_digest)
        commitment_a = Digest(message.commitment_a)
        commitment_b = Digest(message.commitment_b)
    except Misconfiguration as error:
        raise RejectedSubmission(Rejection.MALFORMED, str(error)) from None
    header = SignedHeader(
        context=context,
        commitment_a=commitment_a,
        commitment_b=commitment_b,
        body_digest=body_digest,
        signature=_signature(message),
    )
    return Submission(
        header=header,
        role=role,
        seed=Secret(message.seed),
        salt=Secret(message.salt),
    )


def _with_proof(
    message: pb.SubmissionHeader,
    role: Role,
    context: SubmissionContext,
    update_digest: Digest,
) -> ProofSubmission:
    """Return a submission with a proof, for ``header_from_wire``.

    Who receives a seed is taken for the seed's holder; the receiver has to check
    whether it should be. Raises Misconfiguration: a field is malformed;
    RejectedSubmission: the header names the other check's commitments, or is unsigned.
    """
    if message.commitment_a or message.commitment_b:
        raise RejectedSubmission(
            Rejection.MALFORMED, "a header with a proof names masks' seeds"
        )
    proof = message.proof
    brings_seed = bool(message.seed)
    other_role = SERVERS[1 - SERVERS.index(role)]
    header = ProofHeader(
        context=context,
        openings=(Digest(proof.opening_a), Digest(proof.opening_b)),
        seed_holder=role if brings_seed else other_role,
        commitment=Digest(proof.commitment),
        update_digest=update_digest,
        bits_digest=Digest(proof.bits_digest),
        proof_digest=Digest(proof.proof_digest),
        signature=_signature(message),
    )
    return ProofSubmission(
        header=header,
        role=role,
        seed=Secret(message.seed) if brings_seed else None,
        salt=Secret(message.salt) if brings_seed else None,
    )


def _signature(message: pb.SubmissionHeader) -> Signature:
    """Return a header's signature. Raises RejectedSubmission: there is none."""
    if not message.signature and not message.certificates:
        raise RejectedSubmission(Rejection.BAD_SIGNATURE, "the submission isn't signed")
    return Signature(message.signature, tuple(message.certificates))


def header_from_bytes(data: bytes, role: Role) -> AnySubmission:
    """Return the submission, without its body: from its header's bytes.

    Raises RejectedSubmission: the bytes are no header's, malformed or unsigned.
    """
    try:
        message = pb.SubmissionHeader.FromString(data)
    except DecodeError:
        raise RejectedSubmission(
            Rejection.MALFORMED, "no submission's header"
        ) from None
    return header_from_wire(message, role)


def upload_pieces(submission: AnySubmission) -> Iterator[pb.SubmissionPiece]:
    """Yield an upload's messages: header, the body's prefix, its words in pieces.

    A submission without a body is one message. Raises BodyUnreadable, as
    ``body_messages``.
    """
    yield pb.SubmissionPiece(header=header_to_wire(submission))
    for piece in body_messages(submission.body):
        yield pb.SubmissionPiece(body=piece)


def body_messages(body: Body | None) -> Iterator[bytes]:
    """Yield what a body's messages hold, if there is one: its prefix, then its words.

    A message has at most ``MESSAGE_BYTES`` of the words. Raises BodyUnreadable: the
    body is gone or was changed.
    """
    if body is None:
        return
    yield body.prefix.reveal()
    for words in body.pieces():
        for piece in in_pieces(words, MESSAGE_BYTES):
            # The only copy of the words: protobuf takes nothing but bytes.
            yield bytes(piece)
