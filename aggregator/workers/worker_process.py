"""A worker as a process, which its server starts.

The command is ``python -m precad.aggregator.workers.worker_process``. It reads what it
is told (``WorkerStart``) from its standard input, says its port on its standard output,
and ends when its input does: a server that dies takes its workers along.
"""

import asyncio
import fcntl
import json
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

from precad.aggregator.collect import Spool, SpooledBody
from precad.aggregator.rpc import (
    DialledTransport,
    ServedTransport,
    add_link_to_server,
    dial,
    reach_dealer,
)
from precad.aggregator.validate import load_check
from precad.aggregator.workers.worker_attempt import Attempt, Begin, Taken
from precad.aggregator.workers.worker_placement import WorkerStart
from precad.common import (
    PIECES,
    WORD_BYTES,
    ClientId,
    Misconfiguration,
    PeerUnavailable,
    PrecadError,
    Role,
    Secret,
    Task,
    by_proxy,
    call_in,
    dump_stacks_on_signal,
    keep_freed_buffers,
    log,
    start_log,
    take_over_stderr,
)
from precad.common.files import opened
from precad.common.identity import GREETING, Identity, require
from precad.common.wire import Context, GuardedPort, check_task, refusing
from precad.norm_check import AnySubmission, body_layout, header_from_wire
from precad.protos import precad_pb2 as pb
from precad.protos.precad_pb2_grpc import WorkingServicer, add_WorkingServicer_to_server


async def serve(start: WorkerStart) -> None:
    """Work until the standard input ends, and say the port first.

    Raises Misconfiguration: as ``listening``.
    """
    _, port_number = await listening(start)
    sys.stdout.write(json.dumps({"port": port_number}) + "\n")
    sys.stdout.flush()
    await asyncio.to_thread(sys.stdin.read)
    # Its server has ended, or waits for this process's end. The next start removes what
    # an attempt has on the disk.
    os._exit(0)


async def listening(start: WorkerStart) -> tuple[GuardedPort, int]:
    """Return a worker's port, open on the running event loop, and the port's number.

    Raises Misconfiguration: the task, the identity or the address is wrong.
    """
    role = Role(start.role)
    task = Task.load(start.task)
    identity = Identity.load(start.identity, start.key_passphrase_file)
    load_check(task)
    remove_left_over()
    port = GuardedPort(f"a worker of {role.value}", identity)
    working = Working(role, task, identity, start)
    add_WorkingServicer_to_server(working, port.server)
    if role is Role.SERVER_B:
        add_link_to_server(working.link, port.server)
    return port, await port.listen(start.listen)


def main() -> None:
    """Run a worker as this process: read ``WorkerStart`` from the input, and work."""
    keep_freed_buffers(PIECES)
    # A dump would hold clients' seeds.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # A terminal's Ctrl-C is for the server, which ends its workers itself.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    dump_stacks_on_signal()
    take_over_stderr()
    start_log(people="%(asctime)s %(levelname)s worker: %(message)s")
    try:
        asyncio.run(serve(WorkerStart.model_validate_json(sys.stdin.readline())))
    except PrecadError as error:
        sys.exit(f"precad: {error}")


