"""The dealer's gRPC service: keys once per server, correction words per batch."""

import asyncio
import hmac
import logging
import secrets
from collections.abc import AsyncIterator

from precad.common.deal.dealer import DealerRole
from precad.common.deal.request import DealRequest
from precad.common.errors import AccessDenied, Misconfiguration, PeerUnavailable
from precad.common.identifiers import Digest, Role
from precad.common.identity.access import require
from precad.common.identity.credentials import Identity
from precad.common.ring import to_bytes
from precad.common.task import Task
from precad.common.wire.serving import PIECE_BYTES, Context, Refusing, check_task
from precad.protos import precad_pb2 as pb
from precad.protos.precad_pb2_grpc import DealingServicer

log = logging.getLogger("precad")


def request_from_wire(message: pb.DealRequest) -> DealRequest:
    """What a server asks of the dealer. Raises Misconfiguration."""
    return DealRequest(
        task=Digest(message.task_digest),
        attempt=message.attempt,
        batch=message.batch,
        clients=message.clients,
        dimension=message.dimension,
        comparisons=message.comparisons,
        nonces=message.nonces,
    )


class DealingService(DealingServicer):
    """Gives each server its own part, and never the other's. Sees no client data."""

    def __init__(self, task: Task, dealer: DealerRole, identity: Identity) -> None:
        self._task = task
        self._dealer = dealer
        self._identity = identity
        self._epoch = secrets.token_bytes(16)

    async def Join(  # noqa: N802 -- gRPC's name
        self, request: pb.JoinRequest, context: Context
    ) -> pb.JoinReply:
        """This server's own key for the task."""
        async with Refusing(context):
            role = self._server(context, request.role)
            check_task(self._task, request.task_digest)
        log.info("%s joined", role.value)
        return pb.JoinReply(
            key=self._dealer.key_for(role).reveal(),
            epoch=self._epoch,
            newest_attempt=self._dealer.newest_attempt,
        )

    async def Deal(  # noqa: N802
        self, request: pb.DealRequest, context: Context
    ) -> AsyncIterator[pb.DealPiece]:
        """This server's correction words."""
        async with Refusing(context):
            role = self._server(context, request.role)
            check_task(self._task, request.task_digest)
            if not hmac.compare_digest(request.epoch, self._epoch):
                raise PeerUnavailable("the dealer has restarted since; join again")
            d = self._task.dimension
            if request.dimension != d:
                raise Misconfiguration("dimension", request.dimension, f"this task has d = {d}")
            most = self._task.enrolment.clients
            each = 2 * self._task.projections + 1
            if request.clients > most or request.comparisons != request.clients * each:
                asked = (request.clients, request.comparisons)
                why = f"this task has at most {most} clients, with {each} comparisons each"
                raise Misconfiguration("clients, comparisons", asked, why)
            wanted = request_from_wire(request)
            words = await asyncio.to_thread(self._dealer.corrections, role, wanted)
        data = memoryview(to_bytes(words))
        for start in range(0, len(data), PIECE_BYTES):
            yield pb.DealPiece(words=bytes(data[start : start + PIECE_BYTES]))

    def _server(self, context: Context, claimed: str) -> Role:
        role = {r.value: r for r in (Role.SERVER_A, Role.SERVER_B)}.get(claimed)
        if role is None:
            raise AccessDenied(f"role {claimed!r} gets nothing here; only the two servers do")
        return require(context, self._identity, role).role
