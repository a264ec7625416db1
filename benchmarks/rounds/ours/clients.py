"""All clients of a measured training in one process, each with its own certificate and channels.

They submit prepared vectors, so that a round's time is the system's and no gradient's.
Nothing happens before it is told: the other systems are measured in between. Run as a
program: see ``Part``.

A thousand clients are no thousand threads: gRPC's wait for a stream in a thread of its
own looks ten times a second, and so many of them leave no processor to the servers. So
all notices are heard on one event loop, and ``AT_ONCE`` clients take part at a time.
"""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import (
    AsyncIterable,
    AsyncIterator,
    Callable,
    Iterable,
    Iterator,
    Mapping,
)
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import grpc
import grpc.aio
import numpy as np
from numpy.typing import NDArray
from tests.rig.proofs_context import stated_for_proof

from benchmarks.rounds.part import ANSWER_S, Message, Orders
from benchmarks.rounds.sample import FIRST_MODEL, LAST_MODEL, RECEIVED
from benchmarks.rounds.vectors import is_sum, vectors
from precad.client.connection import Receipt, Servers
from precad.client.server_statements import ServerStatements
from precad.common.clock import Retries, RetryPolicy
from precad.common.errors import PeerUnavailable
from precad.common.identifiers import ClientId, Digest, Role
from precad.common.identity.credentials import Identity
from precad.common.identity.mutual_tls import dialling
from precad.common.model import ModelVector, from_bytes
from precad.common.ring import RingVector
from precad.common.task import Task
from precad.common.wire.messages import RoundOpen, RoundOver, read_notice, serves_first
from precad.norm_check.proof_submission import AnySubmission, ForProof
from precad.protos import precad_pb2 as pb
from precad.protos.precad_pb2_grpc import AggregationStub

Item = TypeVar("Item")
Result = TypeVar("Result")
Line = tuple[str, grpc.ChannelCredentials, list[tuple[str, Any]]]
"""What a channel is made from."""
START_S = 120.0
"""How long servers may take to start."""
WAITS = RetryPolicy(0.2, 2.0)
"""Before a model is fetched again."""
AT_ONCE = 128
"""Clients that take part at the same time; of more, the others wait for their turn."""


@dataclass
class Owner:
    """One client, and what it keeps from round to round as participants do."""

    servers: Servers
    statements: ServerStatements
    theta: ModelVector | None = None
    """The newest model that it holds."""
    signed: bytes | None = None
    """Server A's newest statement, which came with the end of a round."""


