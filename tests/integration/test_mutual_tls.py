"""Mutual TLS gives what a certificate says, in TLS 1.3 alone, in either direction, and
inflates nothing; what each RPC gives each identity: hostile/test_access_table.py.
"""

import os
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import grpc
import pytest
from tests.integration.conftest import Serve
from tests.rig import commands, refusals, warm
from tests.rig.keys import forged, unchecked

from precad import TLS13_ALONE
from precad.common import clock, errors
from precad.common.identifiers import Role
from precad.common.identity import authority, party_certificate
from precad.common.identity.credentials import Identity
from precad.common.identity.deployment_keys import Deployment, create_local_keys
from precad.common.identity.mutual_tls import add_port, dialling, open_channel, require
from precad.common.wire.serving import SERVER_OPTIONS

METHOD = "/test/Call"
Code = grpc.StatusCode
DEADLINE_S = 60.0
WARD_3 = party_certificate.Principal.client("ward-3")
GUEST = party_certificate.Principal.client("guest")


def only_for(
    identity: Identity, *roles: Role
) -> tuple[Identity, grpc.GenericRpcHandler]:
    """A server of one method that answers the caller's name, for some roles."""

    def answer(_request: bytes, context: grpc.ServicerContext) -> bytes:
        try:
            return str(require(context, identity, *roles)).encode()
        except errors.AccessDenied as denied:
            known = denied.reason is errors.Denial.NOT_ALLOWED
            code = Code.PERMISSION_DENIED if known else Code.UNAUTHENTICATED
            return context.abort(code, str(denied))

    return identity, handler(answer)


def handler(
    answer: Callable[[bytes, grpc.ServicerContext], bytes],
) -> grpc.GenericRpcHandler:
    method: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(
        answer
    )
    return grpc.method_handlers_generic_handler("test", {"Call": method})


@pytest.fixture
def own(tmp_path: Path) -> Path:
    create_local_keys(tmp_path, ["ward-3", "ward-2"])
    return tmp_path


def revoke_ward_3(keys: Path) -> None:
    deployment = Deployment.open(keys)
    deployment.revoke(deployment.current_serials(WARD_3))


def call(channel: grpc.Channel, request: bytes = b"") -> bytes:
    method: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(METHOD)
    return method(request, timeout=DEADLINE_S)


def ask(channel: grpc.Channel) -> str | grpc.StatusCode:
    with channel:
        try:
            return call(channel).decode()
        except grpc.RpcError as error:
            return error.code()


def test_server_a_is_who_has_its_name_as_it_is_written(
    keys: Path, serve: Serve
) -> None:
    base, root = Identity.load(keys / "server-a"), Deployment.open(keys)._authority
    address = serve(*only_for(Identity.load(keys / "server-b"), Role.SERVER_A))
    for names, outcome in (
        # Outside the root's domain; none but the common one; in capitals; below the
        # server's.
        (["server-a.example"], Code.UNAVAILABLE),
        ([], Code.UNAVAILABLE),
        (["SERVER-A.precad"], Code.UNAUTHENTICATED),
        (["x.server-a.precad"], Code.UNAUTHENTICATED),
        (["server-a.precad"], "server-a.precad"),
    ):
        caller = forged(base, root, *names)
        assert ask(open_channel(address, caller, Role.SERVER_B)) == outcome, names


def test_servers_in_anothers_place_are_refused(keys: Path, serve: Serve) -> None:
    ward = Identity.load(keys / "ward-3")
    server_a = Identity.load(keys / "server-a")
    root = Deployment.open(keys)._authority
    another = forged(server_a, authority.Authority.create(), "server-b.precad")
    expired = forged(server_a, root, "server-b.precad", starts_days=-3, ends_days=-1)
    for there, outcome in (
        (server_a, Code.UNAVAILABLE),
        (Identity.load(keys / "dealer"), Code.UNAVAILABLE),
        (replace(another, principal=server_a.principal), Code.UNAVAILABLE),
        (expired, Code.UNAVAILABLE),
        (Identity.load(keys / "server-b"), "ward-3.client.precad"),
    ):
        address = serve(*only_for(there, Role.CLIENT))
        assert ask(open_channel(address, ward, Role.SERVER_B)) == outcome, there


def test_a_clients_key_cannot_serve_even_without_our_own_check(keys: Path) -> None:
    ward = Identity.load(keys / "ward-3")
    refusals.refused(
        "role", add_port, grpc.server(ThreadPoolExecutor(1)), "127.0.0.1:0", ward
    )
    server = grpc.server(ThreadPoolExecutor(1), [only_for(ward, Role.CLIENT)[1]])
    credentials = grpc.ssl_server_credentials([(ward.key.reveal(), ward.cert)])
    port = server.add_secure_port("127.0.0.1:0", credentials)
    server.start()
    channel = grpc.secure_channel(
        f"127.0.0.1:{port}",
        grpc.ssl_channel_credentials(ward.ca),
        (("grpc.ssl_target_name_override", "ward-3.client.precad"),),
    )
    # The name is right: it is the extended key usage that TLS refuses.
    assert ask(channel) is Code.UNAVAILABLE
    server.stop(None).wait()


