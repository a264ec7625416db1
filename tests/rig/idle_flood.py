"""Connections of one certificate that say hello and nothing more."""

import contextlib
import socket
import ssl
import threading
from pathlib import Path
from typing import Self

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"  # HTTP/2's first words
PAUSE_S = 0.05  # Before the next try, where the server isn't there


class IdleFlood:
    """Lost connections are made again, until so many were held."""

    def __init__(self, address: str, folder: Path, most: int) -> None:
        host, port = address.rsplit(":", 1)
        self._address = host, int(port)
        self._most = most
        self._context = ssl.create_default_context(cafile=folder / "ca.pem")
        self._context.check_hostname = False
        self._context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
        self._context.set_alpn_protocols(["h2"])
        self._held: list[ssl.SSLSocket] = []
        self.made = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._stop.set()
        self._thread.join()
        for each in self._held:
            each.close()

    def _run(self) -> None:
        while not self._stop.is_set() and len(self._held) < self._most:
            try:
                connection = self._context.wrap_socket(
                    socket.create_connection(self._address, timeout=5)
                )
            except OSError:
                self._stop.wait(PAUSE_S)
                continue
            self._held.append(connection)
            with contextlib.suppress(OSError):
                connection.sendall(PREFACE)
                self.made += 1
