"""Rounds in which everything that each server receives, computes on, stores and logs is kept."""

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.rig.keys import seals, signer, verifier
from tests.rig.submissions import body_of

from precad.common.aggregator.collect import Inbox
from precad.common.aggregator.round import run_round as page
from precad.common.aggregator.round.states import Finished
from precad.common.aggregator.store import Store, open_store
from precad.common.deal.dealer import DealerRole
from precad.common.deal.randomness import DealtRandomness
from precad.common.deal.request import DealRequest
from precad.common.enrolment import Enrolment, Roster
from precad.common.errors import Rejection
from precad.common.identifiers import ClientId, Role
from precad.common.link import Frame, memory_pair
from precad.common.ring import from_bytes, to_bytes
from precad.common.share.signature import Verifier
from precad.common.share.submission import Submission
from precad.common.task import Task

SERVERS = (Role.SERVER_A, Role.SERVER_B)


@dataclass
class View:
    """All that one server gets to see of one round, and what it can expand by itself."""

    role: Role
    headers: list[Submission] = field(default_factory=list)
    held: dict[ClientId, Submission] = field(default_factory=dict)
    shares: dict[ClientId, bytes] = field(default_factory=dict)
    """What each holds alone: A its seeds, B the bodies, salt_h and b."""
    received: list[Frame] = field(default_factory=list)
    sent: list[Frame] = field(default_factory=list)
    dealt: list[tuple[DealRequest, NDArray[np.int64]]] = field(default_factory=list)
    dealer_key: bytes = b""
    stored: dict[str, bytes] = field(default_factory=dict)
    outcome: Finished | None = None
    key_of: Callable[[], Any] = lambda: None

    def expanded(self, client: ClientId, dimension: int) -> NDArray[np.int64]:
        """This server's share of a client's update, ``[d] int64``."""
        mask = self.held[client].mask().words(dimension)
        if self.role is Role.SERVER_A:
            return mask
        return mask + from_bytes(self.shares[client][32:])

    def messages(self, frames: list[Frame], part: str) -> list[bytes]:
        """Whole messages of the steps that contain ``part``."""
        found, pieces = [], b""
        for frame in frames:
            if part in frame.step:
                pieces += frame.payload
                if frame.last:
                    found.append(pieces)
                    pieces = b""
        return found

    def opening(self, place: int, frames: list[Frame]) -> NDArray[np.int64]:
        """The share of x − a, of the submission at ``place`` of the first batch."""
        (message,) = self.messages(frames, f"validate/0/{place}/")
        return from_bytes(message)

    def own_triple(self, place: int) -> tuple[NDArray[np.int64], int]:
        """What this server expands of an inner-product triple."""
        request, corrections = self.dealt[0]
        randomness = DealtRandomness(self.role, self.key_of(), request, corrections)
        return randomness.inner_product_triple(place)

    def blobs(self) -> dict[str, bytes]:
        """Every byte of the view up to the other's noisy share, by where it was seen."""
        blobs = {f"share of {client}": share for client, share in self.shares.items()}
        for number, each in enumerate(self.headers):
            blobs[f"header {number}"] = each.header.signed + each.seed.reveal() + each.salt.reveal()
        for name, frames in (("received", self.received), ("sent", self.sent)):
            for number, frame in enumerate(frames):
                blobs[f"{name} {number} {frame.step}"] = frame.step.encode() + frame.payload
        blobs["dealer key"] = self.dealer_key
        for number, (request, corrections) in enumerate(self.dealt):
            blobs[f"corrections {number}"] = to_bytes(corrections)
            for place in range(request.clients):
                a, r = self.own_triple(place) if number == 0 else (np.empty(0, np.int64), 0)
                blobs[f"triple {number} {place}"] = to_bytes(np.append(a, np.int64(r)))
        for client in self.held:
            (d,) = {request.dimension for request, _ in self.dealt} or {0}
            blobs[f"expanded share of {client}"] = to_bytes(self.expanded(client, d))
        return blobs | {f"file {name}": data for name, data in self.stored.items()}