def test_revocation_ends_an_open_connection_and_a_renewal_none(
    own: Path, serve: Serve
) -> None:
    address = serve(*only_for(Identity.load(own / "server-a"), Role.CLIENT))
    ward_3, ward_2 = (Identity.load(own / name) for name in ("ward-3", "ward-2"))
    Deployment.open(own).renew(party_certificate.Principal.client("ward-2"))
    renewed = Identity.load(own / "ward-2")
    assert renewed.key != ward_2.key
    one, other, later = (
        open_channel(address, each, Role.SERVER_A) for each in (ward_3, ward_2, renewed)
    )
    assert call(one) == b"ward-3.client.precad"
    revoke_ward_3(own)
    with pytest.raises(grpc.RpcError, match="revoked") as caught:
        call(one)
    assert caught.value.code() is Code.UNAUTHENTICATED
    assert call(other) == call(later) == b"ward-2.client.precad"


def test_damage_to_the_list_revives_no_certificate(own: Path, serve: Serve) -> None:
    server_a, listed = Identity.load(own / "server-a"), own / "server-a" / "crl.pem"
    root, yesterday = (
        Deployment.open(own)._authority,
        datetime.now(UTC) - timedelta(days=1),
    )
    revoke_ward_3(own)
    address = serve(*only_for(server_a, Role.CLIENT))
    ward = unchecked(own / "ward-3", server_a)
    for damage in (
        *(listed.read_bytes(), None, b"nonsense"),
        authority.to_pem(authority.Authority.create().revocation_list([], number=9)),
        authority.to_pem(root.revocation_list([], number=1, now=yesterday)),
    ):
        listed.unlink(missing_ok=True)
        if damage is not None:
            listed.write_bytes(damage)
        assert ask(open_channel(address, ward, Role.SERVER_A)) is Code.UNAUTHENTICATED


def test_a_new_file_without_one_authoritys_list_revives_none_of_its_certificates(
    own: Path, serve: Serve
) -> None:
    """Of two roots in ca.pem, both named as ``precad keys init`` names them."""
    other = authority.Authority.create()
    folder = own / "server-a"
    revoke_ward_3(own)
    both = (folder / "ca.pem").read_bytes() + authority.to_pem(other.certificate)
    (folder / "ca.pem").write_bytes(both)
    listed = folder / "crl.pem"
    long_ago = datetime.now(UTC) - timedelta(days=9)
    old = authority.to_pem(other.revocation_list([], number=1, now=long_ago))
    listed.write_bytes(listed.read_bytes() + old)
    server_a = Identity.load(folder)
    address = serve(*only_for(server_a, Role.CLIENT))
    ward = unchecked(own / "ward-3", server_a)
    key = authority.new_key()
    guest = replace(
        ward,
        key=authority.key_to_pem(key),
        cert=authority.to_pem(other.issue(GUEST, key.public_key())),
    )
    # One after the other they come from the other root's operator.
    for number in (2, 3):
        assert ask(open_channel(address, ward, Role.SERVER_A)) is Code.UNAUTHENTICATED
        assert ask(open_channel(address, guest, Role.SERVER_A)) == GUEST.dns_name
        listed.write_bytes(authority.to_pem(other.revocation_list([], number=number)))
    assert ask(open_channel(address, ward, Role.SERVER_A)) is Code.UNAUTHENTICATED


