"""Rounds in which everything that each party receives, computes on, stores and logs is
kept."""

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.rig import memory, rounds, submissions
from tests.rig import protocol as page
from tests.rig.memory_link import memory_pair
from tests.rig.parties import Breaking
from tests.rig.views import SERVERS, DealerView, View, Watched

from precad.aggregator.collect.inbox import Inbox
from precad.aggregator.collect.upload import Upload
from precad.aggregator.noise import NoiseSource
from precad.aggregator.store import Store, open_store
from precad.common.errors import Rejection
from precad.common.identifiers import ClientId, Role, Secret
from precad.common.ring import RingVector
from precad.common.submission import Submission, Verifier
from precad.common.task import Task
from precad.dealer.dealer_role import DealerRole, Deliver, Work
from precad.norm_check.dealing import Answer, DealRequest, SquareRequest
from precad.norm_check.proof_submission import AnySubmission


class _Logs(logging.Handler):
    """Keeps all that is logged, and apart what is while the dealer works, in servers'
    threads."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.dealers: list[str] = []
        self._at_work: set[int] = set()

    @contextmanager
    def works(self) -> Iterator[None]:
        self._at_work.add(threading.get_ident())
        yield
        self._at_work.discard(threading.get_ident())

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))
        if threading.get_ident() in self._at_work:
            self.dealers.append(self.lines[-1])


@contextmanager
def _logged() -> Iterator[_Logs]:
    loggers = [logging.getLogger(name) for name in ("", "sqlalchemy.engine")]
    before, handlers, logs = (
        [each.level for each in loggers],
        loggers[0].handlers[:],
        _Logs(),
    )
    loggers[0].handlers[:] = [logs]
    for each in loggers:
        each.setLevel(logging.DEBUG)
    try:
        yield logs
    finally:
        loggers[0].handlers[:] = handlers
        for each, level in zip(loggers, before, strict=True):
            each.setLevel(level)


Updates = Mapping[ClientId, RingVector]
Noise = Callable[[Role], NoiseSource]
Watch = Callable[..., Watched]


@pytest.fixture(scope="session")
def watch() -> Watch:
    """``watch(task, updates, noise=None)`` plays a round and returns all three parties'
    views."""

    def play(task: Task, updates: Updates, noise: Noise | None = None) -> Watched:
        with (
            pytest.MonkeyPatch.context() as patch,
            memory.in_memory() as folder,
            _logged() as logs,
        ):
            return _play(Path(folder), patch, logs, task, updates, noise)

    return play


def _play(
    folder: Path,
    patch: pytest.MonkeyPatch,
    logs: _Logs,
    task: Task,
    updates: Updates,
    noise: Noise | None,
) -> Watched:
    of_dealer, a, b = DealerView(), View(Role.SERVER_A), View(Role.SERVER_B)
    a.received, b.received = b.sent, a.sent
    views = {Role.SERVER_A: a, Role.SERVER_B: b}

    def pair() -> list[Breaking]:
        ends = zip(memory_pair(), SERVERS, strict=True)
        return [Breaking(end, seen=views[role].sent) for end, role in ends]

    class WatchedInbox(Inbox):
        """Spools to disk, and keeps what is on the disk while the round is on."""

        def __init__(
            self, role: Role, task: Task, verifier: Verifier, _spool: Path
        ) -> None:
            self._view = views[role]
            super().__init__(role, task, verifier, folder / role.value)

        def start(self, submission: AnySubmission) -> Upload:
            self._view.headers.append(submissions.masked(submission))
            return super().start(submission)

        def close(self) -> Mapping[ClientId, AnySubmission | Rejection]:
            collected = super().close()
            for client, item in collected.items():
                if isinstance(item, Submission):
                    self._view.held[client] = item
                    self._view.shares[client] = (
                        submissions.body_of(item) or item.seed.reveal()
                    )
            self._view.stored |= read(folder / self._view.role.value)
            return collected

    class WatchedDealer(DealerRole):
        def key_for(self, role: Role) -> Secret:
            key = super().key_for(role)
            of_dealer.keys[role] = views[role].dealer_key = key.reveal()
            return key

        def corrections(self, role: Role, request: DealRequest) -> NDArray[np.int64]:
            with logs.works():
                words = super().corrections(role, request)
            views[role].dealt.append((request, words))
            of_dealer.batches.append((role, request, words))
            return words

        def ask(
            self, role: Role, request: SquareRequest, deliver: Deliver
        ) -> Work | None:
            of_dealer.asked.append((role, request))

            def overheard(context: bytes, answer: Answer) -> None:
                match answer:
                    case Secret():
                        views[role].row_keys[context] = answer.reveal()
                        of_dealer.row_keys[context] = answer.reveal()
                    case int():
                        views[role].shares_of_r[context] = answer
                        of_dealer.shares_of_r.setdefault(context, {})[role] = answer
                deliver(context, answer)

            with logs.works():
                rest = super().ask(role, request, overheard)
            return rest and logs.works()(rest)

    def store(role: Role) -> Store:
        (folder / role.value).mkdir(parents=True, exist_ok=True)
        return open_store(f"sqlite:///{folder / role.value / 'state.db'}", task, role)

    patch.setattr(page, "memory_pair", pair)
    patch.setattr(page, "Inbox", WatchedInbox)
    patch.setattr(page, "DealerRole", WatchedDealer)
    outcomes = rounds.play_round(task, updates, store=store, noise=noise)
    for role, outcome in zip(SERVERS, outcomes, strict=True):
        views[role].outcome = outcome
        views[role].stored |= {
            f"{n} (end)": d for n, d in read(folder / role.value).items()
        }
    of_dealer.log = logs.dealers
    return Watched(a, b, of_dealer, "\n".join(logs.lines))


def read(folder: Path) -> dict[str, bytes]:
    return {
        path.name: path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
