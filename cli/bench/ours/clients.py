"""All clients of a measured training in one process, each with its own certificate and channels.

They submit prepared vectors, so that a round's time is the system's and no gradient's. Nothing
happens before it is told: the other systems are measured in between. Run as a program: see
``Part``.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import numpy as np

from precad.cli.bench.part import ANSWER_S, Message, Orders
from precad.cli.bench.vectors import is_sum, vectors
from precad.client.connection import Receipt, Servers
from precad.common.errors import PeerUnavailable, PrecadError
from precad.common.identifiers import ClientId, Digest
from precad.common.identity.credentials import Identity
from precad.common.ring import RingVector
from precad.common.share.submission import Submission
from precad.common.task import Task
from precad.protos import precad_pb2 as pb

Result = TypeVar("Result")
START_S = 120.0
"""How long servers may take to start."""


class Notices:
    """What server A tells each client of each attempt."""

    def __init__(self, clients: int) -> None:
        self._clients = clients
        self._changed = threading.Condition()
        self._heard: Counter[tuple[str, int]] = Counter()
        self._opened: dict[int, pb.RoundOpen] = {}
        self._counted: Counter[int] = Counter()
        self._ended: Exception | None = None

    def follow(self, notices: Iterable[pb.Notice]) -> None:
        """Hear one client's notices until they end."""
        ended: Exception = PeerUnavailable("server A ended the notices")
        try:
            for notice in notices:
                self._hear(notice)
        except PrecadError as error:
            ended = error
        with self._changed:
            self._ended = ended
            self._changed.notify_all()

    def opened(self, attempt: int) -> pb.RoundOpen:
        """The attempt, once every client has heard that it is open. Raises PrecadError."""
        self._wait("open", attempt)
        return self._opened[attempt]

    def over(self, attempt: int) -> int:
        """How many clients counted, once every one has heard that it is over."""
        self._wait("over", attempt)
        return self._counted[attempt]

    def _hear(self, notice: pb.Notice) -> None:
        with self._changed:
            match notice.WhichOneof("event"):
                case "open":
                    self._opened[notice.open.attempt] = notice.open
                    self._heard["open", notice.open.attempt] += 1
                case "over":
                    self._counted[notice.over.attempt] += notice.over.counted
                    self._heard["over", notice.over.attempt] += 1
                case other:
                    raise PeerUnavailable(f"the training ended in the middle: {other}")
            self._changed.notify_all()

    def _wait(self, what: str, attempt: int) -> None:
        deadline = time.monotonic() + ANSWER_S
        with self._changed:
            while self._heard[what, attempt] < self._clients:
                if self._ended is not None:
                    raise self._ended
                if not self._changed.wait(deadline - time.monotonic()):
                    raise PeerUnavailable(f"no {what} of attempt {attempt} in {ANSWER_S:g} s")


