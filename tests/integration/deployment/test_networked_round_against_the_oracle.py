"""The servers as processes do what `run_round` does in one process: same updates, same set, same
sum but for the noise."""

import math

import numpy as np
from tests.integration.deployment.conftest import Running
from tests.rig.rounds import no_noise, play_round

from precad.common.identifiers import ClientId, Digest, Role
from precad.common.model import ModelVector
from precad.common.ring import RingVector, clip_update
from precad.common.roster import Enrolment, Roster

COUNTED = "counted"
ROUNDS = 3


def mixed_updates(running: Running, rng: np.random.Generator) -> dict[int, RingVector]:
    """Mostly honest updates of every size, and three that don't count."""
    task = running.task
    updates: dict[int, RingVector] = {}
    for number in range(len(running.clients)):
        scale = rng.choice([1e2, 1e5, 1e7])
        total = np.trunc(scale * rng.standard_normal(task.dimension)).astype(np.int64)
        updates[number] = clip_update(total, task.bound, task.fractional_bits)
    bad = rng.permutation(len(updates))[:3].tolist()
    for number, value in zip(bad, (2**32, 2 * task.bound, -(2**63)), strict=True):
        updates[number] = np.zeros(task.dimension, dtype=np.int64)
        updates[number][int(rng.integers(task.dimension))] = value
    return updates


def units(after: ModelVector, before: ModelVector, fractional_bits: int) -> RingVector:
    """The noisy sum that moved the model, in units of the last place, as float32 keeps it."""
    moved = np.ldexp(after.astype(np.float64) - before, fractional_bits)
    return np.rint(moved).astype(np.int64)


def test_the_servers_find_the_set_and_the_sum_that_one_process_finds(
    running: Running, rng: np.random.Generator
) -> None:
    task = running.task
    names = [client.servers.client for client in running.clients]
    roster = Roster({name: Enrolment(name, 1, task.privacy.record_rate) for name in names})
    # η over the fixed denominator is 1, so that the model's steps are the sums themselves.
    assert task.training.learning_rate / roster.denominator(1.0) == 1.0
    residuals = []
    for _ in range(ROUNDS):
        updates = mixed_updates(running, rng)
        played = running.play(updates, updates[0])
        event, servers = played.event, running.clients[0].servers
        theta = running.deployment.operator(Role.SERVER_A).model(task, event.version)
        after = running.deployment.operator(Role.SERVER_A).model(task, event.version + 1)
        digests = {
            running.deployment.operator(role).model_digest(task, event.version + 1)
            for role in (Role.SERVER_A, Role.SERVER_B)
        }
        assert len(digests) == 1
        assert np.array_equal(
            servers.fetch_model(event.version + 1, Digest(digests.pop().value)), after
        )

        oracle, other = play_round(
            task,
            {names[number]: x for number, x in updates.items()},
            roster=roster,
            theta=theta,
            attempt=event.version,
            noise=no_noise,
        )
        assert (oracle.opened.model, oracle.valid) == (event.model, other.valid)
        counted = {ClientId(name) for name, how in played.outcome.items() if how == COUNTED}
        assert counted == set(oracle.valid)
        rejected = {name: how for name, how in played.outcome.items() if how != COUNTED}
        assert rejected == {c.name: reason.value for c, reason in oracle.rejections.items()}
        assert len(rejected) == 3
        plain = sum(updates[number] for number, name in enumerate(names) if name in oracle.valid)
        assert np.array_equal(oracle.noisy_sum, plain)
        residuals.append(units(after, theta, task.fractional_bits) - oracle.noisy_sum)

    noise = np.concatenate(residuals).astype(np.float64)
    deviation = task.noise_units * math.sqrt(2)
    assert np.abs(noise).max() < 12 * deviation
    assert abs(noise.mean()) < 5 * deviation / math.sqrt(noise.size)
    # Five standard errors of the variance: one server's noise alone would give half of it.
    assert abs(noise.var() / deviation**2 - 1) < 5 * math.sqrt(2 / noise.size)
    for role in (Role.SERVER_A, Role.SERVER_B):
        served = running.deployment.operator(role).status().bytes_by_link
        assert served[f"{role.value} to clients"] > 0, "one server alone serves models"
    # Fresh noise each round.
    assert len({residual.tobytes() for residual in residuals}) == ROUNDS
