"""Plain federated averaging over the same gRPC and TLS: one server that sees and sums everything.

The smallest honest one. Clients upload ``d`` float32 and get as many, in pieces of
precad's size through channels with the same options; the server adds them up, divides
and serves the model. It checks nothing, hides nothing and adds no noise. Messages are
bytes as they are, which costs less than protobuf. Run as a program, the server: see
``Part``.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import grpc
import grpc.aio
import numpy as np
from numpy.typing import NDArray

from benchmarks.rounds.part import Orders
from precad.common.identity.credentials import Identity
from precad.common.identity.mutual_tls import add_port
from precad.common.submission import MESSAGE_BYTES
from precad.common.wire import serving

SERVICE = "precad.bench.FedAvg"
UPLOAD_PIECE_BYTES = MESSAGE_BYTES
MODEL_PIECE_BYTES = serving.STREAMED_BYTES
MAX_MESSAGE_BYTES = max(UPLOAD_PIECE_BYTES, MODEL_PIECE_BYTES) + 4096


def pieces(data: bytes, size: int) -> Iterator[bytes]:
    """``data`` as it is sent."""
    view = memoryview(data)
    return (bytes(view[at : at + size]) for at in range(0, len(data), size))


class FedAvg:
    """The server's three calls.

    Args:
        clients: a round is over when so many have uploaded.
        dimension: d.
    """

    def __init__(self, clients: int, dimension: int) -> None:
        self._clients = clients
        self._theta = np.zeros(dimension, dtype=np.float32)
        self._begin()

    def _begin(self) -> None:
        self._total: NDArray[np.float32] = np.zeros_like(self._theta)
        self._uploads = 0
        self._over = asyncio.Event()

    async def fetch(self, _request: bytes, _context: object) -> AsyncIterator[bytes]:
        """The model."""
        for piece in pieces(self._theta.tobytes(), MODEL_PIECE_BYTES):
            yield piece

    async def submit(self, stream: AsyncIterator[bytes], _context: object) -> bytes:
        """Add one client's vector; the last one ends the round.

        Answers at the round's end.
        """
        data = bytearray()
        async for piece in stream:
            data += piece
        self._total += np.frombuffer(data, dtype=np.float32)
        self._uploads += 1
        over = self._over
        if self._uploads == self._clients:
            self._theta = self._theta + self._total / np.float32(self._clients)
            self._begin()
            over.set()
        await over.wait()
        return b"over"

    def handler(self) -> grpc.GenericRpcHandler:
        """For a gRPC server."""
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                "Fetch": grpc.unary_stream_rpc_method_handler(self.fetch),
                "Submit": grpc.stream_unary_rpc_method_handler(self.submit),
            },
        )


async def _start(
    address: str, identity: Identity, clients: int, dimension: int
) -> grpc.aio.Server:
    options = dict(serving.SERVER_OPTIONS) | {
        "grpc.max_receive_message_length": MAX_MESSAGE_BYTES
    }
    server = grpc.aio.server(options=list(options.items()))
    server.add_generic_rpc_handlers((FedAvg(clients, dimension).handler(),))
    add_port(server, address, identity)
    await server.start()
    return server


def main() -> None:
    """Serve as told until the orders end."""
    orders = Orders()
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    servers = []
    for order in orders:
        identity = Identity.load(Path(order["identity"]))
        start = _start(order["address"], identity, order["clients"], order["dimension"])
        # Kept: a server that nobody refers to would end.
        servers.append(asyncio.run_coroutine_threadsafe(start, loop).result())
        orders.say(mark="serving")


if __name__ == "__main__":
    main()
