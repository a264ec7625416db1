"""The Aggregation service on a server: decode, call the role, encode, map errors."""

import asyncio
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, closing
from typing import Any

import grpc.aio

from precad.aggregator.collect.upload import Upload
from precad.aggregator.rpc.limits import Call, Limits, OpenCalls, TransferSlots, in_time
from precad.aggregator.rpc.notices import (
    notice_of,
    opening_of,
    statement_of,
    word_of,
    word_room,
)
from precad.aggregator.training.connected_clients import OpenWatches
from precad.aggregator.training.model_store import StoredModel
from precad.aggregator.training.reconcile import give_back, lost_model
from precad.aggregator.training.session import Session
from precad.common.errors import (
    AccessDenied,
    Misconfiguration,
    RejectedSubmission,
    Rejection,
    TooManyCalls,
)
from precad.common.identifiers import ClientId, Role
from precad.common.identity.mutual_tls import WIRE_VERSION, check_own_key, require
from precad.common.identity.party_certificate import Principal
from precad.common.identity.signatures import certificates_of
from precad.common.model import from_bytes, most_bytes
from precad.common.roster import Enrolment
from precad.common.wire.serving import STREAMED_BYTES, Context, Refusing, check_task
from precad.norm_check.submission_messages import BODY_WANTED, header_from_wire
from precad.protos import precad_pb2 as pb
from precad.protos.precad_pb2_grpc import (
    AggregationServicer,
    add_AggregationServicer_to_server,
)

MAX_INSTANCE_BYTES = 32
_GIVEN_RATE = 1e6
"""Bytes a second of an owner that gives a model back, at least."""
_MODELS_FOR = (Role.CLIENT, Role.OPERATOR)


