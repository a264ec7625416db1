"""Mutual TLS gives what a certificate says; for every RPC: hostile/test_access_table.py."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from tests.integration.conftest import Serve
from tests.rig.keys import forged, unchecked

from precad.common import clock
from precad.common.errors import AccessDenied, Denial, Misconfiguration
from precad.common.identifiers import Role
from precad.common.identity.authority import Authority, to_pem
from precad.common.identity.credentials import Identity
from precad.common.identity.deployment_keys import Deployment, create_local_keys
from precad.common.identity.mutual_tls import add_port, open_channel, require
from precad.common.identity.party_certificate import Principal

METHOD = "/test/WhoAmI"
Code = grpc.StatusCode
DEADLINE_S = 60.0
WARD_3 = Principal.client("ward-3")


class OnlyFor(grpc.GenericRpcHandler):
    """One method that answers the caller's name, for some roles."""

    def __init__(self, identity: Identity, *roles: Role) -> None:
        self.identity, self.roles = identity, roles

    def service(self, _details: Any) -> Any:
        return grpc.unary_unary_rpc_method_handler(self.answer)

    def answer(self, _request: bytes, context: Any) -> Any:
        try:
            return str(require(context, self.identity, *self.roles)).encode()
        except AccessDenied as denied:
            known = denied.reason is Denial.NOT_ALLOWED
            code = Code.PERMISSION_DENIED if known else Code.UNAUTHENTICATED
            return context.abort(code, str(denied))


def only_for(identity: Identity, *roles: Role) -> tuple[Identity, OnlyFor]:
    return identity, OnlyFor(identity, *roles)


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """Keys that the test changes."""
    create_local_keys(tmp_path, ["ward-3", "ward-2"])
    return tmp_path


def revoke_ward_3(keys: Path) -> Deployment:
    deployment = Deployment.open(keys)
    deployment.revoke(deployment.current_serials(WARD_3))
    return deployment


def who_am_i(channel: Any) -> Any:
    return channel.unary_unary(METHOD)


def ask(channel: grpc.Channel) -> str | grpc.StatusCode:
    """The name that the server answers, or the status that the call ends with."""
    with channel:
        try:
            return bytes(who_am_i(channel)(b"", timeout=DEADLINE_S)).decode()
        except grpc.RpcError as error:
            return error.code()


NAMES: dict[str, tuple[tuple[str, ...], Any]] = {
    "a name outside the root's domain": (("server-a.example",), Code.UNAVAILABLE),
    "no name but the common one": ((), Code.UNAVAILABLE),
    "one name in capitals": (("SERVER-A.precad",), Code.UNAUTHENTICATED),
    "a name below the server's": (("x.server-a.precad",), Code.UNAUTHENTICATED),
    "its own": (("server-a.precad",), "server-a.precad"),
}
"""Of a certificate that is good otherwise. What else can be wrong: hostile/test_access_table.py."""


@pytest.mark.parametrize("kind", NAMES)
def test_server_a_is_who_has_its_name_as_it_is_written(keys: Path, serve: Serve, kind: str) -> None:
    names, outcome = NAMES[kind]
    root = Deployment.open(keys)._authority
    caller = forged(Identity.load(keys / "server-a"), root, *names)
    address = serve(*only_for(Identity.load(keys / "server-b"), Role.SERVER_A))
    assert ask(open_channel(address, caller, Role.SERVER_B)) == outcome


def test_servers_in_anothers_place_are_refused(keys: Path, serve: Serve) -> None:
    ward = Identity.load(keys / "ward-3")
    server_a = Identity.load(keys / "server-a")
    root = Deployment.open(keys)._authority
    another = forged(server_a, Authority.create(), "server-b.precad")
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
    with pytest.raises(Misconfiguration, match="role"):
        add_port(grpc.server(ThreadPoolExecutor(1)), "127.0.0.1:0", ward)
    server = grpc.server(ThreadPoolExecutor(1), [OnlyFor(ward, Role.CLIENT)])
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


