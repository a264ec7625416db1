"""What a server asks of the dealer, as a protobuf message, and back."""

from precad.common.deal.request import DealRequest
from precad.common.identifiers import Digest
from precad.protos import precad_pb2 as pb


def deal_request_from_wire(message: pb.DealRequest) -> DealRequest:
    """What a server asks of the dealer. Raises Misconfiguration."""
    return DealRequest(
        task=Digest(message.task_digest),
        attempt=message.attempt,
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
        attempt=request.attempt,
        batch=request.batch,
        clients=request.clients,
        dimension=request.dimension,
        comparisons=request.comparisons,
        epoch=epoch,
    )
