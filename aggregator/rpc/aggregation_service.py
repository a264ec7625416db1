"""The Aggregation service on a server: what data owners call.

Each call is decoded, checked against the caller's certificate, handed to the server's
session, and answered; ``refusing`` turns precad's errors into gRPC's status codes.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, closing
from typing import Protocol

import grpc.aio

from precad.aggregator.collect import Upload
from precad.aggregator.rpc import (
    IDLE_S,
    MODEL_GRACE_S,
    MODELS_AT_ONCE,
    TransferSlot,
    TransferSlots,
    in_time,
    notice_of,
    opening_of,
    statement_of,
    word_of,
    word_room,
)
from precad.aggregator.training import (
    OpenWatches,
    Session,
    StoredModel,
    give_back,
    lost_model,
)
from precad.common import (
    AccessDenied,
    ClientId,
    Enrolment,
    Misconfiguration,
    NotOnOffer,
    RejectedSubmission,
    Rejection,
    Role,
    TooManyCalls,
    most_bytes,
)
from precad.common.identity import (
    WIRE_VERSION,
    Principal,
    certificates_of,
    check_own_key,
    require,
)
from precad.common.model import from_bytes
from precad.common.wire import (
    STREAMED_BYTES,
    Call,
    Context,
    OpenCalls,
    check_task,
    refusing,
)
from precad.norm_check import BODY_WANTED, header_from_wire
from precad.protos import precad_pb2 as pb
from precad.protos.precad_pb2_grpc import (
    AggregationServicer,
    add_AggregationServicer_to_server,
)

MAX_INSTANCE_BYTES = 32
"""Bytes that are kept of the random name by which a client's process watches."""
_LEAST_RATE_GIVEN_BACK = 1e6
"""Bytes a second, at least, of an owner that gives a model back."""


class _ClientRequest(Protocol):
    """A message in which a client names itself and the task."""

    client: str
    task_digest: bytes


