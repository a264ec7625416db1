"""Two servers' durable state, on real databases, and links between them that break.

Attempts go the servers' own way from prepare to keep; submissions and validation are
left out.
"""

import shutil
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import Mock

import numpy as np
from tests.rig import keys, parties, rounds
from tests.rig.aggregators import aggregator, session_of
from tests.rig.memory_link import memory_pair

from precad.aggregator import peer_link, release
from precad.aggregator.attempt_states import Counted, Noised, Opened
from precad.aggregator.rounds.aggregator import Aggregator, CoinKey
from precad.aggregator.store import open_store, schema
from precad.aggregator.training.reconcile import meet
from precad.aggregator.training.recovery import Recovery, Remedy, recover
from precad.aggregator.training.round_end import Steps, keep
from precad.aggregator.training.session import Session
from precad.common.errors import PrecadError
from precad.common.identifiers import ClientId, Digest, Role, Secret
from precad.common.task import Task

A, B = Role.SERVER_A, Role.SERVER_B
SERVERS = (A, B)
ANN, BEN, CLEO = (ClientId(name) for name in ("ann", "ben", "cleo"))
ROSTER = rounds.roster_of((ANN, BEN, CLEO))
Cuts = tuple[int | None, int | None]
NEVER: Cuts = (None, None)
VALID_SET = Digest(b"\3" * 32)
T = TypeVar("T")


class Servers:
    def __init__(self, task: Task, folder: Path) -> None:
        self.task, self.folder = task, folder
        self.sessions: dict[Role, Session] = {}
        self.frames: list[peer_link.Frame] = []
        self._copies = count()
        self.keys = {role: CoinKey(Secret.random()) for role in SERVERS}
        for role in SERVERS:
            (folder / role.value).mkdir()
            self.open(role)

    def open(self, role: Role) -> None:
        own = self.folder / role.value
        journal = self.folder / f"{role.value}.journal"
        store = open_store(f"sqlite:///{own / 'state.db'}", self.task, role, journal)
        pens = keys.signatures(self.task.digest, role)
        own_part = {
            "signer": pens.signer,
            "verifier": pens.verifier,
            "coin_key": self.keys[role],
        }
        others = {"register": Mock(frozen=True), "event_log": Mock()}
        self.sessions[role] = session_of(
            role, self.task, store, own, **own_part, **others
        )

    def close(self) -> None:
        for session in self.sessions.values():
            session.store.close()

    def restarted(self, role: Role) -> Session:
        self.sessions[role].store.close()
        self.open(role)
        return self.sessions[role]

    def copy(self, role: Role) -> Path:
        backup = self.folder / f"{role.value}-{next(self._copies)}"
        self.sessions[role].store.close()
        shutil.copytree(self.folder / role.value, backup)
        self.open(role)
        return backup

    def put_back(self, role: Role, backup: Path, *, journal: bool = False) -> None:
        """Replace its state by a copy; with ``journal`` the file outside is too."""
        self.sessions[role].store.close()
        shutil.rmtree(self.folder / role.value)
        shutil.copytree(backup, self.folder / role.value)
        if journal:
            (self.folder / f"{role.value}.journal").unlink(missing_ok=True)
        self.open(role)

    def on_a_link(
        self, play: Callable[[Session, Aggregator], T], cuts: Cuts
    ) -> list[T | PrecadError]:
        def at(
            role: Role, end: peer_link.FrameTransport, cut: int | None
        ) -> T | PrecadError:
            session = self.sessions[role]
            transport = parties.Breaking(end, cut, self.frames)
            parts = {
                "roster": ROSTER,
                "coin_key": self.keys[role],
                "store": session.store,
            }
            own = aggregator(self.task, role, transport, **parts)
            try:
                return play(session, own)
            except PrecadError as error:
                return error
            finally:
                transport.hang_up()

        with ThreadPoolExecutor(2) as threads:
            return list(threads.map(at, SERVERS, memory_pair(), cuts))

    def meet(self) -> list[Any]:
        """What each finds, or the error."""
        return self.on_a_link(lambda session, own: meet(session, own.link), NEVER)

    def mend(self, cuts: Cuts = NEVER) -> list[Remedy | PrecadError]:
        """Meet and remedy until nothing is left to do, as a link's start does."""

        def play(session: Session, own: Aggregator) -> Remedy:
            recovery: Recovery = meet(session, own.link)
            while recovery.remedy is not Remedy.NOTHING:
                recover(session, own, recovery)
                recovery = meet(session, own.link)
            return recovery.remedy

        return self.on_a_link(play, cuts)

    def attempt(
        self,
        number: int,
        *,
        prepared: Collection[Role] = SERVERS,
        valid: tuple[ClientId, ...] = (ANN, BEN),
        cuts: Cuts = NEVER,
    ) -> list[PrecadError | None]:
        """Of the open version; who isn't in ``prepared`` broke off before."""

        def play(session: Session, own: Aggregator) -> None:
            current = session.model_store.current
            session.store.attempts.begin(
                attempt=number,
                version=current.version,
                cohort_size=3,
                model=current.digest,
            )
            if own.role not in prepared:
                session.store.attempts.abandon_open()
                return
            opened = Opened(
                attempt=number,
                version=current.version,
                cohort=(ANN, BEN, CLEO),
                model=current.digest,
                counted=frozenset(valid),
            )
            counted = Counted(
                opened=opened,
                valid=valid,
                valid_set=VALID_SET,
                rejections={},
            )
            share = np.full(
                self.task.dimension, 3 if own.role is A else 4, dtype=np.int64
            )
            ready = release.prepare(session.store, Noised(counted, share), own.shares)
            if len(prepared) > 1:
                sent = release.countersign(own, ready)
                made = release.reconstruct(own, sent, session.model_store.theta())
                keep(
                    session, sent.counted, made.theta, made.model, Steps(session.clock)
                )

        return self.on_a_link(play, cuts)

    def states(self, number: int) -> tuple[schema.AttemptState | None, ...]:
        return tuple(
            self.sessions[role].store.attempts.states().get(number) for role in SERVERS
        )

    def versions(self) -> tuple[int, ...]:
        return tuple(
            self.sessions[role].model_store.current.version for role in SERVERS
        )

    def charged(self) -> list[dict[ClientId, int]]:
        return [
            dict(self.sessions[role].store.ledger.participations()) for role in SERVERS
        ]

    def agree(self) -> None:
        """Both know the same: models, ledgers' facts, chains that nobody changed."""
        a, b = (self.sessions[role] for role in SERVERS)
        assert a.model_store.current.digest == b.model_store.current.digest
        newest = a.model_store.current.version + 1
        assert a.store.ledger.history(newest) == b.store.ledger.history(newest)
        assert a.store.attempts.pending() is b.store.attempts.pending() is None
