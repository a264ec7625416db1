"""All clients of plain federated averaging in one process.

Run as a program: see ``Part``.
"""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.rounds.fed_avg.server import (
    MAX_MESSAGE_BYTES,
    SERVICE,
    UPLOAD_PIECE_BYTES,
    pieces,
)
from benchmarks.rounds.part import ANSWER_S, Message, Orders
from benchmarks.rounds.sample import FIRST_MODEL, LAST_MODEL
from benchmarks.rounds.vectors import vectors
from precad.common.errors import PeerViolation
from precad.common.identifiers import Role
from precad.common.identity.credentials import Identity
from precad.common.identity.mutual_tls import dialling

import grpc  # isort: skip -- after precad, which sets what gRPC reads when it is imported


class FedAvgClient:
    """One client with its own certificate and channel."""

    def __init__(
        self, address: str, identity: Identity, x: NDArray[np.float32]
    ) -> None:
        target, credentials, options = dialling(address, identity, Role.SERVER_A)
        own = {
            "grpc.max_receive_message_length": MAX_MESSAGE_BYTES,
            # No window of precad's owners: gRPC finds the one that suits the line.
            "grpc.http2.bdp_probe": 1,
            "grpc.http2.lookahead_bytes": 1 << 16,
        }
        channel = grpc.secure_channel(
            target, credentials, list((dict(options) | own).items())
        )
        # Any: bytes, without a serialiser.
        self._fetch: Any = channel.unary_stream(f"/{SERVICE}/Fetch")
        self._submit: Any = channel.stream_unary(f"/{SERVICE}/Submit")
        self._data = x.tobytes()

    def fetch(self) -> NDArray[np.float32]:
        """The model, ``[d] float32``."""
        data = bytearray()
        for piece in self._fetch(b"", timeout=ANSWER_S, wait_for_ready=True):
            data += piece
        return np.frombuffer(data, dtype=np.float32)

    def take_part(self) -> float:
        """One round: fetch the model, upload, wait for the end.

        Returns when the model was there, by the monotonic clock.
        """
        self.fetch()
        fetched = time.monotonic()
        uploaded = pieces(self._data, UPLOAD_PIECE_BYTES)
        if self._submit(uploaded, timeout=ANSWER_S) != b"over":
            raise PeerViolation("the server didn't say that the round is over")
        return fetched


class FedAvgClients:
    """Everybody."""

    def __init__(self, setup: Message) -> None:
        keys, names = Path(setup["keys"]), setup["names"]
        given = vectors(len(names), setup["dimension"], setup["bound"])
        self._mean = np.sum(given, axis=0) / len(names)
        self._clients = [
            FedAvgClient(
                setup["address"], Identity.load(keys / name), x.astype(np.float32)
            )
            for name, x in zip(names, given, strict=True)
        ]
        self._threads = ThreadPoolExecutor(max_workers=len(names))
        self._theta = self._clients[0].fetch()

    def play(self) -> dict[str, float]:
        """One round; when what happened in it, by the monotonic clock."""
        fetched = list(self._threads.map(FedAvgClient.take_part, self._clients))
        return {FIRST_MODEL: min(fetched), LAST_MODEL: max(fetched)}

    def right(self) -> bool:
        """Whether the last round moved the model by the mean, but for what float32 rounds off."""
        theta = self._clients[0].fetch()
        rounding = 1e-5 * np.abs(self._mean).max()
        right = np.abs(theta - self._theta - self._mean).max() <= rounding
        self._theta = theta
        return bool(right)


def main() -> None:
    """Play, or check, as asked."""
    orders = Orders()
    messages = iter(orders)
    clients = FedAvgClients(next(messages))
    orders.say(mark="joined")
    for message in messages:
        if "play" in message:
            orders.say(mark="over", moments=clients.play())
        else:
            orders.say(mark="checked", right=clients.right())


if __name__ == "__main__":
    main()