class Notices:
    """What server A tells each client of each attempt."""

    def __init__(self, clients: int) -> None:
        self._clients = clients
        self._changed = threading.Condition()
        self._heard: Counter[tuple[str, int]] = Counter()
        self._opened: dict[tuple[str, int], RoundOpen] = {}
        self.signed: dict[str, bytes | None] = {}
        """Server A's newest statement to each client."""
        self._counted: Counter[int] = Counter()
        self._ended: Exception | None = None

    async def follow(self, client: str, notices: AsyncIterable[pb.Notice]) -> None:
        """Hear one client's notices until they end."""
        ended: Exception = PeerUnavailable("server A ended the notices")
        try:
            async for notice in notices:
                self._hear(client, notice)
        except (grpc.RpcError, PeerUnavailable) as error:
            ended = error
        with self._changed:
            self._ended = ended
            self._changed.notify_all()

    def opened(self, attempt: int) -> dict[str, RoundOpen]:
        """The attempt as each client has heard of it, once all have.

        Raises PrecadError.
        """
        self._wait("open", attempt)
        return {
            name: opened for (name, of), opened in self._opened.items() if of == attempt
        }

    def over(self, attempt: int) -> int:
        """How many clients counted, once every one has heard that it is over."""
        self._wait("over", attempt)
        return self._counted[attempt]

    def _hear(self, client: str, notice: pb.Notice) -> None:
        with self._changed:
            match read_notice(notice):
                case RoundOpen(attempt=attempt) as opened:
                    self._opened[client, attempt] = opened
                    self._heard["open", attempt] += 1
                case RoundOver(attempt=attempt, counted=counted, signed=signed):
                    self.signed[client] = signed
                    self._counted[attempt] += counted
                    self._heard["over", attempt] += 1
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
                    raise PeerUnavailable(
                        f"no {what} of attempt {attempt} in {ANSWER_S:g} s"
                    )


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
        self._vectors = vectors(len(names), task.dimension, task.mechanism.bound)
        identities = [Identity.load(keys / name) for name in names]
        servers = [
            Servers(
                task,
                ClientId(name),
                server_a=server_a,
                server_b=server_b,
                identity=identity,
                patience_s=START_S,
            )
            for name, identity in zip(names, identities, strict=True)
        ]
        self._owners = [
            Owner(each, ServerStatements(task, each.client)) for each in servers
        ]
        self._lines = [
            dialling(server_a, identity, Role.SERVER_A) for identity in identities
        ]
        self._notices = Notices(len(names))
        self._threads = ThreadPoolExecutor(max_workers=min(AT_ONCE, len(names)))
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self._theta: NDArray[np.float64] = np.zeros(task.dimension)
        self._counted = 0
        self._following = RoundOpen(
            attempt=0,
            version=0,
            model=Digest(bytes(32)),
            selected=False,
            collect_seconds=0.0,
        )

    def join(self) -> None:
        """Enrol everybody and wait until the first attempt is open.

        Raises PrecadError.
        """
        for owner, line in zip(self._owners, self._lines, strict=True):
            owner.servers.enrol(1, self._task.privacy.record_rate)
            watching = self._watch(owner.servers, line)
            asyncio.run_coroutine_threadsafe(watching, self._loop)
        self._notices.opened(0)

    async def _watch(self, servers: Servers, line: Line) -> None:
        request = pb.WatchRequest(
            task_digest=self._task.digest.value, client=servers.client.name
        )
        async with grpc.aio.secure_channel(*line) as channel:
            notices = AggregationStub(channel).Watch(request, wait_for_ready=True)
            await self._notices.follow(servers.client.name, _heeded(servers, notices))

    def play(self, attempt: int, *, held: bool) -> Iterator[Message]:
        """One attempt; what it yields is said at once: "received", "over", "opened".

        Args:
            attempt: its number.
            held: each submission's body goes first, and what the other server gets of
                it only once all bodies are there: all validation comes after
                "received", none while others upload.

        Raises:
            PrecadError: a server failed.
        """
        events = self._notices.opened(attempt)
        for owner in self._owners:
            owner.signed = self._notices.signed.get(owner.servers.client.name)
        if held:
            halves = self._all(partial(_send_body, events), self._vectors)
            yield {"mark": "received"}
            self._all(_send_half, halves)
        else:
            took = self._all(partial(_take_part, events), self._vectors)
            yield {
                "mark": "received",
                **{
                    name: float(np.mean([each[name] for each, _ in took]))
                    for name in took[0][0]
                },
                "moments": _ends(spans for _, spans in took),
            }
        self._counted = self._notices.over(attempt)
        yield {"mark": "over"}
        self._following = next(iter(self._notices.opened(attempt + 1).values()))
        yield {"mark": "opened"}

    def right(self) -> bool:
        """Whether everybody counted in the last attempt and it moved the model by their sum."""
        deviation = 2**0.5 * self._task.mechanism.noise_units
        # Of A, whose line the bytes are taken off again (``system.facts``).
        data = self._owners[0].servers.model_bytes(
            Role.SERVER_A, self._following.version
        )
        theta = from_bytes(data, self._task.dimension).astype(np.float64)
        moved = np.ldexp(theta - self._theta, self._task.fractional_bits)
        self._theta = theta
        return self._counted == len(self._owners) and is_sum(
            moved, self._vectors, deviation
        )

    def _all(
        self, part: Callable[[Owner, Item], Result], items: Iterable[Item]
    ) -> list[Result]:
        """Every client's part, ``AT_ONCE`` at a time.

        Raises what the first failed one raised.
        """
        return list(self._threads.map(part, self._owners, items))


async def _heeded(
    servers: Servers, notices: AsyncIterable[pb.Notice]
) -> AsyncIterator[pb.Notice]:
    """A client's notices; its models come from the server that they name."""
    async for notice in notices:
        servers.serves_first = serves_first(notice)
        yield notice


