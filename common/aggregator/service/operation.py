"""The Operation service on a server: for operators, who may see counts and reasons."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator

from precad.common.aggregator.service.watches import while_allowed
from precad.common.aggregator.training.feed import RoundDone
from precad.common.aggregator.training.session import Session
from precad.common.identifiers import Role
from precad.common.identity.access import require
from precad.common.wire.serving import Context, Refusing, check_task
from precad.protos import precad_pb2 as pb
from precad.protos.precad_pb2_grpc import OperationServicer


class OperationService(OperationServicer):
    """What operators see of one server."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def Status(  # noqa: N802 -- gRPC's name
        self, request: pb.StatusRequest, context: Context
    ) -> pb.StatusReply:
        """Where the training stands. An empty digest asks about whatever runs here."""
        async with Refusing(context):
            self._admit(request, context)
            # In a thread: after thousands of rounds the ledger takes a while to count, and the
            # store may be busy with a release; clients' calls don't wait for an operator's.
            return await asyncio.to_thread(self._status)

    def _admit(self, request: pb.StatusRequest, context: Context) -> None:
        require(context, self._session.identity, Role.OPERATOR)
        if request.task_digest:
            check_task(self._session.task, request.task_digest)

    def _status(self) -> pb.StatusReply:
        session = self._session
        participations = session.store.participations()
        return pb.StatusReply(
            role=session.role.value,
            task_name=session.task.name,
            task_digest=session.task.digest.value,
            phase=session.progress.phase.value,
            enrolled=len(session.register.roster()),
            version=session.shelf.current.version,
            rounds=session.task.training.rounds,
            model_digest=session.shelf.current.digest.value,
            error=session.progress.error,
            rejected={reason.value: n for reason, n in session.store.rejections().items()},
            participations={client.name: n for client, n in participations.items()},
            bytes_by_link=dict(session.traffic),
            rejected_by_client={
                client.name: n for client, n in session.store.rejected_clients().items()
            },
        )

    async def Reports(  # noqa: N802
        self, request: pb.StatusRequest, context: Context
    ) -> AsyncIterator[pb.RoundReport]:
        """One report per finished round; ends with the training."""
        async with Refusing(context):
            self._admit(request, context)
            events = self._session.feed.follow(from_start=True)
            async for event in while_allowed(events, lambda: self._admit(request, context)):
                if isinstance(event, RoundDone):
                    reasons = Counter(reason.value for reason in event.rejections.values())
                    yield pb.RoundReport(
                        version=event.opened.version,
                        attempt=event.opened.attempt,
                        cohort=len(event.opened.cohort),
                        accepted=len(event.valid),
                        rejected=dict(reasons),
                        most_participations=event.most_participations,
                        model_digest=event.model.value,
                        seconds=event.seconds,
                    )
