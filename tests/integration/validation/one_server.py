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

from precad.common.aggregator.validate.absorb import Absorber
from precad.common.aggregator.validate.comparisons import deal_request
from precad.common.aggregator.validate.decide import decide
from precad.common.deal.dealer import DealerRole
from precad.common.deal.randomness import DealtRandomness
from precad.common.errors import PeerUnavailable
from precad.common.identifiers import Digest, Role
from precad.common.keystream import Keystream
from precad.common.link import Frame, PeerLink
from precad.common.ring import RingVector, dot, from_bytes, to_bytes
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


def absorb(task: Task, role: Role, link: PeerLink, x: RingVector, number: int) -> RingVector:
    """This server's words of x, whose body B sends to A."""

    def mask(seed: int) -> Keystream:
        return Keystream(Secret(bytes([seed]) * 32), "test/mask", number)

    a_a, a_b = mask(2).words(x.size), mask(3).words(x.size)
    r = dot(a_a + a_b, a_a + a_b)
    own = mask(2) if role is Role.SERVER_A else mask(3)
    absorber = Absorber(role, task, own, Secret(bytes([number]) * 32), None)
    step = f"body/{number}"
    if role is Role.SERVER_B:
        link.send(step, to_bytes(x - a_a - a_b))
        absorber.absorb(x - a_a - a_b)
        return absorber.words(r - 12345)
    absorber.absorb(from_bytes(link.receive(step)))
    return absorber.words(12345)


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
        task.digest,
        dimension,
        {Role.SERVER_A: Secret(bytes(32)), Role.SERVER_B: Secret(bytes([1]) * 32)},
    )
    link = PeerLink(
        SocketTransport(connection), task.digest, max_message_bytes=1 << 26, timeout_s=60
    )
    link.begin_attempt(0)
    words = [
        absorb(task, role, link, x, number)
        for number, x in enumerate(corpus(dimension, task.bound))
    ]
    request = deal_request(task, 0, 0, len(words), bytes(64))
    passes = decide(
        words,
        task=task,
        role=role,
        link=link,
        randomness=DealtRandomness(
            role, dealer.key_for(role), request, dealer.corrections(role, request)
        ),
        spent=MemorySpentTriples(),
        label="corpus",
    )
    # The other server may still be reading: it says when it has everything.
    link.exchange("done", b"")
    print(json.dumps(passes.tolist()))  # noqa: T201


if __name__ == "__main__":
    main(Role(sys.argv[1]), socket.socket(fileno=int(sys.argv[2])), int(sys.argv[3]))
