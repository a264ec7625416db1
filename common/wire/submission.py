"""A submission's header as a protobuf message, and back."""

from precad.common.errors import Misconfiguration, RejectedSubmission, Rejection
from precad.common.identifiers import ClientId, Digest, Role
from precad.common.secret import Secret
from precad.common.share.commitment import Commitment, SubmissionContext, commit
from precad.common.share.signature import Signature
from precad.common.share.submission import Submission, SubmissionHeader
from precad.protos import precad_pb2 as pb


def header_to_wire(submission: Submission) -> pb.SubmissionHeader:
    """The first piece of an upload."""
    context, signature = submission.context, submission.signature
    return pb.SubmissionHeader(
        task_digest=context.task.value,
        attempt=context.attempt,
        client=context.client.name,
        model_digest=context.model.value,
        nonce=context.nonce,
        salt=submission.salt.reveal(),
        other_commitment=submission.other_commitment.value,
        share_bytes=len(submission.share_data()),
        signature=signature.value,
        certificates=signature.certificates,
    )


def header_from_wire(message: pb.SubmissionHeader) -> SubmissionHeader:
    """Inverse of ``header_to_wire``. Raises RejectedSubmission (malformed, unsigned)."""
    try:
        context = SubmissionContext(
            Digest(message.task_digest),
            message.attempt,
            ClientId(message.client),
            Digest(message.model_digest),
            message.nonce,
        )
    except Misconfiguration as error:
        raise RejectedSubmission(Rejection.MALFORMED, str(error)) from None
    if not message.signature and not message.certificates:
        raise RejectedSubmission(Rejection.BAD_SIGNATURE, "the submission isn't signed")
    return SubmissionHeader(
        context,
        Secret(message.salt),
        Commitment(message.other_commitment),
        message.share_bytes,
        Signature(message.signature, tuple(message.certificates)),
    )


def submission_from_wire(message: pb.SubmissionHeader, role: Role, share: Secret) -> Submission:
    """A whole submission from its header and share, as a client keeps it for a retry.

    Raises:
        RejectedSubmission: malformed or unsigned.
    """
    header = header_from_wire(message)
    own = commit(header.context, role, header.salt, share.reveal())
    return Submission(
        header.context, role, header.salt, share, own, header.other_commitment, header.signature
    )
