"""The other server and the dealer over gRPC: what a training reaches for, link after link."""

import asyncio
import logging
import queue
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, aclosing, closing, contextmanager
from functools import partial
from typing import Any

import grpc

from precad.aggregator.noise import DiscreteGaussian
from precad.aggregator.peer_link import FrameTransport
from precad.aggregator.rpc.dealer_client import RemoteDealer
from precad.aggregator.rpc.peer_transport import ServedTransport, dial
from precad.aggregator.training.connected_clients import while_allowed
from precad.aggregator.training.session import Session
from precad.aggregator.training.training_loop import Outside
from precad.aggregator.workers.worker_pairs import ValidationWorkers
from precad.common.errors import PeerUnavailable, PrecadError
from precad.common.identifiers import Role
from precad.common.identity.mutual_tls import open_channel, require, why_unreachable
from precad.common.wire.calls import LINKED
from precad.common.wire.serving import Refusing

log = logging.getLogger("precad")

_LEAVING_S = 5.0
"""For the dealer, which may start later than a server whose training is over."""

Reach = Callable[[], AbstractContextManager[FrameTransport]]
"""The other server's link, until the block ends. Raises PeerUnavailable."""


def outside_of(
    session: Session, dealer_address: str, other_server: Reach, workers: ValidationWorkers
) -> Outside:
    """A process's outside: gRPC, the task's noise, and its workers."""
    task, role = session.task, session.role

    @contextmanager
    def peers() -> Iterator[tuple[FrameTransport, RemoteDealer]]:
        with (
            open_channel(dealer_address, session.identity, Role.DEALER) as channel,
            other_server() as transport,
        ):
            why = partial(why_unreachable, dealer_address, session.identity, Role.DEALER)
            yield transport, RemoteDealer(channel, dealer_address, task, role, why)

    return Outside(peers, DiscreteGaussian(task.noise_units), workers.validation)


def leave_dealer(session: Session, address: str) -> None:
    """Tell the dealer that this server's training is over; one that doesn't hear it deals on."""
    try:
        with open_channel(address, session.identity, Role.DEALER) as channel:
            RemoteDealer(channel, address, session.task, session.role).leave(_LEAVING_S)
    except PrecadError as error:
        log.info("the dealer wasn't told that the training is over: %s", error)


def dialling(session: Session, address: str) -> Reach:
    """A's way to B."""
    return partial(dial, address, session.identity, session.task.deadlines.peer)


class PeerService:
    """B's way to A: takes server A's link, from server A alone, and one at a time.

    A second one is refused while the first lives, whoever dials: a stale copy of A can't take the
    true one's place. After a network cut that went unnoticed here, keepalive ends the old link
    within 30 s, and A, which tries again, gets in.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._links: queue.SimpleQueue[ServedTransport] = queue.SimpleQueue()
        self._current: ServedTransport | None = None

    async def link(
        self,
        request_iterator: AsyncIterator[bytes],
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> AsyncGenerator[bytes]:
        """The servers' link."""
        async with Refusing(context):
            require(context, self._session.identity, Role.SERVER_A)
            if self._current is not None and self._current.alive:
                log.warning("a second server A dialled from %s and was refused", context.peer())
                self._session.twice[Role.SERVER_A.value] += 1
                raise PeerUnavailable(LINKED)
            transport = self._current = ServedTransport(
                asyncio.get_running_loop(), self._session.task.deadlines.peer
            )
            self._links.put(transport)

            def still_allowed() -> None:
                require(context, self._session.identity, Role.SERVER_A)

            async with aclosing(transport.serve(request_iterator)) as frames:
                async for message in while_allowed(frames, still_allowed):
                    yield message

    @contextmanager
    def reach(self) -> Iterator[FrameTransport]:
        """The newest link, once A has dialled. Raises PeerUnavailable."""
        timeout_s = self._session.task.deadlines.peer
        try:
            link = self._links.get(timeout=timeout_s)
            while not self._links.empty():
                link = self._links.get_nowait()
        except queue.Empty:
            raise PeerUnavailable(
                f"server A didn't connect within {timeout_s:g} s; check that it runs and that "
                "its server_b address is this server's"
            ) from None
        with closing(link):
            yield link
