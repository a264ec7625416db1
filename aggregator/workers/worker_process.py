"""A worker as a process: ``python -m precad.aggregator.workers.worker_process``, by its server.

It reads what it is told (``WorkerStart``) from its input, says its port on its output,
and ends when its input does: a server that dies takes its workers along.
"""

import asyncio
import fcntl
import json
import logging
import os
import queue
import resource
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing, closing, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import grpc

from precad.aggregator.collect.upload import Spool, SpooledBody
from precad.aggregator.rpc.dealer_client import reach_dealer
from precad.aggregator.rpc.peer_transport import (
    DialledTransport,
    ServedTransport,
    add_link_to_server,
    dial,
)
from precad.aggregator.validate import load_check
from precad.aggregator.workers.worker_attempt import Attempt, Begin, Taken
from precad.aggregator.workers.worker_placement import WorkerStart
from precad.common.clock import call_in
from precad.common.errors import Misconfiguration, PeerUnavailable, PrecadError
from precad.common.identifiers import ClientId, Role, Secret
from precad.common.identity.credentials import Identity
from precad.common.identity.mutual_tls import GREETING, require
from precad.common.process import (
    PIECES,
    dump_stacks_on_signal,
    keep_freed_buffers,
    start_log,
)
from precad.common.process_settings import by_proxy
from precad.common.ring import WORD_BYTES
from precad.common.task import Task
from precad.common.wire.guarded_port import GuardedPort
from precad.common.wire.serving import Context, Refusing, check_task
from precad.norm_check.proof_submission import AnySubmission, body_layout
from precad.norm_check.submission_messages import header_from_wire
from precad.protos import precad_pb2 as pb
from precad.protos.precad_pb2_grpc import WorkingServicer, add_WorkingServicer_to_server

log = logging.getLogger("precad")


async def serve(start: WorkerStart) -> None:
    """Work until the input ends. Raises Misconfiguration."""
    _, number = await listening(start)
    sys.stdout.write(json.dumps({"port": number}) + "\n")
    sys.stdout.flush()
    await asyncio.to_thread(sys.stdin.read)
    # Its server has ended, or waits for it. What an attempt has on the disk the next
    # start removes.
    os._exit(0)


async def listening(start: WorkerStart) -> tuple[GuardedPort, int]:
    """A worker's port, open on the running loop, and its number.

    Raises Misconfiguration.
    """
    role = Role(start.role)
    task = Task.load(start.task)
    identity = Identity.load(start.identity)
    load_check(task)
    remove_left_over()
    port = GuardedPort(f"a worker of {role.value}", identity)
    Working(role, task, identity, start).add_to(port.server)
    return port, await port.listen(start.listen)


def main() -> None:
    """The process."""
    keep_freed_buffers(PIECES)
    # A dump would hold clients' seeds.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # A terminal's Ctrl-C is for the server, which ends its workers itself.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    dump_stacks_on_signal()
    start_log(people="%(asctime)s %(levelname)s worker: %(message)s")
    try:
        asyncio.run(serve(WorkerStart.model_validate_json(sys.stdin.readline())))
    except PrecadError as error:
        sys.exit(f"precad: {error}")


