"""Real gRPC servers with mutual TLS: each identity gets what its certificate says, no more."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from tests.integration.conftest import Serve
from tests.rig.channel import open_aio_channel
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


class OnlyFor(grpc.GenericRpcHandler):
    """One method that answers the caller's name, for some roles."""

    def __init__(self, identity: Identity, roles: tuple[Role, ...]) -> None:
        self.identity = identity
        self.roles = roles

    def service(self, handler_call_details: Any) -> Any:
        del handler_call_details
        return grpc.unary_unary_rpc_method_handler(self.answer)

    def answer(self, request: bytes, context: Any) -> Any:
        del request
        try:
            return str(require(context, self.identity, *self.roles)).encode()
        except AccessDenied as denied:
            return context.abort(code_of(denied), str(denied))


class OnlyForAio(OnlyFor):
    async def answer(self, request: bytes, context: Any) -> bytes:
        answer = super().answer(request, context)
        return answer if isinstance(answer, bytes) else await answer


def code_of(denied: AccessDenied) -> grpc.StatusCode:
    known = denied.reason is Denial.NOT_ALLOWED
    return Code.PERMISSION_DENIED if known else Code.UNAUTHENTICATED


def only_for(identity: Identity, *roles: Role) -> tuple[Identity, OnlyFor]:
    return identity, OnlyFor(identity, roles)


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("keys")
    create_local_keys(directory, ["ward-3", "ward-4"])
    deployment = Deployment.open(directory)
    deployment.issue(Principal.client("ward-5"))
    deployment.revoke(deployment.current_serials(Principal.client("ward-5")))
    return directory


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


def test_a_client_is_who_its_certificate_says_whatever_it_claims(keys: Path, serve: Serve) -> None:
    address = serve(*only_for(Identity.load(keys / "server-a"), Role.CLIENT))
    channel = open_channel(address, Identity.load(keys / "ward-4"), Role.SERVER_A)
    with channel:
        metadata = (("precad-role", "client"), ("precad-name", "ward-3"))
        answer = who_am_i(channel)(b"", timeout=DEADLINE_S, metadata=metadata)
    assert answer == b"ward-4.client.precad"


def test_servers_in_anothers_place_are_refused(keys: Path, serve: Serve) -> None:
    ward = Identity.load(keys / "ward-3")
    server_a = Identity.load(keys / "server-a")
    root = Deployment.open(keys)._authority
    servers = {
        "A in B's place": server_a,
        "the dealer in B's place": Identity.load(keys / "dealer"),
        "another root's B": replace(
            forged(server_a, Authority.create(), "server-b.precad"), principal=server_a.principal
        ),
        "an expired B": forged(server_a, root, "server-b.precad", starts_days=-3, ends_days=-1),
        "B": Identity.load(keys / "server-b"),
    }
    outcomes = {
        who: ask(open_channel(serve(*only_for(each, Role.CLIENT)), ward, Role.SERVER_B))
        for who, each in servers.items()
    }
    assert outcomes == {
        "A in B's place": Code.UNAVAILABLE,
        "the dealer in B's place": Code.UNAVAILABLE,
        "another root's B": Code.UNAVAILABLE,
        "an expired B": Code.UNAVAILABLE,
        "B": "ward-3.client.precad",
    }


def test_a_clients_key_cannot_serve_even_without_our_own_check(keys: Path) -> None:
    ward = Identity.load(keys / "ward-3")
    with pytest.raises(Misconfiguration, match="role"):
        add_port(grpc.server(ThreadPoolExecutor(1)), "127.0.0.1:0", ward)
    server = grpc.server(ThreadPoolExecutor(1))
    server.add_generic_rpc_handlers((OnlyFor(ward, (Role.CLIENT,)),))
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


def test_revocation_ends_a_connection_that_is_already_open(tmp_path: Path, serve: Serve) -> None:
    create_local_keys(tmp_path, ["ward-3", "ward-4"])
    address = serve(*only_for(Identity.load(tmp_path / "server-a"), Role.CLIENT))
    calls = {
        name: who_am_i(open_channel(address, Identity.load(tmp_path / name), Role.SERVER_A))
        for name in ("ward-3", "ward-4")
    }
    assert calls["ward-3"](b"", timeout=DEADLINE_S) == b"ward-3.client.precad"
    deployment = Deployment.open(tmp_path)
    deployment.revoke(deployment.current_serials(Principal.client("ward-3")))
    with pytest.raises(grpc.RpcError) as caught:
        calls["ward-3"](b"", timeout=DEADLINE_S)
    assert caught.value.code() is Code.UNAUTHENTICATED
    assert "revoked" in str(caught.value.details())
    assert calls["ward-4"](b"", timeout=DEADLINE_S) == b"ward-4.client.precad"


