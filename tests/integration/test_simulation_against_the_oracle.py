"""What is simulated is what the servers do: the same models, bit for bit, from the same draws.

The protocol is played by `run_round`, on the role objects that the servers' processes use, with
signed shares, both servers' validation and release; the updates are a real owner's, computed by
the data owner's own class. Only the samples and the noise are given to both.
"""

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.rig.keys import identity
from tests.rig.rounds import play_round

import precad
from precad.client.data_owner import DataOwner
from precad.client.participant import RoundView
from precad.common.identifiers import ClientId, Digest, Role
from precad.common.identity.party_certificate import Principal
from precad.common.model import initial_vector, model_digest, to_bytes
from precad.common.ring import RingVector
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


class Given:
    """Noise that both have: the server's own sampler on a stream that a seed repeats."""

    def __init__(self, draws: drawing.Draws, role: Role, version: int) -> None:
        self._draw = partial(draws.noise, role, version)

    def draw(self, dimension: int) -> RingVector:
        return self._draw(dimension)


@pytest.fixture
def owners() -> dict[str, tuple[NDArray[np.float32], NDArray[np.int64]]]:
    data = load("digits")
    parts = np.array_split(np.random.default_rng(SEED).permutation(300), OWNERS)
    return {f"owner-{n}": (data.train_x[part], data.train_y[part]) for n, part in enumerate(parts)}


def test_the_models_are_the_protocols_bit_for_bit(
    owners: dict[str, tuple[NDArray[np.float32], NDArray[np.int64]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    print("seed", SEED)  # noqa: T201
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
    rejections = absences = 0
    for version, (played, after) in enumerate(simulated):
        updates = {}
        for name, owner in real.items():
            if name not in absent(version, tuple(owners)):
                with monkeypatch.context() as patch:
                    # The one thing of a real owner that no seed reaches.
                    sample = partial(given_sample, shared.sample, version, name)
                    patch.setattr("precad.client.data_owner.poisson_sample", sample)
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
            noise=lambda role, version=version: Given(drawing.Draws(task, SEED), role, version),
        )
        assert to_bytes(after) == to_bytes(a.theta) == to_bytes(b.theta), version
        assert a.model == model_digest(task.digest, version + 1, task.model.parameters, after)
        assert played.accepted == len(a.valid)
        reasons = [reason.value for reason in a.rejections.values()]
        assert played.rejected == {reason: reasons.count(reason) for reason in set(reasons)}
        absences += reasons.count("absent")
        rejections += len(reasons) - reasons.count("absent")
        theta = a.theta
    assert training.task.digest == task.digest
    assert len(simulated) == ROUNDS >= 10
    assert to_bytes(training.theta) == to_bytes(theta)
    # It was no training without incidents, nor one without valid updates of bad clients.
    assert rejections > ROUNDS
    assert absences > ROUNDS // 2
    assert rejections < 2 * ROUNDS


def given_sample(
    sample: Callable[[int, str, int, float], NDArray[np.int64]],
    version: int,
    name: str,
    count: int,
    rate: float,
    _randomness: object,
) -> NDArray[np.int64]:
    return sample(version, name, count, rate)


def real_owner(
    name: str, task: Task, data: tuple[NDArray[np.float32], NDArray[np.int64]]
) -> DataOwner:
    """A data owner as the SDK makes it; nobody is called at these addresses."""
    return DataOwner(
        name,
        task=task,
        data=data,
        server_a="localhost:1",
        server_b="localhost:2",
        identity=identity(Principal.client(name)),
    )