class AggregationService(AggregationServicer):
    """What data owners see of one server."""

    def __init__(self, session: Session, limits: Limits | None = None) -> None:
        self._session = session
        self.calls = OpenCalls(limits or Limits())
        self._upload_slots = TransferSlots()
        self._fetch_slots = TransferSlots.for_models()
        self._watches = OpenWatches(session.connected_clients.dismiss, self._came_twice)
        self._accounts = ThreadPoolExecutor(1, "accounts")
        self._giving_back = asyncio.Lock()
        self._gave_in_vain: dict[
            ClientId, float
        ] = {}  # until when others come first, loop's time
        self._room = word_room(session.identity.cert)

    def add_to(self, server: grpc.aio.Server) -> None:
        """Offer the service on a server that isn't started yet."""
        add_AggregationServicer_to_server(self, server)

    def _came_twice(self, client: ClientId) -> None:
        self._session.twice[client.name] += 1

    async def Describe(
        self, request: pb.DescribeRequest, context: Context
    ) -> pb.DescribeReply:
        """The task that this server runs, where it stands, and whether the caller is in it."""
        async with Refusing(context):
            caller = self._caller(context, Role.CLIENT, Role.OPERATOR)
        session = self._session
        task = self._session.task
        refusal = ""
        # Nothing of anybody else: who takes part is no client's business.
        client = ClientId(caller.name) if caller.role is Role.CLIENT else None
        if client is not None:
            refusal = await asyncio.to_thread(
                session.register.foresee, client, request.token
            )
        return pb.DescribeReply(
            role=session.role.value,
            task_digest=task.digest.value,
            canonical_task=task.canonical,
            clock_ms=time.time_ns() // 1_000_000,
            enrolling=not session.register.frozen,
            finished=session.finished,
            enrolled=client is not None and session.register.has(client),
            present=client is not None and self._watches.has(client),
            refusal=refusal,
            wire_version=WIRE_VERSION,
        )

    async def Enrol(self, request: pb.EnrolRequest, context: Context) -> pb.EnrolReply:
        """Take part."""
        async with Refusing(context):
            client = self._client(context, request)
            if self._session.finished and not self._session.register.has(client):
                remedy = (
                    "the training is finished, without it; ask the operator for the"
                    " next task"
                )
                raise Misconfiguration("client", client.name, remedy)
            claim = Enrolment(client, request.records, request.record_rate)
            await self._account(claim, request.token)
            # A claim is durable before it is confirmed; a slow disk must keep nobody
            # else waiting.
            enrolled = await asyncio.to_thread(
                self._session.register.enrol, claim, request.token
            )
            return pb.EnrolReply(enrolled=enrolled)

    async def _account(self, claim: Enrolment, token: str) -> None:
        """What rounds will ask of this rate; only clients with rates as new wait for it.

        Raises as ``Register.enrol``, and TooManyCalls: another one of this client's is
        computed.
        """
        register = self._session.register
        rate = claim.record_rate
        admitted = await asyncio.to_thread(register.admits, claim, token)
        if admitted and not register.cap.is_ready(rate):
            # In a thread of its own: the others keep their places for claims and
            # status.
            loop = asyncio.get_running_loop()
            caller = Principal.client(claim.client.name)
            with self.calls.one_more(caller, Call.CLAIM):
                await loop.run_in_executor(
                    self._accounts, register.cap.precompute, rate
                )

    async def Watch(
        self, request: pb.WatchRequest, context: Context
    ) -> AsyncIterator[pb.Notice]:
        """What happens, as far as this client may know it."""
        async with Refusing(context):
            client = self._client(context, request)
            instance = request.instance[:MAX_INSTANCE_BYTES]
            with (
                self.calls.one_more(Principal.client(client.name), Call.WATCH),
                self._watches.open(
                    str(context.peer()),
                    client,
                    instance,
                    lambda: self._still(context, client.name),
                ) as watch,
                self._session.connected_clients.watch(client),
            ):
                async for event in watch.follow(
                    self._session.event_log.follow(from_start=False)
                ):
                    word = await word_of(self._session, event, client)
                    first = self._session.register.serves_first(client)
                    yield notice_of(
                        event,
                        client,
                        word,
                        self._room,
                        serves_first=first,
                    )

    async def ModelDigest(
        self, request: pb.ModelRequest, context: Context
    ) -> pb.ModelDigestReply:
        """The digest of the model that a round starts from."""
        async with Refusing(context):
            caller = self._caller(context, *_MODELS_FOR)
            model = self._model(request)
            self._note_final(caller, model)
            return pb.ModelDigestReply(model_digest=model.digest.value)

    async def FetchModel(
        self, request: pb.ModelRequest, context: Context
    ) -> AsyncIterator[pb.ModelPiece]:
        """The model, in pieces."""
        async with Refusing(context):
            caller = self._caller(context, *_MODELS_FOR)
            slot = self._fetch_slots.one()
            with self.calls.one_more(caller, Call.FETCH), closing(slot):
                model = self._model(request)
                await slot.take()
                # Out of the system's cache: a thread for each piece would take longer.
                for piece in model.pieces(STREAMED_BYTES):
                    self._session.traffic[f"{self._session.role.value} to clients"] += (
                        len(piece)
                    )
                    slot.passed(len(piece))
                    with slot.waiting():
                        yield pb.ModelPiece(data=piece)
                self._note_final(caller, model)

    def _note_final(self, caller: Principal, model: StoredModel) -> None:
        """A client has what it came for: of one server the model, of the other its digest."""
        if (
            caller.role is Role.CLIENT
            and model.version >= self._session.task.training.rounds
        ):
            self._session.connected_clients.has_final_model(ClientId(caller.name))

    def _model(self, request: pb.ModelRequest) -> StoredModel:
        """A model that both servers hold. Raises TaskMismatch, NotOnOffer."""
        check_task(self._session.task, request.task_digest)
        return self._session.offered(request.version)

    async def Submit(
        self, request_iterator: AsyncIterator[pb.SubmissionPiece], context: Context
    ) -> pb.Receipt:
        """A submission, in pieces.

        Rejections are answers, not errors: they are expected.
        """
        async with Refusing(context):
            # Before the header says who it is about: a caller that sends none is
            # counted too.
            caller = self._caller(context, Role.CLIENT)
            try:
                with self.calls.one_more(caller, Call.SUBMIT):
                    await self._receive(request_iterator, context)
            except RejectedSubmission as rejected:
                return pb.Receipt(
                    rejection=rejected.reason.value, detail=rejected.detail
                )
        return pb.Receipt()

    async def Opening(self, request: pb.OpeningRequest, context: Context) -> pb.Signed:
        """What the open attempt has cost this client so far."""
        async with Refusing(context):
            client = self._client(context, request)
            return await asyncio.to_thread(
                opening_of, self._session, client, request.attempt
            )

    async def Statement(
        self, request: pb.StatementRequest, context: Context
    ) -> pb.Signed:
        """This client's account, as this server has it."""
        async with Refusing(context):
            client = self._client(context, request)
            shown = request.shown if request.HasField("shown") else None
            opening = request.opening if request.HasField("opening") else None
            return await asyncio.to_thread(
                statement_of,
                self._session,
                client,
                shown=shown,
                opening=opening,
            )

    async def GiveBack(
        self, request_iterator: AsyncIterator[pb.GivenPiece], context: Context
    ) -> pb.GivenReply:
        """A model that this server has signed and lost; no byte of one that it has is taken."""
        session = self._session
        size = most_bytes(self._session.task.dimension)
        # A model is long, and one owner's is taken at a time: who dawdles is cut off.
        idle_s = self.calls.limits.idle_s
        total_s = min(session.task.deadlines.collect, idle_s + size / _GIVEN_RATE)
        async with Refusing(context):
            with self.calls.one_more(self._caller(context, Role.CLIENT), Call.FETCH):
                pieces = in_time(request_iterator, idle_s=idle_s, total_s=total_s)
                first = await anext(pieces, pb.GivenPiece())
                client = self._client(context, first)
                shown = first.statement.SerializeToString()
                lost = await asyncio.to_thread(lost_model, session, client, shown)
                if lost is not None:
                    async with self._in_turn(client, total_s):
                        data = bytearray(first.data)
                        async for piece in pieces:
                            data += piece.data
                            if len(data) > size:
                                said = "is longer than this task's"
                                raise Misconfiguration("model", len(data), said)
                        theta = from_bytes(data, session.task.dimension)
                        await asyncio.to_thread(
                            give_back,
                            session,
                            client,
                            lost,
                            theta,
                        )
        return pb.GivenReply()

    @asynccontextmanager
    async def _in_turn(self, client: ClientId, total_s: float) -> AsyncIterator[None]:
        """One owner gives a model back at a time; after a vain try the others come first.

        Raises TooManyCalls: another one does, or may for so long.
        """
        time_of_loop = asyncio.get_running_loop().time
        if self._giving_back.locked() or time_of_loop() < self._gave_in_vain.get(
            client, 0.0
        ):
            raise TooManyCalls(
                "other owners may give a model back now; come again later"
            )
        async with self._giving_back:
            try:
                yield
            except BaseException:
                self._gave_in_vain[client] = time_of_loop() + total_s
                raise

    async def _receive(
        self, request_iterator: AsyncIterator[pb.SubmissionPiece], context: Context
    ) -> None:
        """One upload, from its header to its end.

        Raises RejectedSubmission, AccessDenied.
        """
        slot = self._upload_slots.one()
        total_s = self._session.task.deadlines.collect
        inbox = self._session.inbox
        idle_s = self.calls.limits.idle_s
        pieces = in_time(
            request_iterator,
            idle_s=idle_s,
            total_s=total_s,
            slot=slot,
        )
        upload: Upload | None = None
        link = f"clients to {self._session.role.value}"
        try:
            async for piece in pieces:
                kind = piece.WhichOneof("piece")
                if upload is None:
                    if kind != "header":
                        text = "the first piece must be the header"
                        raise RejectedSubmission(Rejection.MALFORMED, text)
                    upload = self._start(piece.header, context)
                    self._session.traffic[link] += len(piece.header.seed)
                    if upload.awaits_body:
                        await slot.take(total_s)
                        # For this the client waits before it sends b.
                        await context.send_initial_metadata(BODY_WANTED)
                elif kind == "body":
                    self._session.traffic[link] += len(piece.body)
                    slot.passed(len(piece.body))
                    upload.add(piece.body)
                else:
                    text = "only the body's bytes may follow the header"
                    raise RejectedSubmission(Rejection.MALFORMED, text)
            if upload is None:
                raise RejectedSubmission(Rejection.TRUNCATED, "the upload is empty")
            upload.finish()
        except RejectedSubmission as rejected:
            if upload is not None:
                inbox.refuse(
                    upload.context.attempt, upload.context.client, rejected.reason
                )
            raise
        finally:
            slot.close()
            if upload is not None and not upload.complete:
                # The stream broke off or was refused: nothing of it is kept.
                upload.abandon()
                inbox.refuse(
                    upload.context.attempt, upload.context.client, Rejection.TRUNCATED
                )

    def _start(self, header: pb.SubmissionHeader, context: Context) -> Upload:
        client = self._still(context, header.client)
        try:
            checked = header_from_wire(header, self._session.role)
            check_own_key(context, certificates_of(checked.header.signature)[0])
        except RejectedSubmission as rejected:
            self._session.inbox.refuse(header.attempt, client, rejected.reason)
            raise
        return self._session.inbox.start(checked)

    def _caller(self, context: Context, *roles: Role) -> Principal:
        """Who begins a call. Raises AccessDenied."""
        caller = require(context, self._session.identity, *roles)
        if caller.role is Role.CLIENT:
            self._session.connected_clients.heard_from(ClientId(caller.name))
        return caller

    def _client(self, context: Context, request: Any) -> ClientId:
        """The client that begins a call about this task.

        Raises AccessDenied, TaskMismatch.
        """
        self._caller(context, Role.CLIENT)
        client = self._still(context, request.client)
        check_task(self._session.task, request.task_digest)
        return client

    def _still(self, context: Context, name: str) -> ClientId:
        """The client that calls; its certificate must be its own.

        Raises AccessDenied.
        """
        client = ClientId(name)
        named = Principal.client(client.name)
        principal = require(context, self._session.identity, Role.CLIENT)
        if principal != named:
            raise AccessDenied(
                f"the certificate is {principal}'s, the call is {named}'s"
            )
        return client