def test_a_certificate_that_ended_is_refused(
    keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    identity = Identity.load(keys / "server-b")
    # What a servicer sees of a connection whose handshake is long over.
    seen = [(keys / "ward-3" / "cert.pem").read_bytes()]
    connection = {"transport_security_type": [b"ssl"], "x509_pem_cert": seen}
    context = cast(
        "grpc.ServicerContext", SimpleNamespace(auth_context=lambda: connection)
    )
    assert require(context, identity, Role.CLIENT) == WARD_3
    for days, denial in ((366, "expired"), (-1, "not-yet-valid")):
        at = datetime.now(UTC) + timedelta(days=days)
        monkeypatch.setattr(clock, "wall", lambda at=at: at)
        with pytest.raises(errors.AccessDenied, match=denial):
            require(context, identity, Role.CLIENT)


def test_what_is_no_address_of_a_server_is_neither_dialled_nor_bound(
    keys: Path,
) -> None:
    ward, identity = Identity.load(keys / "ward-3"), Identity.load(keys / "server-a")
    for address in ("dns:///localhost:7301", "unix:/tmp/socket", "[::1]:99999"):
        refusals.refused(
            r"host:port|a port is", open_channel, address, ward, Role.SERVER_A
        )
    for role in (Role.CLIENT, Role.OPERATOR):
        only = "only server-a, server-b and the dealer serve"
        refusals.refused(only, open_channel, "127.0.0.1:7301", ward, role)
    # gRPC binds another port.
    options = (("grpc.so_reuseport", 0),)
    one, other = (grpc.server(ThreadPoolExecutor(1), options=options) for _ in range(2))
    for address in (
        f"127.0.0.1:{add_port(one, '127.0.0.1:0', identity)}",
        "[::1]:99999",
    ):
        refusals.refused(
            r"can't be bound|a port is", add_port, other, address, identity
        )


VARIABLE, SUITE = TLS13_ALONE


def context_of(folder: Path, protocol: int, version: ssl.TLSVersion) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.load_verify_locations(folder / "ca.pem")
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    context.minimum_version = context.maximum_version = version
    context.set_alpn_protocols(["h2"])
    return context


def test_a_tls13_client_is_served_and_a_tls12_client_is_not(
    keys: Path, serve: Serve
) -> None:
    port = int(serve(Identity.load(keys / "server-b")).rpartition(":")[2])

    def speak(version: ssl.TLSVersion) -> tuple[str | None, int]:
        context = context_of(keys / "server-a", ssl.PROTOCOL_TLS_CLIENT, version)
        with (
            socket.create_connection(("127.0.0.1", port), DEADLINE_S) as raw,
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
def test_a_channel_speaks_tls13_alone(
    keys: Path, version: ssl.TLSVersion, expected: str
) -> None:
    context = context_of(keys / "server-b", ssl.PROTOCOL_TLS_SERVER, version)
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        ThreadPoolExecutor(1) as threads,
    ):
        listener.settimeout(DEADLINE_S)

        def listen() -> str:
            raw, _ = listener.accept()
            raw.settimeout(DEADLINE_S)
            try:
                with context.wrap_socket(raw, server_side=True) as tls:
                    return tls.recv(14).decode()
            except ssl.SSLError:
                return "refused"

        heard = threads.submit(listen)
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        with open_channel(
            address, Identity.load(keys / "server-a"), Role.SERVER_B
        ) as channel:
            with pytest.raises(grpc.RpcError):
                call(channel)
            assert heard.result(DEADLINE_S) == expected


WEAK = "ECDHE-ECDSA-AES128-GCM-SHA256"


OPENS = """
import {}
from precad.common.errors import Misconfiguration
from precad.common.identifiers import Role
from precad.common.identity.credentials import Identity
from precad.common.identity.mutual_tls import open_channel
try:
    open_channel("127.0.0.1:1", Identity.load({!r}), Role.SERVER_A).close()
    print("opened")
except Misconfiguration as error:
    print("Misconfiguration", error)
"""


def test_grpc_imported_too_early_is_no_tls12(
    keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    for imports, suite, said in (
        ("precad, grpc", None, "opened"),
        ("grpc, precad", None, "Misconfiguration"),
        ("grpc, precad", SUITE, "opened"),
        ("grpc, precad", WEAK, "Misconfiguration"),
        ("precad, grpc", WEAK, "opened"),
    ):
        environment = {VARIABLE: suite} if suite else None
        program = OPENS.format(imports, str(keys / "ward-3"))
        assert commands.printed("-c", program, env=environment).startswith(said), (
            imports,
            suite,
        )


# Some versions of gRPC inflate a message before they look at its size.
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
    environment = os.environ | {"PYTHONPATH": warm.SOURCES}
    with subprocess.Popen(
        arguments, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        try:
            yield f"127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.kill()


def test_a_compressed_bomb_is_refused_and_not_inflated(server: str, keys: Path) -> None:
    identity = Identity.load(keys / "ward-1")
    address, credentials, options = dialling(server, identity, Role.SERVER_A)
    # A caller that keeps none of our rules.
    options = [(k, v) for k, v in options if "compression" not in k]
    with open_channel(server, identity, Role.SERVER_A) as honest:
        used = int(call(honest))
        with grpc.secure_channel(
            address, credentials, options, compression=grpc.Compression.Gzip
        ) as hostile:
            for _ in range(3):
                with pytest.raises(grpc.RpcError) as ended:
                    call(hostile, bytes(BOMB))
                assert ended.value.code() is grpc.StatusCode.UNIMPLEMENTED
        assert int(call(honest)) - used < ROOM_KB


def test_a_client_takes_no_compressed_answer(keys: Path, serve: Serve) -> None:
    options = [(k, v) for k, v in SERVER_OPTIONS if "compression" not in k]
    answers = {"options": options, "compression": grpc.Compression.Gzip}
    address = serve(
        Identity.load(keys / "server-a"), handler(lambda *_: bytes(1 << 20)), **answers
    )
    with (
        open_channel(address, Identity.load(keys / "ward-1"), Role.SERVER_A) as channel,
        pytest.raises(grpc.RpcError) as ended,
    ):
        call(channel)
    assert ended.value.code() in (
        grpc.StatusCode.UNIMPLEMENTED,
        grpc.StatusCode.INTERNAL,
    )
