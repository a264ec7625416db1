"""What is simulated is `run_round`'s, bit for bit; samples and noise alone are given to both."""

from collections import Counter
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.rig.keys import identity
from tests.rig.rounds import play_round

import precad
from precad.client.data_owner import DataOwner
from precad.client.participant import RoundView
from precad.common.errors import Rejection
from precad.common.identifiers import ClientId, Digest, Role
from precad.common.identity.party_certificate import Principal
from precad.common.model import initial_vector, model_digest, to_bytes
from precad.common.roster import Enrolment, Roster
from precad.common.task import Task
from precad.simulation import SimulatedRound, View
from precad.simulation import rounds as drawing
from precad.simulation.datasets import demo_task, load

OWNERS, ROUNDS, SEED = 6, 12, 4
BAD, AWAY = ("owner-4", "owner-5"), ("owner-1", "owner-2")


def absent(version: int, drawn: tuple[str, ...]) -> list[str]:
    """One of them in three rounds of four, both in every fourth."""
    away = AWAY if version % 4 == 3 else AWAY[: version % 4 - 2] if version % 4 else ()
    return [name for name in away if name in drawn]


def attack(updates: NDArray[np.int64], view: View) -> NDArray[np.int64]:
    """What wraps to nothing, what is just too long, and now and then what counts."""
    submitted = np.zeros_like(updates)
    submitted[0, 0] = 2**32 if view.version % 2 else view.task.bound + 1
    submitted[1:] = (
        -updates[1:]
        if view.version % 3
        else view.generator.integers(-(2**63), 2**63, updates[1:].shape, dtype=np.int64)
    )
    return submitted


Data = tuple[NDArray[np.float32], NDArray[np.int64]]


@pytest.fixture
def owners() -> dict[str, Data]:
    data = load("digits")
    parts = np.array_split(np.random.default_rng(SEED).permutation(300), OWNERS)
    return {f"owner-{n}": (data.train_x[part], data.train_y[part]) for n, part in enumerate(parts)}


def real_owner(name: str, task: Task, data: Data) -> DataOwner:
    """A data owner as the SDK makes it; nobody is called at these addresses."""
    addresses: dict[str, Any] = {"server_a": "localhost:1", "server_b": "localhost:2"}
    own = identity(Principal.client(name))
    return DataOwner(name, task=task, data=data, identity=own, **addresses)


def test_the_models_are_the_protocols_bit_for_bit(
    owners: dict[str, Data], monkeypatch: pytest.MonkeyPatch
) -> None:
    task = Task.parse(demo_task(load("digits"), "mlp", OWNERS, rounds=ROUNDS))
    simulated: list[tuple[SimulatedRound, NDArray[np.float32]]] = []
    training = precad.simulate(
        task,
        owners,
        seed=SEED,
        path="per-client",
        attack=attack,
        attackers=BAD,
        absent=absent,
        on_round=lambda played, theta: simulated.append((played, theta)),
    )

    real = {name: real_owner(name, task, owners[name]) for name in owners}
    names = {name: ClientId(name) for name in owners}
    rate = task.privacy.record_rate
    roster = Roster({c: Enrolment(c, len(owners[name][1]), rate) for name, c in names.items()})
    shared = drawing.Draws(task, SEED)
    theta = initial_vector(task.model)
    counted: Counter[Rejection] = Counter()

    def noise(version: int, role: Role) -> Any:
        """What both have: the server's own sampler on a stream that a seed repeats."""
        return SimpleNamespace(draw=partial(drawing.Draws(task, SEED).noise, role, version))

    for version, (played, after) in enumerate(simulated):
        updates = {}
        for name, owner in real.items():
            if name not in absent(version, tuple(owners)):
                with monkeypatch.context() as patch:
                    # The one thing of a real owner that no seed reaches.
                    sample = partial(shared.sample, version, name)
                    patch.setattr(
                        "precad.client.data_owner.poisson_sample",
                        lambda count, rate, _randomness, sample=sample: sample(count, rate),
                    )
                    updates[name] = owner.update(RoundView(version, theta, Digest(bytes(32))))
        bad = np.array([updates[name] for name in BAD])
        honest = np.array([update for name, update in updates.items() if name not in BAD])
        view = View(task, version, theta.astype(np.float64), BAD, honest, shared.generator(version))
        updates |= dict(zip(BAD, attack(bad, view), strict=True))
        a, b = play_round(
            task,
            {names[name]: update for name, update in updates.items()},
            roster=roster,
            theta=theta,
            attempt=version,
            noise=partial(noise, version),
        )
        assert to_bytes(after) == to_bytes(a.theta) == to_bytes(b.theta), version
        assert a.model == model_digest(task.digest, version + 1, task.model.parameters, after)
        reasons = Counter(a.rejections.values())
        rejected = {reason.value: count for reason, count in reasons.items()}
        assert (played.accepted, played.rejected) == (len(a.valid), rejected)
        counted += reasons
        theta = a.theta
    assert training.task.digest == task.digest
    assert len(simulated) == ROUNDS >= 10
    assert to_bytes(training.theta) == to_bytes(theta)
    # It was no training without incidents, nor one without valid updates of bad clients.
    absences = counted.pop(Rejection.ABSENT)
    assert absences > ROUNDS // 2
    assert ROUNDS < counted.total() < 2 * ROUNDS
