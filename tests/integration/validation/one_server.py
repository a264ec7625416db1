"""One server's part of a validation in its own process; run as a script by the test beside it.

Usage: one_server.py ROLE FD DIMENSION. FD is a connected socket to the other server. Prints the
verdicts as JSON. Frames travel as their fields in text, then their payload.
"""

import json
import queue
import socket
import struct
import sys
import threading

import numpy as np
from tests.rig.spent import MemorySpentTriples

from precad.common.aggregator.round.states import Shared
from precad.common.aggregator.validate import deal_request, validate
from precad.common.deal.dealer import DealerRole
from precad.common.deal.randomness import DealtRandomness
from precad.common.errors import PeerUnavailable, Rejection
from precad.common.identifiers import ClientId, Digest, Role
from precad.common.keystream import Keystream
from precad.common.link import Frame, PeerLink
from precad.common.ring import RingVector
from precad.common.secret import Secret
from precad.common.task import Task


class SocketTransport:
    """Frames over a socket; a thread reads, so that both ends may send at once."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._frames: queue.SimpleQueue[Frame] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def put(self, frame: Frame) -> None:
        head = json.dumps(
            [frame.task.value.hex(), frame.attempt, frame.step, frame.sequence, frame.last]
        ).encode()
        lengths = struct.pack("<II", len(head), len(frame.payload))
        self._connection.sendall(lengths + head + frame.payload)

    def get(self, timeout_s: float) -> Frame:
        try:
            return self._frames.get(timeout=timeout_s)
        except queue.Empty:
            raise PeerUnavailable("nothing came") from None

    def require_alive(self) -> None:
        """Nobody waits for anything but frames here."""

    def _read(self) -> None:
        with self._connection.makefile("rb") as stream:
            while lengths := stream.read(8):
                head_length, payload_length = struct.unpack("<II", lengths)
                task, number, step, sequence, last = json.loads(stream.read(head_length))
                payload = stream.read(payload_length)
                self._frames.put(
                    Frame(Digest(bytes.fromhex(task)), number, step, sequence, payload, last)
                )


def corpus(dimension: int, beta: int) -> list[RingVector]:
    """In the order of the verdicts that the test expects."""
    first = np.eye(1, dimension, dtype=np.int64)[0]
    return [
        first * beta,
        first * 0,
        first * (beta + 1),
        first << 32,
        np.full(dimension, -(2**63), dtype=np.int64),
        np.full(dimension, int(beta / dimension**0.5), dtype=np.int64),
    ]


def main(role: Role, connection: socket.socket, dimension: int) -> None:
    """Validate the corpus with the other process."""
    task = Task.parse(
        {
            "name": "test",
            "model": {"parameters": [{"name": "w", "shape": [dimension]}]},
            "privacy": {
                "record_clip": 1.0,
                "client_clip": 30.0,
                "noise_multiplier": 2.0,
                "record_rate": 0.2,
                "client_rate": 1.0,
            },
            "training": {"learning_rate": 1.0, "rounds": 1},
            "enrolment": {"clients": 10, "max_expected_records": 1000.0},
            "fractional_bits": 16,
        }
    )
    # Both processes know all keys here; what is tested is that they are two processes.
    dealer = DealerRole(
        task.digest, {Role.SERVER_A: Secret(bytes(32)), Role.SERVER_B: Secret(bytes([1]) * 32)}
    )
    updates = []
    for number, x in enumerate(corpus(dimension, task.bound)):
        of_a = Keystream(Secret(bytes([2]) * 32), "test/share", number).words(dimension)
        share = of_a if role is Role.SERVER_A else x - of_a
        updates.append(Shared(ClientId(f"c-{number}"), bytes(32), bytes(32), share))
    request = deal_request(task, 0, 0, len(updates), bytes(64))
    link = PeerLink(
        SocketTransport(connection), task.digest, max_message_bytes=1 << 26, timeout_s=60
    )
    link.begin_attempt(0)
    verdicts = validate(
        updates,
        task=task,
        attempt=0,
        role=role,
        link=link,
        set_secret=Secret(bytes([3]) * 32),
        randomness=DealtRandomness(
            role, dealer.key_for(role), request, dealer.corrections(role, request)
        ),
        spent=MemorySpentTriples(),
    )
    # The other server may still be reading: it says when it has everything.
    link.exchange("done", b"")
    print(json.dumps([v.value if isinstance(v, Rejection) else None for v in verdicts]))  # noqa: T201


if __name__ == "__main__":
    main(Role(sys.argv[1]), socket.socket(fileno=int(sys.argv[2])), int(sys.argv[3]))
