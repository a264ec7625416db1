"""A server's process: gRPC on the event loop, the protocol in a thread, the ways to the others."""

import asyncio
import contextlib
import logging
import math
import queue
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, aclosing, closing, contextmanager
from functools import partial

import grpc

from precad.aggregator.collect.inbox import Inbox
from precad.aggregator.enrol.admission import admission_of, window_of
from precad.aggregator.enrol.register import Register
from precad.aggregator.noise import DiscreteGaussian
from precad.aggregator.peer_link import FrameTransport
from precad.aggregator.rounds.aggregator import CoinKey
from precad.aggregator.rpc.aggregation_service import AggregationService
from precad.aggregator.rpc.dealer_client import RemoteDealer, reach_dealer
from precad.aggregator.rpc.limits import Limits
from precad.aggregator.rpc.operation_service import OperationService
from precad.aggregator.rpc.peer_transport import ServedTransport
from precad.aggregator.settings import ServerSettings
from precad.aggregator.store import open_store
from precad.aggregator.training.connected_clients import ConnectedClients, LongStream
from precad.aggregator.training.model_store import ModelStore
from precad.aggregator.training.session import EventLog, Phase, Session
from precad.aggregator.training.training_loop import Dealer, Peers, run_to_end
from precad.aggregator.validate import load_check
from precad.aggregator.workers.worker_pairs import ValidationWorkers
from precad.common.clock import call_in
from precad.common.errors import PeerUnavailable, PrecadError
from precad.common.files import make_folder
from precad.common.identifiers import Role
from precad.common.identity.credentials import Identity, read_coin_key, replace_coin_key
from precad.common.identity.mutual_tls import open_channel, require
from precad.common.identity.signatures import CertificateSigner, CertificateVerifier
from precad.common.kernel import kernel_in_use
from precad.common.process import (
    doing,
    dump_stacks_on_signal,
    give_back_freed,
    let_go_of_loaded,
)
from precad.common.task import Task, require_dealer
from precad.common.wire.calls import LINKED
from precad.common.wire.guarded_port import CallRate, GuardedPort
from precad.common.wire.serving import (
    Context,
    Refusing,
    add_health,
    set_when_told_to_stop,
)

log = logging.getLogger("precad")

LATE = 10.0
"""How many times ``linger`` is given to owners that weren't heard from yet."""
LOOK_S = 1.0
STOPPED_S = 30.0
"""How long a training that stopped says why, where a finished one stays."""

TrainingLoop = Callable[[Session], None]
Extend = Callable[[grpc.aio.Server, Session], None]


async def run_server(
    role: Role,
    settings: ServerSettings,
    training_loop: TrainingLoop,
    extend: Extend | None = None,
) -> int:
    """Serve until the training is over and its model was on offer for long enough.

    ``training_loop`` runs in a thread of its own. Returns the exit status: 0 after a
    finished training, or told to stop (SIGTERM, SIGINT) in the middle; 1 after one that
    couldn't go on. Raises Misconfiguration: settings, task, identity or state can't be
    used.
    """
    dump_stacks_on_signal()
    # Asked here, so that a wrong name stops the server now and not in its first round.
    kernel = kernel_in_use()
    session = open_session(role, settings)
    doing(part=role.value, task=session.task.name)
    load_check(session.task)
    give_back_freed()
    port = make_port(session)
    if extend is not None:
        extend(port.server, session)
    ended = asyncio.Event()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    set_when_told_to_stop(ended, stop)

    def train() -> None:
        try:
            # Before the first round and not in it: an account takes seconds.
            session.register.prepare_accounts()
            let_go_of_loaded()
            run_to_end(session, training_loop)
        finally:
            call_in(loop, ended.set)

    # First: what is refused once calls are taken would leave gRPC's threads waiting for
    # its loop.
    async with _measured(session, settings.metrics):
        served = (
            role.value,
            session.task.name,
            await port.listen(settings.listen),
            kernel,
        )
        log.info("%s serves task %s on port %d; projections by %s", *served)
        session.clock.start_thread("training", train)
        await ended.wait()
        # Looked at here: what ends below takes the training's links from under it.
        phase = session.progress.phase
        parked = stop.is_set() and phase not in (Phase.DONE, Phase.STOPPED)
        if parked:
            log.info(
                "told to stop; started again, the training goes on where it stands"
            )
        left = _leave_dealer(session, settings.dealer)
        if phase is Phase.DONE:
            await stay(session, settings.linger, stop)
        else:
            # It says why, and must end so that it is started again.
            with contextlib.suppress(TimeoutError):
                endless = math.isinf(settings.linger)
                await asyncio.wait_for(
                    stop.wait(), STOPPED_S if endless else settings.linger
                )
        await port.stop(grace_s=1)
        if not stop.is_set():
            await left.wait()
    session.store.close()
    return 0 if parked or phase is Phase.DONE else 1


