"""The Operation service on a server: for operators, who may see counts and reasons.

Each call requires an operator's certificate. Reading the database happens in threads:
the event loop stays free for clients' calls.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import asdict

import grpc.aio

from precad.aggregator.rounds.start_attempt import GRANTED
from precad.aggregator.store import Permission
from precad.aggregator.training import LongStream, RoundDone, Session
from precad.common import Misconfiguration, Role, log
from precad.common.identity import WIRE_VERSION, ends_soon, require
from precad.common.kernel import kernel_in_use
from precad.common.wire import Context, check_task, refusing
from precad.protos import precad_pb2 as pb
from precad.protos.precad_pb2_grpc import (
    OperationServicer,
    add_OperationServicer_to_server,
)


class OperationService(OperationServicer):
    """What operators see of one server, and what they may permit it."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def add_to(self, server: grpc.aio.Server) -> None:
        """Offer the service on a server that isn't started yet."""
        add_OperationServicer_to_server(self, server)

    async def Status(
        self, request: pb.StatusRequest, context: Context
    ) -> pb.StatusReply:
        """Return where the training stands.

        A request with an empty digest asks about whatever task runs here. The call ends
        with AccessDenied for who isn't an operator, and with TaskMismatch for another
        task's digest.
        """
        async with refusing(context):
            self._admit(request, context)
            # In a thread: after thousands of rounds the ledger takes a while to count,
            # and the store may be busy with a release; clients' calls don't wait for an
            # operator's.
            return await asyncio.to_thread(self._status)

    async def Allow(self, request: pb.AllowRequest, context: Context) -> pb.AllowReply:
        """Take the operators' permission for what the open version waits for.

        The permission is durable when this call confirms it, and is written to the log.
        The reply holds the newest attempt that it reaches.

        The call ends with Misconfiguration where there is no such permission or another
        version is open, with AccessDenied for who isn't an operator, and with
        TaskMismatch for another task's digest.
        """
        async with refusing(context):
            require(context, self._session.identity, Role.OPERATOR)
            check_task(self._session.task, request.task_digest)
            permissions = {permission.value: permission for permission in Permission}
            permission = permissions.get(request.word)
            if permission is None:
                raise Misconfiguration(
                    "word", request.word, f"give one of {', '.join(permissions)}"
                )
            version = self._session.model_store.current.version
            if request.version != version:
                raise Misconfiguration(
                    "version",
                    request.version,
                    f"version {version} is the one that is open; nothing else waits",
                )
            until = await asyncio.to_thread(self._allow, permission, version)
        log.warning(
            "the operators' permission for version %d: %s",
            version,
            permission.value,
            extra={"version": version},
        )
        return pb.AllowReply(until=until)

    def _allow(self, permission: Permission, version: int) -> int:
        """Keep a permission durably, and return the newest attempt that it reaches.

        It reaches ``GRANTED`` attempts beyond the newest one that this server knows.
        """
        store = self._session.store
        if permission is Permission.CLAIMED:
            # The other server may claim more by now than operators were told. So a
            # permission reaches a few attempts beyond what this server knows itself,
            # and the next permission a few more.
            newest = store.versions.allowed(permission, version)
        else:
            newest = self._session.progress.next_attempt - 1
        until = max(store.attempts.next_number() - 1, newest) + GRANTED
        store.versions.allow(permission, version, until)
        return until

    def _admit(self, request: pb.StatusRequest, context: Context) -> None:
        """Let operators in alone, and only with this task's digest or without any.

        Raises AccessDenied, TaskMismatch.
        """
        require(context, self._session.identity, Role.OPERATOR)
        if request.task_digest:
            check_task(self._session.task, request.task_digest)

    def _status(self) -> pb.StatusReply:
        """Return where the training stands, for ``Status``; reads the database."""
        session = self._session
        task = session.task
        store = session.store
        register = session.register
        model = session.model_store.current
        participations = store.ledger.participations()
        rejections_by_client = store.attempts.rejected_clients()
        left_s = session.started + session.enrolling.seconds - session.clock.now()
        warnings = ends_soon(session.identity)
        asleep = store.versions.asleep(session.version, task.mechanism)
        if asleep:
            names = ", ".join(sorted(client.name for client in asleep))
            warnings.append(
                f"{len(asleep)} owners missed two versions in a row, and aren't waited"
                f" for until they upload again: {names}"
            )
        early_ends = session.early_ends()
        if early_ends:
            warnings.append(
                f"the task's limit ends {len(early_ends)} owners before the last round,"
                f" the first before round {early_ends[0]}: from then on they don't"
                " count, and a round without anybody is noise alone"
            )
        return pb.StatusReply(
            role=session.role.value,
            task_name=task.name,
            task_digest=task.digest.value,
            phase=session.progress.phase.value,
            enrolled=len(register.roster()),
            version=model.version,
            rounds=task.mechanism.releases,
            model_digest=model.digest.value,
            error=session.progress.error,
            rejected={
                reason.value: count
                for reason, count in store.attempts.rejections().items()
            },
            participations={
                client.name: count for client, count in participations.items()
            },
            bytes_by_link=dict(session.traffic),
            rejected_by_client={
                client.name: count for client, count in rejections_by_client.items()
            },
            kernel=kernel_in_use(),
            most_owners=session.enrolling.enough,
            least_owners=task.enrolment.min_clients,
            enrolment_left_s=0.0 if register.frozen else max(0.0, left_s),
            missing=[client.name for client in register.missing()],
            unused_tokens=register.unused_tokens(),
            twice=dict(session.twice),
            redrawn_coins=store.versions.redrawn_coins(),
            workers=session.progress.workers,
            wire_version=WIRE_VERSION,
            off_plan=register.off_plan(),
            warnings=warnings,
            submissions=[
                pb.FollowedSubmission(**asdict(each))
                for each in store.ledger.submissions(version=session.version - 1)
            ],
        )

    async def Reports(
        self, request: pb.StatusRequest, context: Context
    ) -> AsyncIterator[pb.RoundReport]:
        """Yield one report per finished round, the kept ones first.

        The stream ends with the training, or once the caller isn't allowed any more. It
        ends with AccessDenied for who isn't an operator, and with TaskMismatch for
        another task's digest.
        """
        async with refusing(context):
            self._admit(request, context)
            events = self._session.event_log.follow(from_start=True)
            stream = LongStream(_still_allowed=lambda: self._admit(request, context))
            async for event in stream.follow(events):
                if isinstance(event, RoundDone):
                    yield _report(event)


def _report(done: RoundDone) -> pb.RoundReport:
    """Return what operators see of one finished round."""
    reasons = Counter(reason.value for reason in done.rejections.values())
    return pb.RoundReport(
        version=done.opened.version,
        attempt=done.opened.attempt,
        cohort=len(done.opened.cohort),
        accepted=len(done.valid),
        rejected=dict(reasons),
        most_participations=done.most_participations,
        model_digest=done.model.value,
        seconds=sum(step.seconds for step in done.steps),
        steps=[pb.StepCost(**asdict(step)) for step in done.steps],
    )