class Clients:
    """Everybody of a training, enrolled; plays attempt after attempt when told.

    Args:
        task: every coin in it must fall for everybody, and its denominator be 1.
        names: of the clients.
        keys: the deployment's folder of keys.
        server_a: address of server A.
        server_b: address of server B.
    """

    def __init__(
        self, task: Task, names: list[str], keys: Path, server_a: str, server_b: str
    ) -> None:
        self._task = task
        self._vectors = vectors(len(names), task.dimension, task.bound)
        self._servers = [
            Servers(
                task,
                ClientId(name),
                server_a,
                server_b,
                Identity.load(keys / name),
                patience_s=START_S,
            )
            for name in names
        ]
        self._notices = Notices(len(names))
        self._threads = ThreadPoolExecutor(max_workers=len(names))
        self._theta = np.zeros(task.dimension)
        self._counted = 0
        self._following = pb.RoundOpen()

    def join(self) -> None:
        """Enrol everybody and wait until the first attempt is open. Raises PrecadError."""
        for servers in self._servers:
            servers.enrol(1, self._task.privacy.record_rate)
            threading.Thread(
                target=self._notices.follow, args=(servers.watch(),), daemon=True
            ).start()
        self._notices.opened(0)

    def play(self, attempt: int, *, held: bool) -> Iterator[Message]:
        """One attempt; what it yields is said at once: "received", "over", "opened".

        Args:
            attempt: its number.
            held: server A hears of no submission before B has received all, so that all validation
                comes after "received", and none while others upload.

        Raises:
            PrecadError: a server failed.
        """
        event = self._notices.opened(attempt)
        rest = threading.Barrier(len(self._servers) + 1) if held else None
        parts = [
            self._threads.submit(self._take_part, event, servers, x, rest)
            for servers, x in zip(self._servers, self._vectors, strict=True)
        ]
        if rest is not None:
            rest.wait(ANSWER_S)
            yield {"mark": "received"}
        took = [part.result() for part in parts]
        if rest is None:
            yield {
                "mark": "received",
                **{name: float(np.mean([each[name] for each in took])) for name in took[0]},
            }
        self._counted = self._notices.over(attempt)
        yield {"mark": "over"}
        self._following = self._notices.opened(attempt + 1)
        yield {"mark": "opened"}

    def right(self) -> bool:
        """Whether everybody counted in the last attempt and it moved the model by their sum."""
        deviation = 2**0.5 * self._task.noise_units
        theta = self._servers[0].fetch_model(self._following.version, self._following.model_digest)
        moved = np.ldexp(theta - self._theta, self._task.fractional_bits)
        self._theta = theta
        return self._counted == len(self._servers) and is_sum(moved, self._vectors, deviation)

    def _take_part(
        self, event: pb.RoundOpen, servers: Servers, x: RingVector, rest: threading.Barrier | None
    ) -> dict[str, float]:
        """One client's part, as ``client/participant.py`` does it: fetch, prepare, submit."""
        _, fetch_s, _ = _timed(lambda: servers.fetch_model(event.version, event.model_digest))
        pair, prepare_s, prepare_cpu_s = _timed(
            lambda: servers.prepare(event.version, event.attempt, Digest(event.model_digest), x)
        )
        receipts, upload_s, _ = _timed(lambda: _submit(servers, pair, rest))
        for receipt in receipts:
            if receipt.rejection is not None:
                raise PeerUnavailable(
                    f"{receipt.role.value} refused {servers.client}: {receipt.rejection.value}"
                )
        return {
            "fetch_s": fetch_s,
            "prepare_s": prepare_s,
            "prepare_cpu_s": prepare_cpu_s,
            "upload_s": upload_s,
        }


def _submit(
    servers: Servers, pair: tuple[Submission, Submission], rest: threading.Barrier | None
) -> tuple[Receipt, Receipt]:
    """Both halves at once, or A's once everybody's is at B."""
    if rest is None:
        return servers.submit(pair, ANSWER_S)
    at_b = servers.submit_half(pair[1], ANSWER_S)
    rest.wait(ANSWER_S)
    return servers.submit_half(pair[0], ANSWER_S), at_b


def _timed(work: Callable[[], Result]) -> tuple[Result, float, float]:
    """The result, wall time and this thread's processor time, in seconds."""
    wall, cpu = time.perf_counter(), time.thread_time()
    result = work()
    return result, time.perf_counter() - wall, time.thread_time() - cpu


def main() -> None:
    """Join, then play, or check, as asked."""
    orders = Orders()
    messages = iter(orders)
    setup = next(messages)
    clients = Clients(
        Task.load(Path(setup["task"])),
        setup["names"],
        Path(setup["keys"]),
        setup["server_a"],
        setup["server_b"],
    )
    clients.join()
    orders.say(mark="joined")
    for message in messages:
        if "attempt" in message:
            for answer in clients.play(message["attempt"], held=message["held"]):
                orders.say(**answer)
        else:
            orders.say(mark="checked", right=clients.right())


if __name__ == "__main__":
    main()