@dataclass
class Watched:
    """One round, as each server saw it."""

    a: View
    b: View
    log: str = ""

    def __iter__(self) -> Iterator[View]:
        return iter((self.a, self.b))


class _Tap:
    """A transport that keeps what passes."""

    def __init__(self, end: Any, view: View) -> None:
        self._end = end
        self._view = view

    def put(self, frame: Frame) -> None:
        self._view.sent.append(frame)
        self._end.put(frame)

    def get(self, timeout_s: float) -> Frame:
        frame: Frame = self._end.get(timeout_s)
        self._view.received.append(frame)
        return frame


Watch = Callable[..., Watched]


@pytest.fixture
def watch(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> Watch:
    """``watch(task, updates, noise=None)`` plays a round and returns both servers' views."""
    caplog.set_level(logging.DEBUG)
    # With parameters: SQLAlchemy's most talkative level.
    caplog.set_level(logging.DEBUG, "sqlalchemy.engine")
    count = 0

    def play(
        task: Task, updates: Mapping[ClientId, NDArray[np.int64]], noise: Any = None
    ) -> Watched:
        nonlocal count
        count += 1
        folder = tmp_path / str(count)
        views = {role: View(role) for role in SERVERS}

        def pair() -> tuple[Any, Any]:
            a, b = memory_pair()
            return _Tap(a, views[Role.SERVER_A]), _Tap(b, views[Role.SERVER_B])

        class WatchedInbox(Inbox):
            """Spools to disk, and keeps what is on the disk while the round is on."""

            def __init__(self, role: Role, task: Task, verifier: Verifier) -> None:
                self._view = views[role]
                super().__init__(role, task, verifier, folder / role.value)

            def start(self, submission: Submission) -> Any:
                self._view.headers.append(submission)
                return super().start(submission)

            def close(self) -> Mapping[ClientId, Submission | Rejection]:
                collected = super().close()
                for client, item in collected.items():
                    if isinstance(item, Submission):
                        self._view.held[client] = item
                        self._view.shares[client] = body_of(item) or item.seed.reveal()
                self._view.stored |= read(folder / self._view.role.value)
                return collected

        class WatchedDealer(DealerRole):
            def corrections(self, role: Role, request: DealRequest) -> NDArray[np.int64]:
                words = super().corrections(role, request)
                view = views[role]
                view.dealt.append((request, words))
                view.dealer_key = self.key_for(role).reveal()
                view.key_of = lambda: self.key_for(role)
                return words

        def journal(role: Role) -> Store:
            (folder / role.value).mkdir(parents=True, exist_ok=True)
            return open_store(f"sqlite:///{folder / role.value / 'state.db'}", task, role)

        monkeypatch.setattr(page, "memory_pair", pair)
        monkeypatch.setattr(page, "Inbox", WatchedInbox)
        monkeypatch.setattr(page, "DealerRole", WatchedDealer)
        roster = Roster({name: Enrolment(name, 100, 0.1) for name in updates})
        theta = np.zeros(task.dimension)
        outcomes = page.run_round(
            task,
            roster,
            theta,
            updates,
            journal=journal,
            signers={name: signer(name) for name in updates},
            verifier=verifier(),
            seals=partial(seals, task.digest),
            noise=noise,
        )
        for role, outcome in zip(SERVERS, outcomes, strict=True):
            views[role].outcome = outcome
            views[role].stored |= {f"{n} (end)": d for n, d in read(folder / role.value).items()}
        log = "\n".join(record.getMessage() for record in caplog.records)
        caplog.clear()
        return Watched(views[Role.SERVER_A], views[Role.SERVER_B], log)

    return play


def read(folder: Path) -> dict[str, bytes]:
    """Every file under a folder."""
    return {path.name: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
