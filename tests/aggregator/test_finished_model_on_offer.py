"""How long a server with a finished model waits for those it belongs to."""

import asyncio
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.conftest import TaskMaker

from precad.aggregator.rpc import process
from precad.aggregator.rpc.process import LATE, leaves_at, stay
from precad.aggregator.training.connected_clients import ConnectedClients
from precad.aggregator.training.model_store import ModelStore
from precad.common.clock import Clock
from precad.common.identifiers import ClientId

ONE, OTHER = ClientId("one"), ClientId("other")


class Hands(Clock):
    """A clock that is set by hand."""

    time = 0.0

    def now(self) -> float:
        return self.time


def test_a_model_stays_until_the_last_owner_has_had_its_time() -> None:
    clock = Hands()
    clients = ConnectedClients(1.0, clock)
    both = [ONE, OTHER]
    assert clients.last_heard(both) is None
    clock.time = 5.0
    clients.heard_from(ONE)
    # One that was never heard from is waited for longer, but not without an end.
    assert leaves_at(2.0, clients.last_heard(both), 30.0) == 2.0 + LATE * 30.0
    clock.time = 200.0
    clients.heard_from(OTHER)
    assert leaves_at(2.0, clients.last_heard(both), 30.0) == 230.0
    # Nobody keeps a server up by asking again and again.
    clock.time = 225.0
    clients.heard_from(ONE)
    assert leaves_at(2.0, clients.last_heard(both), 30.0) == 230.0


def test_after_a_training_that_all_took_part_in_the_model_stays_for_the_stated_time() -> None:
    clock = Hands()
    clients = ConnectedClients(1.0, clock)
    clients.heard_from(ONE)
    assert leaves_at(1000.0, clients.last_heard([ONE]), 30.0) == 1030.0
    assert leaves_at(1000.0, clients.last_heard([ONE]), 0.0) == 1000.0
    assert leaves_at(1000.0, clients.last_heard([ONE]), math.inf) == math.inf
    assert leaves_at(1000.0, None, 0.0) == 1000.0


class Ticking(Hands):
    """A clock by which every look takes a second."""

    def now(self) -> float:
        self.time += 1.0
        return self.time


def test_a_finished_server_that_starts_again_waits_for_nobody_who_has_its_model(
    tmp_path: Path, make_task: TaskMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such an owner calls nobody any more (``DataOwner.run``)."""
    task = make_task()
    monkeypatch.setattr(process, "LOOK_S", 0.0)

    def stays(*with_model: ClientId, heard: bool = False) -> float:
        clock = Ticking()
        clients = ConnectedClients(1.0, clock)
        for client in (ONE, OTHER) if heard else ():
            clients.heard_from(client)
        for client in with_model:
            clients.has_final_model(client)
        session: Any = SimpleNamespace(
            clock=clock,
            connected_clients=clients,
            model_store=ModelStore(task, tmp_path / "model.safetensors"),
            register=SimpleNamespace(roster=lambda: {ONE: None, OTHER: None}),
        )
        began = clock.time
        asyncio.run(stay(session, 30.0, asyncio.Event()))
        return clock.time - began

    late = LATE * 30
    # One of two got it: a next start waits for the other, and so does the one after it.
    assert stays(ONE, heard=True) < late
    assert stays() > late
    assert stays(ONE, OTHER, heard=True) < late
    assert stays() < late
    # A state that was put back, or another training's model, is waited for again.
    theta = np.ones(task.dimension)
    ModelStore(task, tmp_path / "model.safetensors").put(task.training.rounds, theta)
    assert stays() > late
