"""Flower as a system: its server, and one process with all its clients."""

import ipaddress
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
)

from benchmarks.rounds.fed_avg.system import FLOAT_BYTES, OneServer
from benchmarks.rounds.flower.installed import environment
from benchmarks.rounds.lines import Lines, Wire
from benchmarks.rounds.part import Part
from benchmarks.rounds.sample import MEAN
from precad.cli.local_deployment import free_addresses

NAME = "flower"


@contextmanager
def set_up(
    dimension: int, clients: int, bound: int, folder: Path, lines: Lines
) -> Iterator[OneServer]:
    """A server and ``clients`` clients whose vectors are at most ``bound`` long.

    Raises:
        PrecadError: a part didn't start.
    """
    folder.mkdir()
    (address,) = free_addresses(1)
    certificate, key = _certified(folder)
    alike = {"count": clients, "dimension": dimension, "bound": bound}
    around = {**environment(), "PYTHONWARNINGS": "ignore"}
    with (
        Part("server", "benchmarks.rounds.flower.server", folder, around) as server,
        Part("clients", "benchmarks.rounds.flower.clients", folder, around) as process,
    ):
        # Before anybody dials: whoever does so too early may be given the very port to
        # dial from.
        server.ask(
            address=address, certificates=[certificate, certificate, key], **alike
        )
        process.ask(address=lines.way("clients", address), root=certificate, **alike)
        server.hear()
        moved = FLOAT_BYTES * dimension * clients
        # To the new mean at the server, which clients hear of in the next round.
        wire = Wire(lines, {address: "server"})
        yield OneServer(NAME, server, process, server, moved, wire, over=MEAN)


def _certified(folder: Path) -> tuple[str, str]:
    """A certificate for this machine, its own root, and its key: Flower checks the address."""
    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([])
    here = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(
            name, name, key.public_key(), x509.random_serial_number()
        )
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([here]), critical=True)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    paths = folder / "certificate.pem", folder / "key.pem"
    paths[0].write_bytes(certificate.public_bytes(Encoding.PEM))
    paths[1].write_bytes(
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    )
    return str(paths[0]), str(paths[1])