@contextlib.asynccontextmanager
async def _measured(session: Session, address: str | None) -> AsyncIterator[None]:
    if address is None:
        yield
        return
    from precad.aggregator.rpc.server_metrics import Metrics  # noqa: PLC0415
    from precad.common.wire.metrics_page import metrics_page  # noqa: PLC0415

    metrics = Metrics(session)
    with metrics_page(metrics.collect, address):
        following = asyncio.create_task(
            metrics.follow(session.event_log.follow(from_start=True))
        )
        try:
            yield
        finally:
            following.cancel()


def make_port(
    session: Session, limits: Limits | None = None, rate: CallRate | None = None
) -> GuardedPort:
    """The port with what every server offers; not yet listening."""
    role = session.role
    identity = session.identity
    clients = session.task.enrolment.clients
    port = GuardedPort(role.value, identity, clients, rate)
    AggregationService(session, limits).add_to(port.server)
    OperationService(session).add_to(port.server)
    add_health(
        port.server, identity, lambda: session.progress.phase is not Phase.STOPPED
    )
    return port


def open_session(role: Role, settings: ServerSettings) -> Session:
    """What the settings describe, opened. Called on the event loop.

    Raises Misconfiguration.
    """
    task = Task.load(settings.task)
    require_dealer(task, settings.dealer)
    identity = Identity.load(settings.identity)
    verifier = CertificateVerifier(identity)
    settings.state.mkdir(parents=True, exist_ok=True, mode=0o700)
    url = settings.database or f"sqlite:///{settings.state / 'state.db'}"
    # Beside the state folder, in no backup of it.
    journal = settings.journal or settings.state.with_name(
        f"{settings.state.name}-journal"
    )
    make_folder(journal)
    store = open_store(url, task, role, journal / "journal.jsonl")
    model_store = ModelStore(
        task, settings.state / "model.safetensors", store.attempts.start()
    )
    kept_key = read_coin_key(settings.identity, journal, task.digest)
    return Session(
        role=role,
        task=task,
        identity=identity,
        store=store,
        signer=CertificateSigner(identity),
        verifier=verifier,
        coin_key=CoinKey(kept_key, partial(replace_coin_key, journal, task.digest)),
        inbox=Inbox(role, task, verifier, settings.state / "spool"),
        register=Register(task, store, admission_of(settings, task)),
        connected_clients=ConnectedClients(task.deadlines.rejoin),
        model_store=model_store,
        event_log=EventLog(asyncio.get_running_loop()),
        window=window_of(
            task, until=settings.enrol_until, quorum=settings.enrol_quorum
        ),
    )


def leaves_at(done: float, last_heard: float | None, linger_s: float) -> float:
    """When a server with a finished model may go: on offer ``linger_s`` once everybody knows it.

    Else a server that comes back after the end, at ``done``, would be gone before
    owners who start as slowly have asked: ``last_heard`` is when the last owner that
    comes was first heard from, None while one wasn't.
    """
    return (
        done + LATE * linger_s
        if last_heard is None
        else max(done, last_heard) + linger_s
    )