def test_revocation_ends_a_connection_that_is_already_open(own: Path, serve: Serve) -> None:
    address = serve(*only_for(Identity.load(own / "server-a"), Role.CLIENT))
    calls = {
        name: who_am_i(open_channel(address, Identity.load(own / name), Role.SERVER_A))
        for name in ("ward-3", "ward-2")
    }
    assert calls["ward-3"](b"", timeout=DEADLINE_S) == b"ward-3.client.precad"
    revoke_ward_3(own)
    with pytest.raises(grpc.RpcError, match="revoked") as caught:
        calls["ward-3"](b"", timeout=DEADLINE_S)
    assert caught.value.code() is Code.UNAUTHENTICATED
    assert calls["ward-2"](b"", timeout=DEADLINE_S) == b"ward-2.client.precad"


@pytest.mark.parametrize("damage", ["deleted", "nonsense", "another root's", "an older list"])
def test_damage_to_the_list_revives_no_certificate(own: Path, serve: Serve, damage: str) -> None:
    server_a, listed = Identity.load(own / "server-a"), own / "server-a" / "crl.pem"
    yesterday = datetime.now(UTC) - timedelta(days=1)
    root = Deployment.open(own)._authority
    texts = {
        "nonsense": b"nonsense",
        "another root's": to_pem(Authority.create().revocation_list([], number=9)),
        "an older list": to_pem(root.revocation_list([], number=1, now=yesterday)),
    }
    revoke_ward_3(own)
    address = serve(*only_for(server_a, Role.CLIENT))
    ward = unchecked(own / "ward-3", server_a)
    assert ask(open_channel(address, ward, Role.SERVER_A)) is Code.UNAUTHENTICATED
    if damage in texts:
        listed.write_bytes(texts[damage])
    else:
        listed.unlink()
    assert ask(open_channel(address, ward, Role.SERVER_A)) is Code.UNAUTHENTICATED


def test_a_certificate_that_ends_in_a_connection_is_refused(
    keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    identity = Identity.load(keys / "server-b")
    # What a servicer sees of a connection whose handshake is long over.
    seen = [(keys / "ward-3" / "cert.pem").read_bytes()]
    connection = {"transport_security_type": [b"ssl"], "x509_pem_cert": seen}
    context: Any = SimpleNamespace(auth_context=lambda: connection)
    assert require(context, identity, Role.CLIENT) == WARD_3
    for days, denial in ((366, "expired"), (-1, "not-yet-valid")):
        at = datetime.now(UTC) + timedelta(days=days)
        monkeypatch.setattr(clock, "wall", lambda at=at: at)
        with pytest.raises(AccessDenied, match=denial):
            require(context, identity, Role.CLIENT)


def test_renewal_keeps_the_party_and_both_certificates_serve(own: Path, serve: Serve) -> None:
    before = Identity.load(own / "ward-3")
    Deployment.open(own).renew(WARD_3)
    after = Identity.load(own / "ward-3")
    assert after.key != before.key
    address = serve(*only_for(Identity.load(own / "server-a"), Role.CLIENT))
    for identity in (before, after):
        assert ask(open_channel(address, identity, Role.SERVER_A)) == "ward-3.client.precad"


@pytest.mark.parametrize("address", ["dns:///localhost:7301", "unix:/tmp/socket", "[::1]:99999"])
def test_what_is_no_address_is_refused(keys: Path, address: str) -> None:
    with pytest.raises(Misconfiguration, match=r"host:port|a port is"):
        open_channel(address, Identity.load(keys / "ward-3"), Role.SERVER_A)
    # gRPC binds another port.
    with pytest.raises(Misconfiguration, match=r"host:port|a port is"):
        add_port(grpc.server(ThreadPoolExecutor(1)), address, Identity.load(keys / "server-a"))
    # Nobody dials a role that serves nothing.
    for role in (Role.CLIENT, Role.OPERATOR):
        with pytest.raises(Misconfiguration, match="only server-a, server-b and the dealer serve"):
            open_channel("127.0.0.1:7301", Identity.load(keys / "ward-3"), role)


def test_a_port_that_is_taken_is_said(keys: Path) -> None:
    identity = Identity.load(keys / "server-a")
    options = (("grpc.so_reuseport", 0),)
    first = grpc.server(ThreadPoolExecutor(1), options=options)
    port = add_port(first, "127.0.0.1:0", identity)
    second = grpc.server(ThreadPoolExecutor(1), options=options)
    with pytest.raises(Misconfiguration, match="can't be bound"):
        add_port(second, f"127.0.0.1:{port}", identity)