@pytest.mark.parametrize("damage", ["deleted", "nonsense", "another root's", "an older list"])
def test_damage_to_the_list_brings_no_revoked_certificate_back(
    tmp_path: Path, serve: Serve, damage: str
) -> None:
    create_local_keys(tmp_path, ["ward-3"])
    server_a = Identity.load(tmp_path / "server-a")
    listed = tmp_path / "server-a" / "crl.pem"
    deployment = Deployment.open(tmp_path)
    older = deployment._authority.revocation_list(
        [], number=1, now=datetime.now(UTC) - timedelta(days=1)
    )
    deployment.revoke(deployment.current_serials(Principal.client("ward-3")))
    address = serve(*only_for(server_a, Role.CLIENT))
    ward = unchecked(tmp_path / "ward-3", server_a)
    assert ask(open_channel(address, ward, Role.SERVER_A)) is Code.UNAUTHENTICATED
    match damage:
        case "deleted":
            listed.unlink()
        case "nonsense":
            listed.write_bytes(b"nonsense")
        case "another root's":
            listed.write_bytes(to_pem(Authority.create().revocation_list([], number=9)))
        case _:
            listed.write_bytes(to_pem(older))
    assert ask(open_channel(address, ward, Role.SERVER_A)) is Code.UNAUTHENTICATED


def test_a_certificate_that_ends_during_a_connection_is_refused(
    keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    identity = Identity.load(keys / "server-b")
    context: Any = FakeContext((keys / "ward-3" / "cert.pem").read_bytes())
    assert require(context, identity, Role.CLIENT) == Principal.client("ward-3")
    for days, denial in ((366, "expired"), (-1, "not-yet-valid")):
        at = datetime.now(UTC) + timedelta(days=days)
        monkeypatch.setattr(clock, "wall", lambda at=at: at)
        with pytest.raises(AccessDenied, match=denial):
            require(context, identity, Role.CLIENT)


class FakeContext:
    """What a servicer sees of a connection whose handshake is long over."""

    def __init__(self, pem: bytes) -> None:
        self._pem = pem

    def auth_context(self) -> dict[str, list[bytes]]:
        return {"transport_security_type": [b"ssl"], "x509_pem_cert": [self._pem]}


def test_renewal_keeps_the_party_and_both_certificates_serve(tmp_path: Path, serve: Serve) -> None:
    create_local_keys(tmp_path, ["ward-3"])
    before = Identity.load(tmp_path / "ward-3")
    Deployment.open(tmp_path).renew(Principal.client("ward-3"))
    after = Identity.load(tmp_path / "ward-3")
    assert after.key != before.key
    address = serve(*only_for(Identity.load(tmp_path / "server-a"), Role.CLIENT))
    for identity in (before, after):
        channel = open_channel(address, identity, Role.SERVER_A)
        assert ask(channel) == "ward-3.client.precad"


def test_asyncio_servers_and_channels_decide_alike(keys: Path) -> None:
    async def outcomes() -> dict[str, str | grpc.StatusCode]:
        server_b = Identity.load(keys / "server-b")
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((OnlyForAio(server_b, (Role.SERVER_A,)),))
        port = add_port(server, "127.0.0.1:0", server_b)
        await server.start()
        found = {}
        for who, folder, place in (
            ("A", "server-a", Role.SERVER_B),
            ("a client", "ward-3", Role.SERVER_B),
            ("revoked", "ward-5", Role.SERVER_B),
            ("A that takes B for the dealer", "server-a", Role.DEALER),
        ):
            identity = unchecked(keys / folder, server_b)
            async with open_aio_channel(f"127.0.0.1:{port}", identity, place) as channel:
                found[who] = await ask_aio(channel)
        await server.stop(None)
        return found

    assert asyncio.run(outcomes()) == {
        "A": "server-a.precad",
        "a client": Code.PERMISSION_DENIED,
        "revoked": Code.UNAUTHENTICATED,
        "A that takes B for the dealer": Code.UNAVAILABLE,
    }


async def ask_aio(channel: grpc.aio.Channel) -> str | grpc.StatusCode:
    try:
        return bytes(await who_am_i(channel)(b"", timeout=DEADLINE_S)).decode()
    except grpc.aio.AioRpcError as error:
        return error.code()


@pytest.mark.parametrize("address", ["dns:///localhost:7301", "unix:/tmp/socket", "[::1]:99999"])
def test_what_is_no_address_is_refused(keys: Path, address: str) -> None:
    ward = Identity.load(keys / "ward-3")
    for opening in (open_channel, open_aio_channel):
        with pytest.raises(Misconfiguration, match=r"host:port|a port is"):
            opening(address, ward, Role.SERVER_A)
    # gRPC binds another port.
    with pytest.raises(Misconfiguration, match=r"host:port|a port is"):
        add_port(grpc.server(ThreadPoolExecutor(1)), address, Identity.load(keys / "server-a"))


@pytest.mark.parametrize("role", [Role.CLIENT, Role.OPERATOR])
def test_nobody_dials_a_role_that_serves_nothing(keys: Path, role: Role) -> None:
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
