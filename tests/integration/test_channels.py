"""TLS 1.3 alone, in either direction, and nothing inflated."""

import os
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from tests.integration.conftest import Serve
from tests.rig.commands import printed
from tests.rig.warm import SOURCES

from precad import TLS13_ALONE
from precad.common.identifiers import Role
from precad.common.identity.credentials import Identity
from precad.common.identity.mutual_tls import dialling, open_channel
from precad.common.wire.serving import SERVER_OPTIONS

TIMEOUT_S = 60.0
VARIABLE, SUITE = TLS13_ALONE


def context_of(folder: Path, protocol: int, version: ssl.TLSVersion) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.load_verify_locations(folder / "ca.pem")
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    context.minimum_version = context.maximum_version = version
    context.set_alpn_protocols(["h2"])
    return context


def test_a_tls13_client_is_served_and_a_tls12_client_is_not(keys: Path, serve: Serve) -> None:
    port = int(serve(Identity.load(keys / "server-b")).rpartition(":")[2])

    def speak(version: ssl.TLSVersion) -> tuple[str | None, int]:
        """The version, and the kind of the first frame that the server sends."""
        context = context_of(keys / "server-a", ssl.PROTOCOL_TLS_CLIENT, version)
        with (
            socket.create_connection(("127.0.0.1", port), TIMEOUT_S) as raw,
            context.wrap_socket(raw, server_hostname="server-b.precad") as tls,
        ):
            return tls.version(), tls.recv(9)[3]

    # An HTTP/2 server begins with a SETTINGS frame, type 4.
    assert speak(ssl.TLSVersion.TLSv1_3) == ("TLSv1.3", 4)
    with pytest.raises((ssl.SSLError, ConnectionError)):
        speak(ssl.TLSVersion.TLSv1_2)


@pytest.mark.parametrize(
    ("version", "expected"),
    [(ssl.TLSVersion.TLSv1_3, "PRI * HTTP/2.0"), (ssl.TLSVersion.TLSv1_2, "refused")],
)
def test_a_channel_speaks_tls13_alone(keys: Path, version: ssl.TLSVersion, expected: str) -> None:
    context = context_of(keys / "server-b", ssl.PROTOCOL_TLS_SERVER, version)
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as threads:
        listener.settimeout(TIMEOUT_S)

        def listen() -> str:
            raw, _ = listener.accept()
            raw.settimeout(TIMEOUT_S)
            try:
                with context.wrap_socket(raw, server_side=True) as tls:
                    return tls.recv(14).decode()
            except ssl.SSLError:
                return "refused"

        heard = threads.submit(listen)
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        with open_channel(address, Identity.load(keys / "server-a"), Role.SERVER_B) as channel:
            call: Any = channel.unary_unary("/test/Any")
            with pytest.raises(grpc.RpcError):
                call(b"", timeout=TIMEOUT_S)
            assert heard.result(TIMEOUT_S) == expected


WEAK = "ECDHE-ECDSA-AES128-GCM-SHA256"


@pytest.mark.parametrize(
    ("imports", "suite", "expected"),
    [
        ("precad, grpc", None, "opened"),
        ("grpc, precad", None, "Misconfiguration"),
        ("grpc, precad", SUITE, "opened"),
        ("grpc, precad", WEAK, "Misconfiguration"),
        ("precad, grpc", WEAK, "opened"),
    ],
)
def test_grpc_imported_too_early_is_an_error_never_tls12(
    keys: Path, monkeypatch: pytest.MonkeyPatch, imports: str, suite: str | None, expected: str
) -> None:
    program = f"""
import {imports}
from precad.common.errors import Misconfiguration
from precad.common.identifiers import Role
from precad.common.identity.credentials import Identity
from precad.common.identity.mutual_tls import open_channel
try:
    open_channel("127.0.0.1:1", Identity.load({str(keys / "ward-3")!r}), Role.SERVER_A).close()
    print("opened")
except Misconfiguration as error:
    print("Misconfiguration", error)
"""
    monkeypatch.delenv(VARIABLE, raising=False)
    environment = {VARIABLE: suite} if suite else None
    assert printed("-c", program, env=environment).startswith(expected)


# Some versions of gRPC inflate a message before they look at its size

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
    answer: bytes = method(request, timeout=TIMEOUT_S)
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
    large: Any = grpc.unary_unary_rpc_method_handler(lambda _request, _context: bytes(1 << 20))
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
