"""Network paths that are cut and heal or lead through an HTTP proxy; and connections that idle."""

import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from tests.rig.waiting import beside


class Proxy:
    """Forwards TCP from a port of its own to ``target`` (``host:port``).

    While it is cut, bytes wait, as behind a dead cable: connections stay and new ones
    come about.
    """

    def __init__(self, target: str) -> None:
        host, port = target.rsplit(":", 1)
        self._target = host, int(port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._open = threading.Event()
        self._open.set()
        self._sockets = [self._listener]
        threading.Thread(target=self._accept, name="proxy", daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def cut(self) -> None:
        self._open.clear()

    def heal(self) -> None:
        self._open.set()

    def close(self) -> None:
        self._open.set()
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                self._sockets.append(near)
                threading.Thread(
                    target=self._connect, args=(near,), daemon=True
                ).start()

    def _connect(self, near: socket.socket) -> None:
        self._open.wait()
        try:
            far = socket.create_connection(self._target)
        except OSError:
            near.close()
            return
        self._sockets.append(far)
        for way in ((near, far, True), (far, near, False)):
            threading.Thread(target=self._pump, args=way, daemon=True).start()

    def passed(self, forward: bool, size: int) -> None:  # noqa: FBT001 -- of two directions
        """So many bytes go by, towards the target or back; who listens may count them."""

    def _pump(self, source: socket.socket, sink: socket.socket, forward: bool) -> None:  # noqa: FBT001
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                self._open.wait()
                self.passed(forward, len(data))
                sink.sendall(data)
        for each in (source, sink):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


class Refusing(Proxy):
    """Breaks the ``first`` connections off."""

    def __init__(self, target: str, *, first: int) -> None:
        self._left = first
        super().__init__(target)

    def _connect(self, near: socket.socket) -> None:
        if self._left:
            self._left -= 1
            near.close()
        else:
            super()._connect(near)


class ConnectProxy(Proxy):
    """Leads callers to one port, whatever host they ask for; ``answer`` None: not a word."""

    def __init__(self, port: int, answer: str | None = "HTTP/1.1 200 OK") -> None:
        self._answer = answer
        self.asked: list[str] = []  # What callers sent before anything was led anywhere
        super().__init__(f"127.0.0.1:{port}")

    def _connect(self, near: socket.socket) -> None:
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += near.recv(1)
        self.asked.append(head.decode())
        if self._answer is None:
            return
        near.sendall(f"{self._answer}\r\n\r\n".encode())
        if " 200 " in self._answer:
            super()._connect(near)
        else:
            near.close()


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"  # HTTP/2's first words
PAUSE_S = 0.05  # Before the next try, where the server isn't there


@contextlib.contextmanager
def idle_flood(address: str, folder: Path, most: int) -> Iterator[list[ssl.SSLSocket]]:
    """Lost connections are made again, until so many were held: these."""
    host, port = address.rsplit(":", 1)
    context = ssl.create_default_context(cafile=folder / "ca.pem")
    context.check_hostname = False
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    context.set_alpn_protocols(["h2"])
    held: list[ssl.SSLSocket] = []

    def make(over: threading.Event) -> None:
        while not over.is_set() and len(held) < most:
            try:
                raw = socket.create_connection((host, int(port)), timeout=5)
                held.append(context.wrap_socket(raw))
                held[-1].sendall(PREFACE)
            except OSError:
                over.wait(PAUSE_S)

    try:
        with beside(make):
            yield held
    finally:
        for each in held:
            each.close()
