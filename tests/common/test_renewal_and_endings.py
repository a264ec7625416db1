"""A renewed certificate is used without a restart, and what ends soon is said before.

In a whole training: tests/faults/test_ends_in_training.py, of real processes
tests/soak/test_renewal.py.
"""

import asyncio
import logging
import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest
from grpc_health.v1.health_pb2_grpc import HealthStub
from tests.rig.keys import earlier_identity, verifier, write_folder
from tests.rig.loop import LoopThread

from precad.common import clock
from precad.common.errors import PeerUnavailable
from precad.common.identifiers import Role
from precad.common.identity import endings
from precad.common.identity.credentials import Identity
from precad.common.identity.deployment_keys import Deployment, create_local_keys
from precad.common.identity.mutual_tls import open_channel, why_unreachable
from precad.common.identity.party_certificate import Principal, read_certificates
from precad.common.identity.signatures import CertificateSigner, CertificateVerifier
from precad.common.wire.serving import add_health

A = Principal.service(Role.SERVER_A)
B = Principal.service(Role.SERVER_B)
WARD = Principal.client("ward-3")
DEADLINE_S = 60.0


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    create_local_keys(tmp_path / "keys", [WARD.name])
    return tmp_path / "keys"


def end_of(shown: Identity) -> datetime:
    return read_certificates(shown.cert, source="test")[0].not_valid_after_utc


def test_a_signature_is_by_the_newest_key_and_every_renewal_shares_what_was_met(
    keys: Path,
) -> None:
    own = Identity.load(keys / "server-a")
    others = CertificateVerifier(Identity.load(keys / "ward-3"))
    signer = CertificateSigner(own)
    first = signer.sign(b"x")
    assert own.current() is own
    for days in (20, 40):
        Deployment.open(keys).renew(A, days=days)
        second = signer.sign(b"x")
        assert second.certificates != first.certificates
        for signature in (first, second):
            others.check_server(signature, Role.SERVER_A, b"x")
        renewed = own.current()
        assert renewed is own.current() is renewed.current()
        assert end_of(renewed) > clock.wall() + timedelta(days=days - 1)
        first = second
    assert renewed.met is own.met
    assert renewed.revocations is own.revocations


def test_a_port_shows_the_newest_certificate_and_a_channel_too(keys: Path) -> None:
    own, operator = (Identity.load(keys / name) for name in ("server-a", "operator"))

    def make() -> grpc.aio.Server:
        server = grpc.aio.server()
        add_health(server, own, lambda: True)
        return server

    def asked() -> None:
        with open_channel(address, operator, Role.SERVER_A) as channel:
            HealthStub(channel).Check(
                HealthCheckRequest(), timeout=DEADLINE_S, wait_for_ready=True
            )

    with LoopThread() as loop:
        address = loop.serve(make, own)
        for days in (365, 20):
            if days != 365:
                for party in (A, Principal.service(Role.OPERATOR)):
                    Deployment.open(keys).renew(party, days=days)
            asked()
            # Each side notes until when the other's certificate is valid.
            assert why_unreachable(address, operator, Role.SERVER_A) is None
            assert operator.met == {A: end_of(own.current())}
            met = own.met[Principal.service(Role.OPERATOR)]
            assert met == end_of(operator.current())
            assert met < clock.wall() + timedelta(days=days + 1)


def another_party(keys: Path, folder: Path) -> None:
    shutil.copy(keys / "server-b" / "key.pem", folder)
    shutil.copy(keys / "server-b" / "cert.pem", folder)


def another_root(keys: Path, folder: Path) -> None:
    create_local_keys(keys / "other", [])
    for name in ("ca.pem", "crl.pem", "key.pem", "cert.pem"):
        shutil.copy(keys / "other" / "server-a" / name, folder)


def expired(_: Path, folder: Path) -> None:
    write_folder(folder, A, clock.wall() - timedelta(days=1))


def half(keys: Path, folder: Path) -> None:
    shutil.copy(keys / "server-b" / "key.pem", folder)


