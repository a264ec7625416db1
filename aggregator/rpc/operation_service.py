"""The Operation service on a server: for operators, who may see counts and reasons."""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import asdict

import grpc.aio

from precad.aggregator.rounds.start_attempt import GRANTED
from precad.aggregator.store.schema import Permission
from precad.aggregator.training.connected_clients import LongStream
from precad.aggregator.training.session import RoundDone, Session
from precad.common.errors import Misconfiguration
from precad.common.identifiers import Role
from precad.common.identity.mutual_tls import WIRE_VERSION, require
from precad.common.kernel import kernel_in_use
from precad.common.wire.serving import Context, Refusing, check_task
from precad.protos import precad_pb2 as pb
from precad.protos.precad_pb2_grpc import (
    OperationServicer,
    add_OperationServicer_to_server,
)

log = logging.getLogger("precad")


class OperationService(OperationServicer):
    """What operators see of one server."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def add_to(self, server: grpc.aio.Server) -> None:
        """Offer the service on a server that isn't started yet."""
        add_OperationServicer_to_server(self, server)

    async def Status(
        self, request: pb.StatusRequest, context: Context
    ) -> pb.StatusReply:
        """Where the training stands. An empty digest asks about whatever runs here."""
        async with Refusing(context):
            self._admit(request, context)
            # In a thread: after thousands of rounds the ledger takes a while to count,
            # and the store may be busy with a release; clients' calls don't wait for an
            # operator's.
            return await asyncio.to_thread(self._status)

    async def Allow(self, request: pb.AllowRequest, context: Context) -> pb.AllowReply:
        """The operators' word: durable when it is confirmed, and written to the log."""
        async with Refusing(context):
            require(context, self._session.identity, Role.OPERATOR)
            check_task(self._session.task, request.task_digest)
            known = {each.value: each for each in Permission}
            allowed = known.get(request.word)
            if allowed is None:
                raise Misconfiguration(
                    "word", request.word, f"give one of {', '.join(known)}"
                )
            version = self._session.model_store.current.version
            if request.version != version:
                remedy = (
                    f"version {version} is the one that is open; nothing else waits"
                )
                raise Misconfiguration("version", request.version, remedy)
            until = await asyncio.to_thread(self._allow, allowed, version)
        log.warning(
            "the operators' permission for version %d: %s", version, allowed.value
        )
        return pb.AllowReply(until=until)

    def _allow(self, what: Permission, version: int) -> int:
        store = self._session.store
        if what is Permission.CLAIMED:
            # The other server may claim more by now than operators were told: a word
            # reaches a few attempts beyond what this server knows itself, the next one
            # a few more.
            known = max(
                store.attempts.next_number() - 1, store.versions.allowed(what, version)
            )
        else:
            known = (
                max(store.attempts.next_number(), self._session.progress.next_attempt)
                - 1
            )
        until = known + GRANTED
        store.versions.allow(what, version, until)
        return until

    def _admit(self, request: pb.StatusRequest, context: Context) -> None:
        require(context, self._session.identity, Role.OPERATOR)
        if request.task_digest:
            check_task(self._session.task, request.task_digest)

    def _status(self) -> pb.StatusReply:
        session = self._session
        participations = session.store.ledger.participations()
        rejected = session.store.attempts.rejected_clients()
        left_s = session.started + session.enrolling.seconds - session.clock.now()
        return pb.StatusReply(
            role=session.role.value,
            task_name=session.task.name,
            task_digest=session.task.digest.value,
            phase=session.progress.phase.value,
            enrolled=len(session.register.roster()),
            version=session.model_store.current.version,
            rounds=session.task.training.rounds,
            model_digest=session.model_store.current.digest.value,
            error=session.progress.error,
            rejected={
                reason.value: n
                for reason, n in session.store.attempts.rejections().items()
            },
            participations={client.name: n for client, n in participations.items()},
            bytes_by_link=dict(session.traffic),
            rejected_by_client={client.name: n for client, n in rejected.items()},
            kernel=kernel_in_use(),
            most_owners=session.enrolling.enough,
            least_owners=session.task.enrolment.min_clients,
            enrolment_left_s=0.0 if session.register.frozen else max(0.0, left_s),
            missing=[client.name for client in session.register.missing()],
            unused_tokens=session.register.unused_tokens(),
            twice=dict(session.twice),
            redrawn_coins=session.store.versions.redrawn_coins(),
            workers=session.progress.workers,
            wire_version=WIRE_VERSION,
        )

    async def Reports(
        self, request: pb.StatusRequest, context: Context
    ) -> AsyncIterator[pb.RoundReport]:
        """One report per finished round; ends with the training."""
        async with Refusing(context):
            self._admit(request, context)
            events = self._session.event_log.follow(from_start=True)
            async for event in LongStream(
                _still_allowed=lambda: self._admit(request, context)
            ).follow(events):
                if isinstance(event, RoundDone):
                    reasons = Counter(
                        reason.value for reason in event.rejections.values()
                    )
                    yield pb.RoundReport(
                        version=event.opened.version,
                        attempt=event.opened.attempt,
                        cohort=len(event.opened.cohort),
                        accepted=len(event.valid),
                        rejected=dict(reasons),
                        most_participations=event.most_participations,
                        model_digest=event.model.value,
                        seconds=sum(step.seconds for step in event.steps),
                        steps=[pb.StepCost(**asdict(cost)) for cost in event.steps],
                    )
