"""One of many clients in one event loop: its own certificate, channels and notices."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Iterable, Mapping
from typing import Any

import grpc.aio
import numpy as np
from numpy.typing import NDArray

from precad.common.errors import PeerViolation
from precad.common.identifiers import ClientId, Digest, Role
from precad.common.identity.credentials import Identity
from precad.common.identity.mutual_tls import dialling
from precad.common.identity.signatures import CertificateSigner
from precad.common.model import from_bytes, model_digest
from precad.common.ring import RingVector
from precad.common.submission import Submission, SubmissionContext, shard
from precad.common.task import Task
from precad.norm_check.submission_messages import body_is_wanted, upload_pieces
from precad.protos import precad_pb2 as pb
from precad.protos.precad_pb2_grpc import AggregationStub

CALL_TIMEOUT_S = 120.0
HELD = "held"
"""What ``send`` gives for a submission that the server keeps."""
SERVERS = (Role.SERVER_A, Role.SERVER_B)
Pair = tuple[Submission, Submission]


class LoadClient:
    """An enrolled client without torch, without threads and without retries.

    Args:
        task: the task.
        client: its name.
        addresses: of server A and server B.
        identity: its certificate and key; channels are never shared between clients.
    """

    def __init__(
        self,
        task: Task,
        client: ClientId,
        addresses: Mapping[Role, str],
        identity: Identity,
    ) -> None:
        self.task = task
        self.client = client
        self.signer = CertificateSigner(identity)
        self._channels = {
            role: grpc.aio.secure_channel(*dialling(addresses[role], identity, role))
            for role in SERVERS
        }
        self._stubs = {role: AggregationStub(self._channels[role]) for role in SERVERS}

    async def close(self) -> None:
        """End every call and both connections."""
        for channel in self._channels.values():
            await channel.close()

    async def enrol(self, records: int = 1) -> None:
        """Take part, at B and then at A. Raises grpc.RpcError."""
        request = pb.EnrolRequest(
            task_digest=self.task.digest.value,
            client=self.client.name,
            records=records,
            record_rate=self.task.privacy.record_rate,
        )
        for role in reversed(SERVERS):
            await self._stubs[role].Enrol(
                request, timeout=CALL_TIMEOUT_S, wait_for_ready=True
            )

    async def watch(self) -> AsyncIterator[pb.Notice]:
        """Server A's notices, until the training ends. Raises grpc.RpcError."""
        request = pb.WatchRequest(
            task_digest=self.task.digest.value, client=self.client.name
        )
        async for notice in self._stubs[Role.SERVER_A].Watch(
            request, wait_for_ready=True
        ):
            yield notice

    async def fetch_model(self, event: pb.RoundOpen) -> NDArray[np.float64]:
        """θ_t from A, ``[d] float64``, with the digest that A announced and B has.

        Raises:
            PeerViolation: the digests differ.
            grpc.RpcError: a server isn't there.
        """
        request = pb.ModelRequest(
            task_digest=self.task.digest.value, version=event.version
        )
        stubs = self._stubs
        at_b = await stubs[Role.SERVER_B].ModelDigest(request, timeout=CALL_TIMEOUT_S)
        stream = stubs[Role.SERVER_A].FetchModel(request, timeout=CALL_TIMEOUT_S)
        data = b"".join([piece.data async for piece in stream])
        theta = from_bytes(data, self.task.dimension)
        own = model_digest(
            self.task.digest, event.version, self.task.model.parameters, theta
        )
        if not own.value == event.model_digest == at_b.model_digest:
            raise PeerViolation(f"the digests of model {event.version} differ")
        return theta

    def prepare(self, event: pb.RoundOpen, x: RingVector) -> Pair:
        """Both submissions of ``x`` (``[d] int64``) for the open round, signed."""
        return shard(
            x,
            SubmissionContext(
                task=self.task.digest,
                version=event.version,
                attempt=event.attempt,
                client=self.client,
                model=Digest(event.model_digest),
            ),
            self.signer,
        )

    async def send(self, submission: Submission) -> str:
        """Upload it.

        Returns ``HELD``, the rejection's reason, or the status code's name.
        """
        begun: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        async def pieces() -> AsyncIterator[pb.SubmissionPiece]:
            messages = upload_pieces(submission)
            yield next(messages)
            if submission.body is not None and not body_is_wanted(
                await (await begun).initial_metadata()
            ):
                return
            for message in messages:
                yield message

        submit = self._stubs[submission.role].Submit
        begun.set_result(submit(pieces(), timeout=CALL_TIMEOUT_S))
        return await _answer(begun.result())

    async def send_pieces(
        self,
        role: Role,
        pieces: Iterable[pb.SubmissionPiece] | AsyncIterator[pb.SubmissionPiece],
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> str:
        """Upload whatever ``pieces`` are, at once; returns as ``send``."""
        return await _answer(self._stubs[role].Submit(pieces, timeout=timeout_s))  # type: ignore[arg-type]


async def _answer(call: Awaitable[pb.Receipt]) -> str:
    try:
        reply = await call
    except grpc.RpcError as error:
        return str(error.code().name)
    return reply.rejection or HELD