@pytest.mark.parametrize("bring", [another_party, another_root, expired, half])
def test_files_that_do_not_count_leave_the_certificate_in_use_with_one_warning(
    keys: Path,
    caplog: pytest.LogCaptureFixture,
    bring: Callable[[Path, Path], None],
) -> None:
    own = Identity.load(keys / "server-a")
    bring(keys, keys / "server-a")
    for _ in range(3):
        assert own.current() is own
    (warning,) = caplog.records
    assert "the certificate read before stays in use" in warning.getMessage()


def test_a_folder_that_is_replaced_is_missing_for_a_moment_without_a_word(
    keys: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = keys / "server-a"
    old = keys / "old"
    own = Identity.load(folder)
    shutil.copytree(folder, keys / "new")
    Deployment.open(keys).renew(A, out=keys / "new")
    folder.rename(old)
    assert own.current() is own
    assert caplog.records == []
    (keys / "new").rename(folder)
    assert own.current() is not own


def test_what_ends_within_30_days_is_said_with_whose_it_is_and_who_renews_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began = datetime.now(UTC)
    folder = write_folder(tmp_path / "a", A, began + timedelta(days=100))
    own = Identity.load(folder)
    own.met[WARD] = began + timedelta(days=90)
    own.met[B] = began + timedelta(days=400)

    def said(days: float) -> list[str]:
        monkeypatch.setattr(clock, "wall", lambda: began + timedelta(days=days))
        return endings.ends_soon(own)

    assert said(59.9) == []
    (first,) = said(60.1)
    ends = f"{began + timedelta(days=90):%Y-%m-%d %H:%M} UTC"
    assert first.startswith(f"the certificate of {WARD} ends on {ends}: ")
    assert "precad keys renew DIRECTORY client ward-3" in first
    _, second = said(70.1)
    assert "the certificate of server-a.precad ends on" in second
    assert "precad keys renew DIRECTORY server-a)" in second
    # What has ended is still said; the root ends in ten years, and its list with it.
    assert len(said(120)) == 2
    kinds = {each.kind for each in endings.endings(own, own.met)}
    assert kinds == {"server-a", "server-b", "client", "authority"}


def test_authorities_and_revocation_lists_are_among_what_ends(keys: Path) -> None:
    own = Identity.load(keys / "server-a")
    by_kind = {each.kind: each for each in endings.endings(own, {})}
    assert by_kind.keys() == {"server-a", "authority", "revocation-list"}
    assert by_kind["authority"].ends == by_kind["revocation-list"].ends
    assert "precad root" in by_kind["authority"].what


def test_the_log_says_what_ends_soon_once_a_day(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    began = datetime(2030, 1, 1, 23, tzinfo=UTC)
    own = Identity.load(
        write_folder(tmp_path / "a", A, datetime.now(UTC) + timedelta(days=1))
    )
    hours = iter(range(30))
    monkeypatch.setattr(endings, "_LOOK_S", 0)

    async def look() -> None:
        done = asyncio.Event()

        def wall() -> datetime:
            hour = next(hours)
            if hour == 26:
                done.set()
            return began + timedelta(hours=hour)

        monkeypatch.setattr(clock, "wall", wall)
        await endings.tell_until(done, own)

    asyncio.run(look())
    # At 23 o'clock, and on each of the days that began since.
    assert len(caplog.records) >= 2
    assert {each.levelno for each in caplog.records} == {logging.WARNING}
    assert len(caplog.records) <= 3


def test_an_expired_certificate_is_said_to_be_its_partys() -> None:
    server_a = earlier_identity(A)
    signature = CertificateSigner(server_a).sign(b"x")
    says = (
        r"that of server-a\.precad is expired .* whoever holds the root renews it"
        r" \(precad keys renew DIRECTORY server-a\)"
    )
    with pytest.raises(PeerUnavailable, match=says):
        verifier().check_server(signature, Role.SERVER_A, b"x")
    with pytest.raises(PeerUnavailable, match=r"its own certificate, of server-a"):
        server_a.check_time()
