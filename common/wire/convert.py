"""Protobuf messages to this project's types and back."""

from precad.common.collect import SubmissionHeader
from precad.common.deal import DealRequest
from precad.common.errors import Misconfiguration, RejectedSubmission, Rejection, TaskMismatch
from precad.common.identifiers import ClientId, Digest, Role
from precad.common.link import Frame
from precad.common.secret import Secret
from precad.common.share import Commitment, Signature, Submission, SubmissionContext
from precad.common.task import Task
from precad.protos import precad_pb2 as pb


def check_task(task: Task, digest: bytes) -> None:
    """Refuse a message about another task. Raises TaskMismatch, with both digests."""
    if digest != task.digest.value:
        raise TaskMismatch(str(task.digest), digest[:64].hex() or "none")


def header_to_wire(submission: Submission) -> pb.SubmissionHeader:
    """The first piece of an upload."""
    context, signature = submission.context, submission.signature
    return pb.SubmissionHeader(
        task_digest=context.task.value,
        round=context.round,
        client=context.client.name,
        model_digest=context.model.value,
        nonce=context.nonce,
        salt=submission.salt.reveal(),
        other_commitment=submission.other_commitment.value,
        share_bytes=len(submission.share),
        signature=b"" if signature is None else signature.value,
        certificates=() if signature is None else signature.certificates,
    )


def header_from_wire(message: pb.SubmissionHeader) -> SubmissionHeader:
    """Inverse of ``header_to_wire``. Raises RejectedSubmission (malformed)."""
    try:
        context = SubmissionContext(
            Digest(message.task_digest),
            message.round,
            ClientId(message.client),
            Digest(message.model_digest),
            message.nonce,
        )
    except Misconfiguration as error:
        raise RejectedSubmission(Rejection.MALFORMED, str(error)) from None
    signature = None
    if message.signature or message.certificates:
        signature = Signature(message.signature, tuple(message.certificates))
    return SubmissionHeader(
        context,
        Secret(message.salt),
        Commitment(message.other_commitment),
        message.share_bytes,
        signature,
    )


def submission_from_wire(message: pb.SubmissionHeader, role: Role, share: Secret) -> Submission:
    """A whole submission from its header and share, as a client keeps it for a retry.

    Raises:
        RejectedSubmission: malformed.
    """
    header = header_from_wire(message)
    return Submission(
        header.context, role, header.salt, share, header.other_commitment, header.signature
    )


def frame_to_wire(frame: Frame) -> pb.LinkFrame:
    """One frame of the servers' link."""
    return pb.LinkFrame(
        task_digest=frame.task.value,
        round=frame.round,
        step=frame.step,
        sequence=frame.sequence,
        payload=frame.payload,
        last=frame.last,
    )


def frame_from_wire(message: pb.LinkFrame) -> Frame:
    """Inverse of ``frame_to_wire``. Raises Misconfiguration for a digest of the wrong length."""
    return Frame(
        Digest(message.task_digest),
        message.round,
        message.step,
        message.sequence,
        message.payload,
        message.last,
    )


def deal_request_from_wire(message: pb.DealRequest) -> DealRequest:
    """What a server asks of the dealer. Raises Misconfiguration."""
    return DealRequest(
        task=Digest(message.task_digest),
        round=message.round,
        batch=message.batch,
        clients=message.clients,
        dimension=message.dimension,
        comparisons=message.comparisons,
    )


def deal_request_to_wire(request: DealRequest, role: str, epoch: bytes) -> pb.DealRequest:
    """Inverse of ``deal_request_from_wire``, with who asks, and which start of the dealer."""
    return pb.DealRequest(
        task_digest=request.task.value,
        role=role,
        round=request.round,
        batch=request.batch,
        clients=request.clients,
        dimension=request.dimension,
        comparisons=request.comparisons,
        epoch=epoch,
    )
