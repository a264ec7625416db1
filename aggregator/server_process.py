"""A server's process: gRPC on the event loop, and the protocol in a thread.

What is here is the same for both servers: their settings opened, their port, their ways
to the dealer and to each other, and how a process ends.
"""

import asyncio
import contextlib
import math
import queue
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, aclosing, closing, contextmanager
from functools import partial

import grpc

from precad.aggregator import FrameTransport, ServerSettings, server_noise
from precad.aggregator.collect import Inbox
from precad.aggregator.enrol import Register, admission_of, window_of
from precad.aggregator.rounds.aggregator import CoinKey
from precad.aggregator.rpc import (
    IDLE_S,
    AggregationService,
    OperationService,
    RemoteDealer,
    ServedTransport,
    reach_dealer,
)
from precad.aggregator.store import open_store
from precad.aggregator.training import (
    ConnectedClients,
    Dealer,
    EventLog,
    LongStream,
    ModelStore,
    Peers,
    Phase,
    Session,
    run_to_end,
)
from precad.aggregator.validate import load_check
from precad.aggregator.workers.worker_pairs import ValidationWorkers
from precad.common import (
    PeerUnavailable,
    PrecadError,
    Role,
    Task,
    call_in,
    doing,
    dump_stacks_on_signal,
    give_back_freed,
    let_go_of_loaded,
    log,
    make_folder,
    require_dealer,
    wait_at_most,
)
from precad.common.identity import (
    CertificateSigner,
    CertificateVerifier,
    Identity,
    open_channel,
    read_coin_key,
    replace_coin_key,
    require,
    tell_until,
)
from precad.common.kernel import kernel_in_use
from precad.common.wire import (
    LINKED,
    CallRate,
    Context,
    GuardedPort,
    add_health,
    refusing,
    set_when_told_to_stop,
)

LATE = 10.0
"""How many times ``linger`` is given to owners that weren't heard from yet."""
LOOK_S = 1.0
"""Seconds between looks at whether a finished server may end."""
STOPPED_S = 30.0
"""Seconds for which a server whose training stopped says why, where ``linger`` is
endless."""

TrainingLoop = Callable[[Session], None]
"""Plays a whole training; it blocks, and runs in a thread of its own."""
Extend = Callable[[grpc.aio.Server, Session], None]
"""Adds a server's further services to its port before it listens."""


