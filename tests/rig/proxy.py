"""Network paths: one that can be cut and healed, and one through an HTTP proxy (CONNECT alone)."""

import contextlib
import socket
import threading
from typing import Self


class Proxy:
    """Forwards TCP from a port of its own to ``target`` (``host:port``).

    While it is cut, bytes wait, as in the kernel's send buffers behind a dead cable; connections
    stay open, and new ones come about but carry nothing. When it heals, what waited goes on.
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
                threading.Thread(target=self._connect, args=(near,), daemon=True).start()

    def _connect(self, near: socket.socket) -> None:
        self._open.wait()
        try:
            far = socket.create_connection(self._target)
        except OSError:
            near.close()
            return
        self._sockets.append(far)
        for one, other in ((near, far), (far, near)):
            arguments = one, other, one is near
            threading.Thread(target=self._pump, args=arguments, daemon=True).start()

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