class AggregationService(AggregationServicer):
    """What data owners see of one server.

    Methods that gRPC calls have gRPC's names. A call ends with AccessDenied where the
    caller's certificate isn't of a role that may make it, or isn't of the client whom
    the message names; with TaskMismatch where the message is about another task; with
    TooManyCalls where the caller has too many calls of that kind open.
    """

    def __init__(self, session: Session, idle_s: float = IDLE_S) -> None:
        self._session = session
        self.calls = OpenCalls()
        self.idle_s = idle_s
        """Longest wait for an upload's next piece, in seconds."""
        self._upload_slots = TransferSlots()
        self._fetch_slots = TransferSlots(MODELS_AT_ONCE, MODEL_GRACE_S)
        self._watches = OpenWatches(session.connected_clients.dismiss, session.twice)
        self._accounts = ThreadPoolExecutor(1, "accounts")
        """The one thread that computes accounts of new rates."""
        self._giving_back = asyncio.Lock()
        """Held while an owner gives a model back."""
        self._others_first_until: dict[ClientId, float] = {}
        """When each owner that gave a model back in vain may try again, by the loop's
        clock."""
        self._word_room = word_room(session.identity.cert)

    def add_to(self, server: grpc.aio.Server) -> None:
        """Offer the service on a server that isn't started yet."""
        add_AggregationServicer_to_server(self, server)

    async def Describe(
        self, request: pb.DescribeRequest, context: Context
    ) -> pb.DescribeReply:
        """Return the server's task, where it stands, and whether the caller is in it.

        A client hears of itself why an enrolment would be refused, too. Operators may
        call it as well.
        """
        async with refusing(context):
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
        """Enrol the calling client, and return how many clients are enrolled.

        The call ends as ``Register.enrol`` raises, and with Misconfiguration where the
        training is finished.
        """
        async with refusing(context):
            client = self._client(context, request)
            if self._session.finished and not self._session.register.has(client):
                raise Misconfiguration(
                    "client",
                    client.name,
                    "the training is finished, without it; ask the operator for the"
                    " next task",
                )
            claim = Enrolment(client, request.records, request.record_rate)
            await self._precompute_account(claim, request.token)
            # A claim is durable before it is confirmed; a slow disk must keep nobody
            # else waiting.
            enrolled = await asyncio.to_thread(
                self._session.register.enrol, claim, request.token
            )
            return pb.EnrolReply(enrolled=enrolled)

    async def _precompute_account(self, claim: Enrolment, token: str) -> None:
        """Compute what rounds will ask of a claim's rate, for ``Enrol``.

        Only clients whose rates are new wait for it.

        Raises as ``Register.enrol``, and TooManyCalls: an account of another claim of
        this client is being computed.
        """
        register = self._session.register
        rate = claim.record_rate
        admitted = await asyncio.to_thread(register.admits, claim, token)
        if admitted and not register.cap.is_ready(rate):
            # In a thread of its own: the common threads stay free for others' claims
            # and for status.
            loop = asyncio.get_running_loop()
            caller = Principal.client(claim.client.name)
            with self.calls.one_more(caller, Call.CLAIM):
                await loop.run_in_executor(
                    self._accounts, register.cap.precompute, rate
                )

    async def Watch(
        self, request: pb.WatchRequest, context: Context
    ) -> AsyncIterator[pb.Notice]:
        """Yield a notice of each event, with what this client may know of it.

        The stream ends with the training, or once the client isn't allowed any more. It
        ends with NameInUse where another process of this client watches.
        """
        async with refusing(context):
            client = self._client(context, request)
            instance = request.instance[:MAX_INSTANCE_BYTES]
            with (
                self.calls.one_more(Principal.client(client.name), Call.WATCH),
                self._watches.open(
                    str(context.peer()),
                    client,
                    instance,
                    lambda: self._certified(context, client.name),
                ) as watch,
                self._session.connected_clients.watch(client),
            ):
                async for event in watch.follow(
                    self._session.event_log.follow(from_start=False)
                ):
                    word = await word_of(self._session, event, client)
                    serves_first = self._session.register.serves_first(client)
                    yield notice_of(
                        event,
                        client,
                        word,
                        self._word_room,
                        serves_first=serves_first,
                    )

    async def ModelDigest(
        self, request: pb.ModelRequest, context: Context
    ) -> pb.ModelDigestReply:
        """Return the digest of the model that a round starts from.

        The call ends with NotOnOffer where both servers don't hold that model yet.
        Operators may call it as well.
        """
        async with refusing(context):
            caller = self._caller(context, Role.CLIENT, Role.OPERATOR)
            model = self._offered_model(request)
            self._note_final_model(caller, model)
            return pb.ModelDigestReply(model_digest=model.digest.value)

    async def FetchModel(
        self, request: pb.ModelRequest, context: Context
    ) -> AsyncIterator[pb.ModelPiece]:
        """Yield the model that a round starts from, in pieces of ``STREAMED_BYTES``.

        Or the step that leads to it. The call ends with NotOnOffer where both servers
        don't hold that model yet, or this one has no step to it.
        Operators may call it as well.
        """
        async with refusing(context):
            caller = self._caller(context, Role.CLIENT, Role.OPERATOR)
            slot = TransferSlot(self._fetch_slots)
            with self.calls.one_more(caller, Call.FETCH), closing(slot):
                model = self._offered_model(request)
                step = model.step if request.step else None
                if request.step and step is None:
                    raise NotOnOffer(f"no step leads to model {model.version} here")
                await slot.take()
                link = f"{self._session.role.value} to clients"
                # Out of the system's cache: a thread for each piece would take longer.
                source = None if step is None else step.stored
                for piece in model.pieces(STREAMED_BYTES, source):
                    self._session.traffic[link] += len(piece)
                    slot.passed(len(piece))
                    with slot.waiting():
                        yield pb.ModelPiece(data=piece)
                self._note_final_model(caller, model)

    def _note_final_model(self, caller: Principal, model: StoredModel) -> None:
        """Note that a client has got what it came for, if ``model`` is the final one.

        That is the model itself of one server, and its digest of the other.
        """
        if (
            caller.role is Role.CLIENT
            and model.version >= self._session.task.mechanism.releases
        ):
            self._session.connected_clients.has_final_model(ClientId(caller.name))

    def _offered_model(self, request: pb.ModelRequest) -> StoredModel:
        """Return a model that both servers hold. Raises TaskMismatch, NotOnOffer."""
        check_task(self._session.task, request.task_digest)
        return self._session.offered(request.version)

    async def Submit(
        self, request_iterator: AsyncIterator[pb.SubmissionPiece], context: Context
    ) -> pb.Receipt:
        """Take a submission, in pieces: its header, then its body if it has one here.

        Return an empty receipt, or one with the reason why the submission doesn't
        count. Rejections are answers, not errors: they are expected.
        """
        async with refusing(context):
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
        """Return, signed, what the open attempt has cost this client so far.

        The call ends with NotOnOffer where the attempt isn't open.
        """
        async with refusing(context):
            client = self._client(context, request)
            return await asyncio.to_thread(
                opening_of, self._session, client, request.attempt
            )

    async def Statement(
        self, request: pb.StatementRequest, context: Context
    ) -> pb.Signed:
        """Return, signed, this client's account as this server has it.

        What the client shows of this server's earlier signatures counts. The call ends
        in ``NOT_NOW`` where this server didn't sign what is shown.
        """
        async with refusing(context):
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
        """Take a model that this server has signed and lost, in pieces.

        The first piece holds this server's statement on the model. No byte of a model
        that this server has is taken. The call ends with TooManyCalls where it is other
        owners' turn, and with Misconfiguration where the model is too long.
        """
        session = self._session
        size = most_bytes(self._session.task.dimension)
        # A model is long, and one owner's is taken at a time: who dawdles is cut off.
        idle_s = self.idle_s
        total_s = min(
            session.task.deadlines.collect, idle_s + size / _LEAST_RATE_GIVEN_BACK
        )
        async with refusing(context):
            with self.calls.one_more(self._caller(context, Role.CLIENT), Call.FETCH):
                pieces = in_time(request_iterator, idle_s=idle_s, total_s=total_s)
                first = await anext(pieces, pb.GivenPiece())
                client = self._client(context, first)
                shown = first.statement.SerializeToString()
                lost = await asyncio.to_thread(lost_model, session, client, shown)
                if lost is not None:
                    async with self._turn_to_give_back(client, total_s):
                        data = bytearray(first.data)
                        async for piece in pieces:
                            data += piece.data
                            if len(data) > size:
                                raise Misconfiguration(
                                    "model", len(data), "is longer than this task's"
                                )
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
    async def _turn_to_give_back(
        self, client: ClientId, total_s: float
    ) -> AsyncIterator[None]:
        """Let ``client`` give a model back inside the block, and nobody else.

        After a vain try the other owners come first, for ``total_s`` seconds.

        Raises TooManyCalls: another owner gives one back, or it is the others' turn.
        """
        clock = asyncio.get_running_loop().time
        others_first = clock() < self._others_first_until.get(client, 0.0)
        if self._giving_back.locked() or others_first:
            raise TooManyCalls(
                "other owners may give a model back now; come again later"
            )
        async with self._giving_back:
            try:
                yield
            except BaseException:
                self._others_first_until[client] = clock() + total_s
                raise

    async def _receive(
        self, request_iterator: AsyncIterator[pb.SubmissionPiece], context: Context
    ) -> None:
        """Receive one upload for ``Submit``, from its header to its end.

        Before the body it waits for a slot, and tells the client to send. An upload
        that breaks off or is refused is abandoned, and counted as a rejection.

        Raises RejectedSubmission, AccessDenied.
        """
        slot = TransferSlot(self._upload_slots)
        total_s = self._session.task.deadlines.collect
        inbox = self._session.inbox
        traffic = self._session.traffic
        idle_s = self.idle_s
        pieces = in_time(
            request_iterator,
            idle_s=idle_s,
            total_s=total_s,
            slot=slot,
        )
        upload = None
        link = f"clients to {self._session.role.value}"
        try:
            async for piece in pieces:
                kind = piece.WhichOneof("piece")
                if upload is None:
                    if kind != "header":
                        raise RejectedSubmission(
                            Rejection.MALFORMED, "the first piece must be the header"
                        )
                    upload = self._start_upload(piece.header, context)
                    traffic[link] += len(piece.header.seed)
                    if upload.awaits_body:
                        await slot.take(total_s)
                        # The client waits for this before it sends b.
                        await context.send_initial_metadata(BODY_WANTED)
                elif kind == "body":
                    traffic[link] += len(piece.body)
                    slot.passed(len(piece.body))
                    upload.add(piece.body)
                else:
                    raise RejectedSubmission(
                        Rejection.MALFORMED,
                        "only the body's bytes may follow the header",
                    )
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

    def _start_upload(self, header: pb.SubmissionHeader, context: Context) -> Upload:
        """Begin the upload whose ``header`` came, for ``_receive``.

        The header must be the caller's own, signed with the key of this connection's
        certificate.

        Raises AccessDenied; RejectedSubmission: counted for the client where it is in
        the cohort.
        """
        client = self._certified(context, header.client)
        try:
            submission = header_from_wire(header, self._session.role)
            check_own_key(context, certificates_of(submission.header.signature)[0])
        except RejectedSubmission as rejected:
            self._session.inbox.refuse(header.attempt, client, rejected.reason)
            raise
        return self._session.inbox.start(submission)

    def _caller(self, context: Context, *roles: Role) -> Principal:
        """Return who begins a call, and note that a client was heard from.

        Raises AccessDenied: it isn't of one of ``roles``.
        """
        caller = require(context, self._session.identity, *roles)
        if caller.role is Role.CLIENT:
            self._session.connected_clients.heard_from(ClientId(caller.name))
        return caller

    def _client(self, context: Context, request: _ClientRequest) -> ClientId:
        """Return the client that begins a call about this task.

        Raises AccessDenied: the certificate isn't that client's; TaskMismatch.
        """
        self._caller(context, Role.CLIENT)
        client = self._certified(context, request.client)
        check_task(self._session.task, request.task_digest)
        return client

    def _certified(self, context: Context, name: str) -> ClientId:
        """Return the client of that name, which must be the caller.

        Raises AccessDenied: the caller's certificate is another's, or doesn't count any
        more.
        """
        client = ClientId(name)
        named = Principal.client(client.name)
        principal = require(context, self._session.identity, Role.CLIENT)
        if principal != named:
            raise AccessDenied(
                f"the certificate is {principal}'s, the call is {named}'s"
            )
        return client