class Working(WorkingServicer):
    """Validates what the own server orders, nobody else's; at B takes links from server A alone."""

    def __init__(
        self,
        role: Role,
        task: Task,
        identity: Identity,
        start: WorkerStart,
    ) -> None:
        self.role = role
        self.task = task
        self.identity = identity
        self._proxy = start.proxy
        self._dealer = (
            None if start.dealer is None else by_proxy(start.dealer, self._proxy)
        )
        self.links: queue.SimpleQueue[ServedTransport] = queue.SimpleQueue()
        """From server A's workers, not looked at yet."""

    def add_to(self, server: grpc.aio.Server) -> None:
        """Offer the service on a server that isn't started yet."""
        add_WorkingServicer_to_server(self, server)
        if self.role is Role.SERVER_B:
            add_link_to_server(self.link, server)

    async def link(
        self, request_iterator: AsyncIterator[bytes], context: Context
    ) -> AsyncGenerator[bytes]:
        """The link of one attempt."""
        async with Refusing(context):
            require(context, self.identity, Role.SERVER_A)
            transport = ServedTransport(
                asyncio.get_running_loop(), self.task.deadlines.peer
            )
            self.links.put(transport)
            async with aclosing(transport.serve(request_iterator)) as frames:
                async for message in frames:
                    yield message

    async def Validate(  # noqa: N802 -- gRPC's name
        self, request_iterator: AsyncIterator[pb.WorkOrder], context: Context
    ) -> AsyncIterator[pb.WorkReport]:
        """One attempt's part."""
        loop = asyncio.get_running_loop()
        reports: asyncio.Queue[pb.WorkReport | None] = asyncio.Queue()

        def report(**what: Any) -> None:
            call_in(loop, reports.put_nowait, pb.WorkReport(**what))

        async with Refusing(context):
            require(context, self.identity, self.role)
            await context.send_initial_metadata(GREETING)
            begin = (await anext(request_iterator)).begin
            check_task(self.task, begin.task_digest)
            to_dealer = self._dealer, self.identity, self.task, self.role
            with own_folder() as disk, reach_dealer(*to_dealer) as dealer:
                # The server has joined it for itself and all of its workers.
                dealer.epoch = begin.epoch
                reach = partial(self._reach, by_proxy(begin.peer, self._proxy))
                said = Begin(
                    attempt=begin.attempt,
                    pair=begin.pair,
                    dealer_key=Secret(begin.dealer_key),
                    nonces=begin.nonces,
                )
                attempt = Attempt(
                    _task=self.task,
                    _role=self.role,
                    _begin=said,
                    _dealing=dealer,
                    _reach=reach,
                    _report=report,
                )
                reading = asyncio.create_task(
                    self._read(request_iterator, Spool(disk), attempt)
                )
                running = asyncio.ensure_future(asyncio.to_thread(attempt.run))
                running.add_done_callback(lambda _: reports.put_nowait(None))
                try:
                    while (message := await reports.get()) is not None:
                        yield message
                finally:
                    reading.cancel()
                    attempt.break_off()

    async def _read(
        self, orders: AsyncIterator[pb.WorkOrder], spool: Spool, attempt: Attempt
    ) -> None:
        over = attempt.break_off
        try:
            async for message in orders:
                match message.WhichOneof("order"):
                    case "take":
                        take = message.take
                        submission = _taken(take, self.role)
                        if submission.awaits_body and submission.body is None:
                            body = await self._body(
                                orders, spool, submission.context.client
                            )
                            submission = replace(submission, body=body)
                        attempt.put(Taken(submission, take.counted, take.batch))
                    case "decide":
                        attempt.put(None)
                    case _:
                        raise Misconfiguration(
                            "order", "", "send take, its body, or decide"
                        )
            over = attempt.end
        except (PrecadError, OSError):
            log.exception("a worker's orders ended")
        except StopAsyncIteration:
            # In the middle of a body, which the server couldn't read; it has said so.
            pass
        finally:
            over()

    async def _body(
        self, orders: AsyncIterator[pb.WorkOrder], spool: Spool, client: ClientId
    ) -> SpooledBody:
        first, words = body_layout(self.task)
        prefix = (await anext(orders)).body
        left = words * WORD_BYTES
        if len(prefix) != first:
            raise Misconfiguration(
                "body", len(prefix), f"must begin with {first} bytes"
            )
        file = await asyncio.to_thread(spool.begin, client)
        while left:
            piece = (await anext(orders)).body
            if not 0 < len(piece) <= left:
                raise Misconfiguration("body", len(piece), f"{left} bytes are to come")
            # A full disk or a slow one holds nobody else up.
            await asyncio.to_thread(file.add, memoryview(piece))
            left -= len(piece)
        return await asyncio.to_thread(file.finish, Secret(prefix))

    @contextmanager
    def _reach(self, peer: str) -> Iterator[DialledTransport | ServedTransport]:
        patience_s = self.task.deadlines.peer
        if self.role is Role.SERVER_A:
            with dial(peer, self.identity, patience_s) as dialled:
                yield dialled
            return
        try:
            served = self.links.get(timeout=patience_s)
        except queue.Empty:
            raise PeerUnavailable(
                f"server A's worker didn't connect within {patience_s:g} s; check that"
                " it can reach this worker's worker_listen address"
            ) from None
        with closing(served):
            yield served


def _taken(take: pb.WorkTake, role: Role) -> AnySubmission:
    """The submission, with its body where that is in a file.

    Raises RejectedSubmission.
    """
    submission = header_from_wire(take.submission, role)
    if not take.HasField("spooled"):
        return submission
    file = take.spooled
    path = Path(file.path)
    key = Secret(file.key)
    prefix = Secret(file.prefix)
    return replace(
        submission,
        body=SpooledBody(
            path=path,
            key=key,
            number=file.number,
            length=file.length,
            prefix=prefix,
        ),
    )


_PREFIX = "precad-bodies-"
_LOCK, _UNLOCKED = "lock", "lock.new"
"""A folder's lock stands under its name once it is held: a sweep never meets a free one
in use."""


@contextmanager
def own_folder() -> Iterator[Path]:
    """A folder until the block ends; the system lets go of its lock when the process ends."""
    with tempfile.TemporaryDirectory(
        prefix=_PREFIX, ignore_cleanup_errors=True
    ) as made:
        folder = Path(made)
        descriptor = os.open(
            folder / _UNLOCKED, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600
        )
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            (folder / _UNLOCKED).rename(folder / _LOCK)
            yield folder
        finally:
            os.close(descriptor)


def remove_left_over() -> None:
    """Remove this user's folders whose process is gone; what can't be removed stays."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError):
            if folder.lstat().st_uid == os.getuid() and _free(folder / _LOCK):
                shutil.rmtree(folder)


def _free(lock: Path) -> bool:
    descriptor = os.open(lock, os.O_RDWR | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


if __name__ == "__main__":
    main()