class Working(WorkingServicer):
    """Validates what the worker's own server orders, and nobody else.

    At B it takes links from server A's workers alone.
    """

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
        self._dealer: str | None = None
        """Where the dealer is, and by which proxy it is reached."""
        if start.dealer is not None:
            self._dealer = by_proxy(start.dealer, self._proxy)
        self.links: queue.SimpleQueue[ServedTransport] = queue.SimpleQueue()
        """Links from server A's workers that no attempt has looked at yet."""

    async def link(
        self, request_iterator: AsyncIterator[bytes], context: Context
    ) -> AsyncGenerator[bytes]:
        """Answer the link of server A's worker for one attempt, until it ends.

        The call ends with AccessDenied for anybody but server A.
        """
        async with refusing(context):
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
        """Validate one attempt's part for the worker's server; yield reports.

        The first order must be the attempt's beginning. The call ends with AccessDenied
        for anybody but the worker's own server, and with TaskMismatch for another task.
        """
        loop = asyncio.get_running_loop()
        reports: asyncio.Queue[pb.WorkReport | None] = asyncio.Queue()

        def report(**fields: Any) -> None:
            call_in(loop, reports.put_nowait, pb.WorkReport(**fields))

        async with refusing(context):
            require(context, self.identity, self.role)
            await context.send_initial_metadata(GREETING)
            begin = (await anext(request_iterator)).begin
            check_task(self.task, begin.task_digest)
            with (
                own_folder() as folder,
                reach_dealer(
                    self._dealer, self.identity, self.task, self.role
                ) as dealer,
            ):
                # The server has joined it for itself and all of its workers.
                dealer.epoch = begin.epoch
                reach = partial(self._reach, by_proxy(begin.peer, self._proxy))
                attempt = Attempt(
                    _task=self.task,
                    _role=self.role,
                    _begin=Begin(
                        attempt=begin.attempt,
                        pair=begin.pair,
                        dealer_key=Secret(begin.dealer_key),
                        nonces=begin.nonces,
                    ),
                    _dealing=dealer,
                    _reach=reach,
                    _report=report,
                )
                reading = asyncio.create_task(
                    self._read(request_iterator, Spool(folder), attempt)
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
        """Read the server's orders into ``attempt``, with bodies that come in pieces.

        Orders that end in the middle, or that are wrong, break the attempt off.
        """
        at_end = attempt.break_off
        try:
            async for message in orders:
                match message.WhichOneof("order"):
                    case "take":
                        take = message.take
                        submission = _submission(take, self.role)
                        if submission.awaits_body and submission.body is None:
                            body = await self._body(
                                orders, spool, submission.context.client
                            )
                            submission = replace(submission, body=body)
                        attempt.put(
                            Taken(
                                submission=submission,
                                counted=take.counted,
                                batch=take.batch,
                                # A server of release 0.1.0 gives none.
                                bound=take.bound or self.task.mechanism.bound,
                            )
                        )
                    case "decide":
                        attempt.put(None)
                    case _:
                        raise Misconfiguration(
                            "order", "", "send take, its body, or decide"
                        )
            at_end = attempt.end
        except (PrecadError, OSError):
            log.exception("a worker's orders ended")
        except StopAsyncIteration:
            # In the middle of a body, which the server couldn't read; it has said so.
            pass
        finally:
            at_end()

    async def _body(
        self, orders: AsyncIterator[pb.WorkOrder], spool: Spool, client: ClientId
    ) -> SpooledBody:
        """Receive one body from the orders that follow, into a file of ``spool``.

        The first message is the body's prefix, the others are pieces of its words.

        Raises Misconfiguration: a message is too long or too short; OSError;
        StopAsyncIteration: the orders end before the body does.
        """
        prefix_bytes, words = body_layout(self.task)
        prefix = (await anext(orders)).body
        if len(prefix) != prefix_bytes:
            raise Misconfiguration(
                "body", len(prefix), f"must begin with {prefix_bytes} bytes"
            )
        left_bytes = words * WORD_BYTES
        file = await asyncio.to_thread(spool.begin, client)
        while left_bytes:
            piece = (await anext(orders)).body
            if not 0 < len(piece) <= left_bytes:
                raise Misconfiguration(
                    "body", len(piece), f"{left_bytes} bytes are to come"
                )
            # A full disk or a slow one holds nobody else up.
            await asyncio.to_thread(file.add, memoryview(piece))
            left_bytes -= len(piece)
        return await asyncio.to_thread(file.finish, Secret(prefix))

    @contextmanager
    def _reach(self, peer: str) -> Iterator[DialledTransport | ServedTransport]:
        """Reach the other server's worker until the block ends.

        A's worker dials ``peer``; B's takes the next link that came.

        Raises PeerUnavailable, PeerViolation.
        """
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


def _submission(take: pb.WorkTake, role: Role) -> AnySubmission:
    """Return the submission that a server hands over.

    It has its body where that is in a file; else the body follows.

    Raises RejectedSubmission: the header isn't one.
    """
    submission = header_from_wire(take.submission, role)
    if not take.HasField("spooled"):
        return submission
    file = take.spooled
    body = SpooledBody(
        path=Path(file.path),
        key=Secret(file.key),
        number=file.number,
        length=file.length,
        prefix=Secret(file.prefix),
    )
    return replace(submission, body=body)


_PREFIX = "precad-bodies-"
"""How the name of a worker's folder for bodies begins."""
_LOCK = "lock"
"""A folder's lock stands under this name once it is held: ``remove_left_over`` never
meets a free lock of a folder in use."""
_NEW_LOCK = "lock.new"
"""The lock's name before it is held."""


@contextmanager
def own_folder() -> Iterator[Path]:
    """Make a folder for bodies until the block ends.

    It is locked; the system lets go of the lock when the process ends.
    """
    with tempfile.TemporaryDirectory(
        prefix=_PREFIX, ignore_cleanup_errors=True
    ) as name:
        folder = Path(name)
        lock = folder / _NEW_LOCK
        with opened(lock, os.O_RDWR | os.O_CREAT | os.O_EXCL) as descriptor:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            lock.rename(folder / _LOCK)
            yield folder


def remove_left_over() -> None:
    """Remove this user's folders for bodies whose process is gone.

    What can't be removed stays.
    """
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError):
            if folder.lstat().st_uid == os.getuid() and _is_free(folder / _LOCK):
                shutil.rmtree(folder)


def _is_free(lock: Path) -> bool:
    """Return whether no process holds this lock. Raises OSError: it isn't there."""
    with opened(lock, os.O_RDWR | os.O_NOFOLLOW) as descriptor:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True


if __name__ == "__main__":
    main()
