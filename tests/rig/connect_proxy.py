"""An HTTP proxy that leads callers to one port, whatever host they ask for: CONNECT alone."""

import contextlib
import socket
import threading
from typing import Self


class ConnectProxy:
    """On a port of its own, for a ``with`` block.

    Args:
        target: the port of this machine that it leads to.
        answer: the first line that it gives; None: not a word.
    """

    def __init__(self, target: int, answer: str | None = "HTTP/1.1 200 OK") -> None:
        self._target = target
        self._answer = answer
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = [self._listener]
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.asked: list[str] = []
        """What callers sent before anything was led anywhere."""

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, name="connect-proxy", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._open:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                self._open.append(near)
                threading.Thread(target=self._lead, args=(near,), daemon=True).start()

    def _lead(self, near: socket.socket) -> None:
        with contextlib.suppress(OSError):
            head = b""
            while not head.endswith(b"\r\n\r\n"):
                head += near.recv(1)
            self.asked.append(head.decode())
            if self._answer is None:
                return
            near.sendall(f"{self._answer}\r\n\r\n".encode())
            if " 200 " not in self._answer:
                near.close()
                return
            far = socket.create_connection(("127.0.0.1", self._target))
            self._open.append(far)
            threading.Thread(target=_pump, args=(far, near), daemon=True).start()
            _pump(near, far)


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            sink.sendall(data)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_RDWR)
