"""A submission as protobuf messages, and back."""

from collections.abc import Iterable, Iterator

from google.protobuf.message import DecodeError

from precad.common.errors import Misconfiguration, RejectedSubmission, Rejection
from precad.common.identifiers import ClientId, Digest, Role
from precad.common.secret import Secret
from precad.common.share.header import NormWords, Signature, SignedHeader, SubmissionContext
from precad.common.share.submission import Submission
from precad.protos import precad_pb2 as pb

PIECE_BYTES = 1 << 18
"""256 KiB of a body in one message."""
BODY_WANTED = (("precad-body", "wanted"),)
"""B's initial metadata when it reads the body. A call that ends before has none of it."""


def body_is_wanted(metadata: Iterable[tuple[str, str | bytes]] | None) -> bool:
    """Whether a call's initial metadata says so: else it is over, and nothing more is read."""
    return BODY_WANTED[0] in {(key, value) for key, value in metadata or ()}


def header_to_wire(submission: Submission) -> pb.SubmissionHeader:
    """The first piece of an upload: all but the body."""
    header, context = submission.header, submission.context
    word_a, word_b = header.words or (None, None)
    return pb.SubmissionHeader(
        task_digest=context.task.value,
        version=context.version,
        attempt=context.attempt,
        client=context.client.name,
        model_digest=context.model.value,
        nonce=context.nonce,
        commitment_a=header.commitment_a.value,
        commitment_b=header.commitment_b.value,
        body_digest=header.body_digest.value,
        signature=header.signature.value,
        certificates=header.signature.certificates,
        seed=submission.seed.reveal(),
        salt=submission.salt.reveal(),
        word_a=word_a,
        word_b=word_b,
    )


def header_from_wire(message: pb.SubmissionHeader, role: Role) -> Submission:
    """Inverse of ``header_to_wire``: what ``role`` gets, without the body.

    Raises RejectedSubmission: malformed or unsigned.
    """
    try:
        context = SubmissionContext(
            Digest(message.task_digest),
            message.version,
            message.attempt,
            ClientId(message.client),
            Digest(message.model_digest),
            message.nonce,
        )
        commitment_a, commitment_b = Digest(message.commitment_a), Digest(message.commitment_b)
        body_digest = Digest(message.body_digest)
    except Misconfiguration as error:
        raise RejectedSubmission(Rejection.MALFORMED, str(error)) from None
    if not message.signature and not message.certificates:
        raise RejectedSubmission(Rejection.BAD_SIGNATURE, "the submission isn't signed")
    signature = Signature(message.signature, tuple(message.certificates))
    words = _words_from_wire(message)
    header = SignedHeader(context, commitment_a, commitment_b, body_digest, signature, words)
    return Submission(header, role, Secret(message.seed), Secret(message.salt))


def header_to_bytes(submission: Submission) -> bytes:
    """Return the header's message, as an owner keeps it."""
    data: bytes = header_to_wire(submission).SerializeToString()
    return data


def header_from_bytes(data: bytes, role: Role) -> Submission:
    """Inverse of ``header_to_bytes``. Raises RejectedSubmission."""
    try:
        message = pb.SubmissionHeader.FromString(data)
    except DecodeError:
        raise RejectedSubmission(Rejection.MALFORMED, "no submission's header") from None
    return header_from_wire(message, role)


def _words_from_wire(message: pb.SubmissionHeader) -> NormWords | None:
    if message.HasField("word_a") != message.HasField("word_b"):
        raise RejectedSubmission(Rejection.MALFORMED, "one word of the norm came without the other")
    return (message.word_a, message.word_b) if message.HasField("word_a") else None


def upload_pieces(submission: Submission) -> Iterator[pb.SubmissionPiece]:
    """An upload's messages: the header, then salt_h, then b in pieces."""
    yield pb.SubmissionPiece(header=header_to_wire(submission))
    if submission.body is None:
        return
    yield pb.SubmissionPiece(body=submission.body.salt.reveal())
    for words in submission.body.pieces():
        view = memoryview(words)
        for start in range(0, len(view), PIECE_BYTES):
            # The one copy: protobuf takes bytes alone.
            yield pb.SubmissionPiece(body=bytes(view[start : start + PIECE_BYTES]))