def _take_part(
    events: Mapping[str, RoundOpen], owner: Owner, x: RingVector
) -> tuple[dict[str, float], dict[str, float]]:
    """One client's part, as ``client/participant.py`` does it: ask, fetch, prepare, submit.

    It asks while it follows to the newest model: an owner follows from the end of the
    last round on, which is nobody's time here, and asks at the next one's opening.

    Returns what each part took, and when each ended, by the monotonic clock.
    """
    servers = owner.servers
    event = events[servers.client.name]
    ends: dict[str, float] = {}
    with ThreadPoolExecutor(max_workers=1) as beside:
        following = beside.submit(_timed, lambda: _follow(event, owner))
        stated, ask_s, _ = _timed(lambda: _ask(event, servers))
        ends["ask"] = time.monotonic()
        _, fetch_s, _ = following.result()
    ends["fetch"] = time.monotonic()
    prepare = partial(
        servers.prepare,
        version=event.version,
        attempt=event.attempt,
        model=event.model,
        x=x,
        proof=stated,
    )
    pair, prepare_s, prepare_cpu_s = _timed(prepare)
    ends["prepare"] = time.monotonic()
    receipts, upload_s, _ = _timed(lambda: servers.submit(pair, ANSWER_S))
    ends["upload"] = time.monotonic()
    for receipt in receipts:
        _require_taken(servers, receipt)
    took = {
        "fetch_s": fetch_s,
        "ask_s": ask_s,
        "prepare_s": prepare_s,
        "prepare_cpu_s": prepare_cpu_s,
        "upload_s": upload_s,
    }
    return took, ends


def _ends(each: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """When the first and the last client ended each part, by the monotonic clock."""
    ends = list(each)
    return {
        "asked": max(one["ask"] for one in ends),
        FIRST_MODEL: min(one["fetch"] for one in ends),
        "the first upload begins": min(one["prepare"] for one in ends),
        LAST_MODEL: max(one["fetch"] for one in ends),
        "the last upload begins": max(one["prepare"] for one in ends),
        "the first upload's receipt": min(one["upload"] for one in ends),
        RECEIVED: max(one["upload"] for one in ends),
    }


def _send_body(
    events: Mapping[str, RoundOpen], owner: Owner, x: RingVector
) -> AnySubmission:
    """As ``_take_part``, to the body's server alone; returns the other's half."""
    servers = owner.servers
    event = events[servers.client.name]
    stated = _ask(event, servers)
    _follow(event, owner)
    pair = servers.prepare(
        version=event.version,
        attempt=event.attempt,
        model=event.model,
        x=x,
        proof=stated,
    )
    seed, body = sorted(pair, key=lambda half: half.awaits_body)
    _send_half(owner, body)
    return seed


def _send_half(owner: Owner, half: AnySubmission) -> None:
    servers = owner.servers
    _require_taken(servers, servers.submit_half(half, ANSWER_S))


def _follow(event: RoundOpen, owner: Owner) -> None:
    """Get to the round's model, by a step where both servers state one, as owners do.

    Again where a busy server took too long to shake hands.
    """
    statements = owner.statements
    servers = owner.servers
    patience = Retries(total_s=START_S, policy=WAITS)
    while True:
        try:
            statements.exchange(servers, owner.signed)
            theta = statements.next_model(
                servers, event.version, event.model, owner.theta
            )
        except PeerUnavailable as error:
            patience.wait(error)
        else:
            statements.saw(event.version, event.model, theta)
            owner.theta = theta
            return


def _ask(event: RoundOpen, servers: Servers) -> ForProof | None:
    """What both servers sign before anything is shared, under either check; A's came along."""
    if servers.task.proof is not None:
        return stated_for_proof(servers, event.attempt, event.signed)
    if event.signed is None:
        servers.opening(Role.SERVER_A, event.attempt)
    servers.opening(Role.SERVER_B, event.attempt)
    return None


def _require_taken(servers: Servers, receipt: Receipt) -> None:
    if receipt.rejection is not None:
        raise PeerUnavailable(
            f"{receipt.role.value} refused {servers.client}: {receipt.rejection.value}"
        )


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
