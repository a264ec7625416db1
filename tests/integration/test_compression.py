"""Nothing is inflated: some versions of gRPC inflate a message before they look at its size."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from tests.integration.conftest import Serve
from tests.rig.warm import SOURCES

from precad.common.identifiers import Role
from precad.common.identity.credentials import Identity
from precad.common.identity.mutual_tls import dialling, open_channel
from precad.common.wire.serving import SERVER_OPTIONS

METHOD = "/test/Echo"
BOMB = 128 << 20
ROOM_KB = 64 << 10
"""Half of what the bomb would take."""
SERVER = """
import asyncio, resource, sys
import precad
import grpc, grpc.aio
from pathlib import Path
from precad.common.identity.credentials import Identity
from precad.common.identity.mutual_tls import add_port
from precad.common.wire.serving import SERVER_OPTIONS

class Echo(grpc.GenericRpcHandler):
    def service(self, _details):
        async def answer(request, _context):
            return str(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss).encode()
        return grpc.unary_unary_rpc_method_handler(answer)

async def main():
    server = grpc.aio.server(options=SERVER_OPTIONS)
    server.add_generic_rpc_handlers((Echo(),))
    print(add_port(server, "127.0.0.1:0", Identity.load(Path(sys.argv[1]))), flush=True)
    await server.start()
    await server.wait_for_termination()

asyncio.run(main())
"""


@pytest.fixture
def server(keys: Path) -> Iterator[str]:
    """A server's process; it answers how much memory it has used at most, in KiB."""
    arguments = [sys.executable, "-c", SERVER, str(keys / "server-a")]
    environment = os.environ | {"PYTHONPATH": SOURCES}
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        try:
            yield f"127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.kill()


def call(channel: grpc.Channel, request: bytes) -> bytes:
    method: Any = channel.unary_unary(METHOD)
    answer: bytes = method(request, timeout=60)
    return answer


def test_a_compressed_bomb_is_refused_and_not_inflated(server: str, keys: Path) -> None:
    identity = Identity.load(keys / "ward-1")
    address, credentials, options = dialling(server, identity, Role.SERVER_A)
    # A caller that keeps none of our rules.
    options = [(k, v) for k, v in options if "compression" not in k]
    with open_channel(server, identity, Role.SERVER_A) as honest:
        used = int(call(honest, b""))
        with grpc.secure_channel(
            address, credentials, options, compression=grpc.Compression.Gzip
        ) as hostile:
            for _ in range(3):
                with pytest.raises(grpc.RpcError) as refused:
                    call(hostile, bytes(BOMB))
                assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
        assert int(call(honest, b"")) - used < ROOM_KB


def test_a_client_takes_no_compressed_answer(keys: Path, serve: Serve) -> None:
    large = grpc.unary_unary_rpc_method_handler(lambda _request, _context: bytes(1 << 20))
    handler = grpc.method_handlers_generic_handler("test", {"Echo": large})
    options = [(k, v) for k, v in SERVER_OPTIONS if "compression" not in k]
    answers = {"options": options, "compression": grpc.Compression.Gzip}
    address = serve(Identity.load(keys / "server-a"), handler, **answers)
    with (
        open_channel(address, Identity.load(keys / "ward-1"), Role.SERVER_A) as channel,
        pytest.raises(grpc.RpcError) as refused,
    ):
        call(channel, b"")
    assert refused.value.code() in (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.INTERNAL)
