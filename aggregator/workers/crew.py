"""A server's crew, from its settings: where workers are placed, and what they are told."""

from collections.abc import Iterator
from contextlib import contextmanager

from precad.aggregator.rounds.aggregator import Aggregator
from precad.aggregator.rounds.states import Opened
from precad.aggregator.settings import ServerSettings
from precad.aggregator.training.conduct import in_process
from precad.aggregator.training.session import Session
from precad.aggregator.validate.validation import Validation, Validator
from precad.aggregator.workers.pairs import Crew, Pairs, pairs_of
from precad.aggregator.workers.place import Place, ThisMachine
from precad.aggregator.workers.pool import Pool
from precad.aggregator.workers.start import WorkerStart
from precad.common.errors import Misconfiguration

_EVERYWHERE = ("0.0.0.0", "[::]")  # noqa: S104 -- compared with, not bound
_PORTS = 1 << 16


class Workforce:
    """What a training asks for a validator, attempt by attempt.

    Args:
        session: this server.
        settings: how many workers, and where.
        other_server: at A: server B's address.

    Raises:
        Misconfiguration: the ports aren't there, or Ray isn't installed.
    """

    def __init__(self, session: Session, settings: ServerSettings, other_server: str = "") -> None:
        self._count = settings.workers
        self._crew: Crew | None = None
        if not self._count:
            return

        def changed(up: int) -> None:
            session.progress.workers = up

        host, _ = _split(settings.worker_listen)
        pool = Pool(_place(settings), _starts(session, settings), changed)
        self._crew = Crew(
            pool,
            session.identity,
            other_host=_split(other_server)[0] if other_server else "",
            own_host="127.0.0.1" if host in _EVERYWHERE else host,
            clock=session.clock,
        )

    @contextmanager
    def validation(self, aggregator: Aggregator, opened: Opened) -> Iterator[Validator]:
        """A validator for one attempt: pairs of workers where both servers have some."""
        pairs = pairs_of(aggregator, self._count)
        made: Validation
        if self._crew is None or not pairs:
            made = in_process(aggregator, opened)
        else:
            made = Pairs(aggregator, opened, self._crew, aggregator.dealing.epoch, pairs)
        with made as validator:
            yield validator

    def close(self) -> None:
        """End all workers."""
        if self._crew is not None:
            self._crew.pool.close()


def _place(settings: ServerSettings) -> Place:
    if settings.workers_on == "ray":
        from precad.aggregator.workers.on_ray import RayCluster  # noqa: PLC0415

        return RayCluster(settings.ray)
    return ThisMachine()


def _starts(session: Session, settings: ServerSettings) -> list[WorkerStart]:
    host, port = _split(settings.worker_listen)
    if port and port + settings.workers > _PORTS:
        raise Misconfiguration("worker_listen", settings.worker_listen, "too few ports follow it")
    return [
        WorkerStart(
            role=session.role.value,
            task=settings.task.resolve(),
            identity=settings.identity.resolve(),
            dealer=settings.dealer,
            listen=f"{host}:{port + number if port else 0}",
        )
        for number in range(settings.workers)
    ]


def _split(address: str) -> tuple[str, int]:
    host, port = address.rsplit(":", 1)
    return host, int(port)