async def stay(session: Session, linger_s: float, stop: asyncio.Event) -> None:
    """Until it is time, or ``stop`` is set."""
    clients = session.connected_clients
    model_store = session.model_store
    done = session.clock.now()
    roster = list(session.register.roster())
    # Owners that have the final model call nobody any more.
    awaited = [] if model_store.fetched else roster
    while not stop.is_set():
        leaves = leaves_at(done, clients.last_heard(awaited), linger_s)
        left = leaves - session.clock.now()
        if left <= 0:
            break
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(
                stop.wait(), None if math.isinf(left) else min(left, LOOK_S)
            )
    if clients.all_have_final_model(roster):
        try:
            model_store.note_fetched()
        except OSError as error:
            log.info(
                "a next start will wait for owners that don't come: %s", error.strerror
            )


_LEAVING_S = 5.0
"""For the dealer, which may start later than a server whose training is over."""

Reach = Callable[[], AbstractContextManager[FrameTransport]]
"""The other server's link, until the block ends. Raises PeerUnavailable."""


def peers_of(
    session: Session,
    dealer_address: str | None,
    other_server: Reach,
    workers: ValidationWorkers,
) -> Peers:
    """A process's peers: gRPC, a dealer if it has one, the task's noise, and its workers."""

    @contextmanager
    def peers() -> Iterator[tuple[FrameTransport, Dealer]]:
        to_dealer = dealer_address, session.identity, session.task, session.role
        with reach_dealer(*to_dealer) as dealer, other_server() as transport:
            yield transport, dealer

    return Peers(peers, DiscreteGaussian(session.task.noise_units), workers.validation)


def _leave_dealer(session: Session, address: str | None) -> asyncio.Event:
    """Begin to tell the dealer that a finished training is over; return what is set once tried."""
    left = asyncio.Event()
    loop = asyncio.get_running_loop()

    def leave(dealer: str) -> None:
        try:
            with open_channel(dealer, session.identity, Role.DEALER) as channel:
                RemoteDealer(channel, dealer, session.task, session.role).leave(
                    _LEAVING_S
                )
        except PrecadError as error:
            log.info("the dealer wasn't told that the training is over: %s", error)
        call_in(loop, left.set)

    if address is not None and session.progress.phase is Phase.DONE:
        session.clock.start_thread("leave", partial(leave, address))
    else:
        left.set()
    return left


class PeerService:
    """B's way to A: takes server A's link, from server A alone, and one at a time.

    While the first lives a second one is refused: a stale copy of A can't take the true
    one's place. After an unnoticed network cut keepalive ends the old link within 30 s,
    and A gets in.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._links: queue.SimpleQueue[ServedTransport] = queue.SimpleQueue()
        self._current: ServedTransport | None = None

    async def link(
        self, request_iterator: AsyncIterator[bytes], context: Context
    ) -> AsyncGenerator[bytes]:
        """The servers' link."""
        admit = partial(require, context, self._session.identity, Role.SERVER_A)
        async with Refusing(context):
            admit()
            if self._current is not None and self._current.alive:
                log.warning(
                    "a second server A dialled from %s and was refused", context.peer()
                )
                self._session.twice[Role.SERVER_A.value] += 1
                raise PeerUnavailable(LINKED)
            loop = asyncio.get_running_loop()
            timeout_s = self._session.task.deadlines.peer
            transport = self._current = ServedTransport(loop, timeout_s)
            self._links.put(transport)
            async with aclosing(transport.serve(request_iterator)) as frames:
                async for message in LongStream(_still_allowed=admit).follow(frames):
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
            remedy = "check that it runs and that its server_b address is this server's"
            said = f"server A didn't connect within {timeout_s:g} s"
            raise PeerUnavailable(f"{said}; {remedy}") from None
        with closing(link):
            yield link
