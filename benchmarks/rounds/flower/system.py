"""Flower as a system: its server, and one process with all its clients."""

import ipaddress
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from benchmarks.rounds.lines import Lines, Wire
from benchmarks.rounds.meter import read
from benchmarks.rounds.part import Part
from benchmarks.rounds.sample import Sample, between, require_right
from precad.cli.local_deployment import free_addresses

FLOAT_BYTES = 4
_QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "PYTHONWARNINGS": "ignore"}


class Flower:
    """A running server and its clients.

    Args:
        server: the process.
        clients: the process with all of them.
        moved: bytes of all vectors, one way.
        wire: to the server.
    """

    name = "flower"

    def __init__(self, server: Part, clients: Part, moved: int, wire: Wire) -> None:
        self.processes = {"server": server.pid, "clients": clients.pid}
        self._server, self._moved, self._wire = server, moved, wire

    def play(self) -> Sample:
        """One round: to the new mean at the server, which clients hear of in the next one."""
        with self._wire.round():
            begin = read(self.processes)
            self._server.ask(play=True)
            took = between(begin, read(self.processes))
        require_right(self.name, self._server.ask(check=True))
        return Sample({"round_s": took.at_s}, {"round": took.cpu_s})

    def facts(self) -> dict[str, Any]:
        """The vectors' own bytes, by link, and what the wire had."""
        payload = {"clients to server": self._moved, "server to clients": self._moved}
        return {"payload_bytes": payload, **self._wire.facts()}


@contextmanager
def set_up(
    dimension: int, clients: int, bound: int, folder: Path, lines: Lines
) -> Iterator[Flower]:
    """A server and ``clients`` clients whose vectors are at most ``bound`` long.

    Raises:
        PrecadError: a part didn't start.
    """
    folder.mkdir()
    (address,) = free_addresses(1)
    certificate, key = _certified(folder)
    alike = {"count": clients, "dimension": dimension, "bound": bound}
    with (
        Part("server", "benchmarks.rounds.flower.server", folder, _QUIET) as server,
        Part("clients", "benchmarks.rounds.flower.clients", folder, _QUIET) as process,
    ):
        # Before anybody dials: whoever does so too early may be given the very port to dial from.
        server.ask(address=address, certificates=[certificate, certificate, key], **alike)
        process.ask(address=lines.way("clients", address), root=certificate, **alike)
        server.hear()
        moved = FLOAT_BYTES * dimension * clients
        yield Flower(server, process, moved, Wire(lines, {address: "server"}))


def _certified(folder: Path) -> tuple[str, str]:
    """A certificate for this machine, its own root, and its key: Flower checks the address."""
    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([])
    here = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([here]), critical=True)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    paths = folder / "certificate.pem", folder / "key.pem"
    paths[0].write_bytes(certificate.public_bytes(Encoding.PEM))
    paths[1].write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return str(paths[0]), str(paths[1])
