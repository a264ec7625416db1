"""A worker as a process: ``python -m precad.aggregator.workers.worker``, by its server.

It reads what it is told (``WorkerStart``) from its input, says its port on its output, and ends
when its input does: a server that dies takes its workers along.
"""

import asyncio
import json
import queue
import resource
import signal
import sys

import grpc

from precad.aggregator.validate.in_process_validator import load_check
from precad.aggregator.workers.disk import remove_left_over
from precad.aggregator.workers.service import Worker, WorkerLinks, Working
from precad.aggregator.workers.start import WorkerStart
from precad.common.allocator import PIECES, keep_freed_buffers
from precad.common.errors import PrecadError
from precad.common.identifiers import Role
from precad.common.identity.credentials import Identity
from precad.common.identity.mutual_tls import add_port
from precad.common.logs import start_log
from precad.common.task import Task
from precad.common.wire.link import add_link_to_server
from precad.common.wire.serving import SERVER_OPTIONS
from precad.protos.precad_pb2_grpc import add_WorkingServicer_to_server

LOG_FORMAT = "%(asctime)s %(levelname)s worker: %(message)s"


async def serve(start: WorkerStart) -> None:
    """Work until the input ends. Raises Misconfiguration."""
    server, port = await listening(start)
    sys.stdout.write(json.dumps({"port": port}) + "\n")
    sys.stdout.flush()
    await asyncio.to_thread(sys.stdin.read)
    await server.stop(grace=0)


async def listening(start: WorkerStart) -> tuple[grpc.aio.Server, int]:
    """A worker's server, started on the running loop, and its port. Raises Misconfiguration."""
    role = Role(start.role)
    task, identity = Task.load(start.task), Identity.load(start.identity)
    load_check(task)
    remove_left_over()
    worker = Worker(role, task, identity, start.dealer, queue.SimpleQueue())
    server = grpc.aio.server(options=SERVER_OPTIONS)
    add_WorkingServicer_to_server(Working(worker), server)
    if role is Role.SERVER_B:
        add_link_to_server(WorkerLinks(worker).link, server)
    port = add_port(server, start.listen, identity)
    await server.start()
    return server, port


def main() -> None:
    """The process."""
    keep_freed_buffers(PIECES)
    # A dump would hold clients' seeds.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # A terminal's Ctrl-C is for the server, which ends its workers itself.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    start_log(people=LOG_FORMAT)
    try:
        asyncio.run(serve(WorkerStart.model_validate_json(sys.stdin.readline())))
    except PrecadError as error:
        sys.exit(f"precad: {error}")


if __name__ == "__main__":
    main()
