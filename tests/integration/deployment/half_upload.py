"""A client that dies in the middle of its upload, as a process of its own.

Says ``half`` on stdout once half of B's body is on its way, and then waits to be killed.
"""

import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tests.rig.light_client import LightClient

from precad.client.connection import Servers
from precad.common.identifiers import ClientId, Digest, Role
from precad.common.identity.channel import open_channel
from precad.common.identity.credentials import Identity
from precad.common.task import Task
from precad.common.wire.submission import upload_pieces
from precad.protos import precad_pb2 as pb
from precad.protos.precad_pb2_grpc import AggregationStub

folder, name, server_a, server_b = Path(sys.argv[1]), *sys.argv[2:]
task, identity = Task.load(folder / "task.toml"), Identity.load(folder / "keys" / name)


def half(pieces: Iterator[pb.SubmissionPiece]) -> Iterator[pb.SubmissionPiece]:
    yield next(pieces)
    yield next(pieces)
    data = next(pieces).body
    yield pb.SubmissionPiece(body=data[: len(data) // 2])
    sys.stdout.write("half\n")
    sys.stdout.flush()
    time.sleep(600)


with LightClient(Servers(task, ClientId(name), server_a, server_b, identity)) as client:
    client.join()
    event = client.opened(fresh_s=60, timeout_s=60)
    x = client.servers.fetch_model(event.version, event.model_digest).astype("i8")
    _, b = client.servers.prepare(event.version, event.attempt, Digest(event.model_digest), x)
    channel = open_channel(server_b, identity, Role.SERVER_B)
    AggregationStub(channel).Submit(half(upload_pieces(b)), timeout=600)
