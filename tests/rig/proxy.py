"""A network path that can be cut and healed: nothing arrives, and nobody is told.

While it is cut, bytes wait, as in the kernel's send buffers behind a dead cable; connections
stay open, and new ones come about but carry nothing. When it heals, what waited goes on its way.
"""

import contextlib
import socket
import threading


class Proxy:
    """Forwards TCP from a port of its own to ``target`` (``host:port``)."""

    def __init__(self, target: str) -> None:
        host, port = target.rsplit(":", 1)
        self._target = host, int(port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._open = threading.Event()
        self._open.set()
        self._sockets: list[socket.socket] = []
        self._closing = False
        threading.Thread(target=self._accept, name="proxy", daemon=True).start()

    def cut(self) -> None:
        """From now on nothing arrives."""
        self._open.clear()

    def heal(self) -> None:
        """The path carries again."""
        self._open.set()

    def close(self) -> None:
        """End every connection."""
        self._closing = True
        self._open.set()
        for each in [self._listener, *self._sockets]:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        while not self._closing:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
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