async def run_server(
    role: Role,
    settings: ServerSettings,
    training_loop: TrainingLoop,
    extend: Extend | None = None,
) -> int:
    """Serve until the training is over and its model was on offer for long enough.

    Return the exit status: 0 after a finished training, or when told to stop (SIGTERM,
    SIGINT) in the middle; 1 after a training that couldn't go on.

    Raises Misconfiguration: settings, task, identity or state can't be used.
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
            # Before the first round and not during it: an account takes seconds.
            session.register.prepare_accounts()
            let_go_of_loaded()
            run_to_end(session, training_loop)
        finally:
            call_in(loop, ended.set)

    # The metrics' port comes first: an error after the server takes calls would leave
    # gRPC's threads waiting for its loop.
    async with _metrics(session, settings.metrics):
        port_number = await port.listen(settings.listen)
        log.info(
            "%s serves task %s on port %d; projections by %s",
            role.value,
            session.task.name,
            port_number,
            kernel,
        )
        session.clock.start_thread("training", train)
        await tell_until(ended, session.identity)
        # Read now: what ends below takes the training's links from under it.
        phase = session.progress.phase
        parked = stop.is_set() and phase not in (Phase.DONE, Phase.STOPPED)
        if parked:
            log.info(
                "told to stop; started again, the training goes on where it stands"
            )
        dealer_told = _leave_dealer(session, settings.dealer)
        if phase is Phase.DONE:
            await stay(session, settings.linger, stop)
        else:
            # It says why it stopped, and must end so that it is started again.
            stopped_s = STOPPED_S if math.isinf(settings.linger) else settings.linger
            await wait_at_most(stop, stopped_s)
        await port.stop(grace_s=1)
        if not stop.is_set():
            await dealer_told.wait()
    session.store.close()
    return 0 if parked or phase is Phase.DONE else 1


@contextlib.asynccontextmanager
async def _metrics(session: Session, address: str | None) -> AsyncIterator[None]:
    """Show metrics for Prometheus at ``address`` until the block ends; None: nowhere.

    Raises Misconfiguration: the address can't be listened on.
    """
    if address is None:
        yield
        return
    from precad.aggregator.rpc import Metrics  # noqa: PLC0415
    from precad.common.wire.metrics_page import metrics_page  # noqa: PLC0415

    metrics = Metrics(session)
    with metrics_page(metrics.collect, address):
        events = session.event_log.follow(from_start=True)
        following = asyncio.create_task(metrics.follow(events))
        try:
            yield
        finally:
            following.cancel()


def make_port(
    session: Session, idle_s: float = IDLE_S, rate: CallRate | None = None
) -> GuardedPort:
    """Make the port with the services that every server offers; it doesn't listen yet.

    ``idle_s`` is the longest wait for an upload's next piece; ``rate`` replaces the
    usual limit of calls a second.
    """
    role = session.role
    identity = session.identity
    port = GuardedPort(role.value, identity, session.task.enrolment.clients, rate)
    AggregationService(session, idle_s).add_to(port.server)
    OperationService(session).add_to(port.server)
    add_health(
        port.server, identity, lambda: session.progress.phase is not Phase.STOPPED
    )
    return port


def open_session(role: Role, settings: ServerSettings) -> Session:
    """Open what the settings describe: task, identity, database, journal and models.

    Call it on the event loop.

    Raises Misconfiguration: some of it can't be used; StorageFailure: the database
    can't be read or written.
    """
    task = Task.load(settings.task)
    require_dealer(task, settings.dealer)
    identity = Identity.load(settings.identity, settings.key_passphrase_file)
    verifier = CertificateVerifier(identity)
    make_folder(settings.state)
    url = settings.database or f"sqlite:///{settings.state / 'state.db'}"
    # Beside the state folder, so that no backup of the folder has it.
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
        enrolling=window_of(
            task, until=settings.enrol_until, quorum=settings.enrol_quorum
        ),
    )


def leaves_at(done: float, last_heard: float | None, linger_s: float) -> float:
    """Return when a server with a finished model may end, in the clock's seconds.

    The model is on offer for ``linger_s`` once all owners were heard from, and for
    ``LATE`` times as long while one wasn't. Otherwise a server that comes back after
    the training's end would be gone before owners who start as slowly have asked.

    Args:
        done: when this process had the finished model.
        last_heard: when the last of the owners was first heard from; None while one
            wasn't.
        linger_s: the setting ``linger``.
    """
    if last_heard is None:
        return done + LATE * linger_s
    return max(done, last_heard) + linger_s


async def stay(session: Session, linger_s: float, stop: asyncio.Event) -> None:
    """Wait with a finished model until the server may end, or ``stop`` is set.

    If all owners have the model by then, that is noted beside it: a next start waits
    for nobody.
    """
    clients = session.connected_clients
    model_store = session.model_store
    done = session.clock.now()
    roster = list(session.register.roster())
    # Owners that have the final model call nobody any more.
    awaited = [] if model_store.fetched else roster
    while not stop.is_set():
        leaves = leaves_at(done, clients.last_heard(awaited), linger_s)
        left_s = leaves - session.clock.now()
        if left_s <= 0:
            break
        wait_s = None if math.isinf(left_s) else min(left_s, LOOK_S)
        await wait_at_most(stop, wait_s)
    if clients.all_have_final_model(roster):
        try:
            model_store.note_fetched()
        except OSError as error:
            log.info(
                "a next start will wait for owners that don't come: %s", error.strerror
            )


_LEAVING_S = 5.0
"""Seconds in which the dealer must answer that a server leaves: it may start later than
a server whose training is over."""

Reach = Callable[[], AbstractContextManager[FrameTransport]]
"""Gives the link to the other server until its block ends. Raises PeerUnavailable."""


def peers_of(
    session: Session,
    dealer_address: str | None,
    other_server: Reach,
    workers: ValidationWorkers,
) -> Peers:
    """Return a process's peers: the other server and the dealer, over gRPC.

    Its noise is the task's discrete Gaussian; its workers validate. ``dealer_address``
    is None where the task has no dealer.
    """

    @contextmanager
    def connect() -> Iterator[tuple[FrameTransport, Dealer]]:
        dealer_link = reach_dealer(
            dealer_address, session.identity, session.task, session.role
        )
        with dealer_link as dealer, other_server() as transport:
            yield transport, dealer

    return Peers(connect, server_noise(session.task.mechanism), workers.validation)


def _leave_dealer(session: Session, address: str | None) -> asyncio.Event:
    """Tell the dealer, in a thread, that a finished training is over.

    Return an event that is set once it was told or couldn't be; at once where there is
    no dealer or the training isn't finished.
    """
    told = asyncio.Event()
    loop = asyncio.get_running_loop()

    def leave(dealer: str) -> None:
        try:
            with open_channel(dealer, session.identity, Role.DEALER) as channel:
                remote = RemoteDealer(channel, dealer, session.task, session.role)
                remote.leave(_LEAVING_S)
        except PrecadError as error:
            log.info("the dealer wasn't told that the training is over: %s", error)
        call_in(loop, told.set)

    if address is not None and session.progress.phase is Phase.DONE:
        session.clock.start_thread("leave", partial(leave, address))
    else:
        told.set()
    return told


class PeerService:
    """Server B's service for the link of server A, from A alone and one at a time.

    While one link lives, a second one is refused: a stale copy of A can't take the true
    one's place. After an unnoticed network cut, keepalive ends the old link within 30
    s, and A gets in.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._links: queue.SimpleQueue[ServedTransport] = queue.SimpleQueue()
        self._current: ServedTransport | None = None

    async def link(
        self, request_iterator: AsyncIterator[bytes], context: Context
    ) -> AsyncGenerator[bytes]:
        """Serve the servers' link, as gRPC calls it: frames in, frames out.

        The call is refused where it doesn't come from server A, or A is linked already.
        Whether A may still call is checked for as long as the link lives.
        """
        admit = partial(require, context, self._session.identity, Role.SERVER_A)
        async with refusing(context):
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
        """Yield the newest link, once A has dialled, and close it after the block.

        Raises PeerUnavailable: A didn't dial in time.
        """
        timeout_s = self._session.task.deadlines.peer
        try:
            link = self._links.get(timeout=timeout_s)
            while not self._links.empty():
                link = self._links.get_nowait()
        except queue.Empty:
            raise PeerUnavailable(
                f"server A didn't connect within {timeout_s:g} s; check that it runs"
                " and that its server_b address is this server's"
            ) from None
        with closing(link):
            yield link
