"""A crowd at real servers: every honest submission counts, every bad one has its reason."""

import asyncio
import math
import os
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.rig.crowd.client import SERVERS, LoadClient
from tests.rig.crowd.crowd import Crowd, Played, Script, expected_sum
from tests.rig.crowd.misdeeds import COUNTED, HONEST, MISDEEDS, SILENT, UNINVITED, Misdeed
from tests.rig.warm import forked

import precad
from precad.cli.local_deployment import LocalDeployment
from precad.common.identifiers import ClientId, Role
from precad.common.identity.credentials import Identity
from precad.common.model import initial_vector
from precad.common.task import Task
from precad.common.wire.operator_connection import ServerStatus

pytestmark = pytest.mark.together
CLIENTS = 60
DIMENSION = 10_000
RATE = 0.8
SCRIPTS = ((), MISDEEDS, ())
"""Who misbehaves, round by round; the last round shows that nothing is left of the one before."""
STRANGERS = 2
COLLECT_S = 8.0
TRAINING_S = 120.0


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """A whole training, as clients and operators saw it."""

    task: Task
    crowd: Crowd
    rounds: list[Played]
    status: dict[Role, ServerStatus]
    models: list[NDArray[np.float64]]
    """θ_0 to θ_T."""


def misbehaving(misdeeds: tuple[Misdeed, ...]) -> Script:
    """The first drawn clients are bad, one in each way; a few that weren't drawn submit too."""

    def script(place: int, drawn: bool) -> Misdeed | None:  # noqa: FBT001 -- Script's
        if not drawn:
            # Where somebody is silent the round is open for as long as strangers may take.
            return UNINVITED if place < STRANGERS and SILENT in misdeeds else None
        return misdeeds[place] if place < len(misdeeds) else HONEST

    return script


async def play(deployment: LocalDeployment) -> tuple[Crowd, list[Played]]:
    addresses = {role: deployment.addresses[role.value] for role in SERVERS}
    keys = deployment.folder / "keys"
    clients = [
        LoadClient(deployment.task, client, addresses, Identity.load(keys / client.name))
        for client in deployment.clients
    ]
    scripts = [misbehaving(misdeeds) for misdeeds in SCRIPTS]
    async with Crowd(clients, scripts) as crowd:
        return crowd, await crowd.play(TRAINING_S)


@pytest.fixture(scope="module")
def rehearsal(
    tmp_path_factory: pytest.TempPathFactory, make_task: Callable[..., Task]
) -> Rehearsal:
    task = make_task(
        DIMENSION,
        {
            "privacy.client_clip": 64.0,
            "privacy.client_rate": RATE,
            # η over the denominator q·Σ p·|D| is 1: θ moves by the noisy sum itself.
            "training.learning_rate": CLIENTS * 0.2 * RATE,
            "training.rounds": len(SCRIPTS),
            "enrolment.clients": CLIENTS,
            "fractional_bits": 16,
            "deadlines.collect": COLLECT_S,
        },
    )
    nothing = np.zeros((1, 1), dtype=np.float32), np.zeros(1, dtype=np.int64)
    data = {ClientId(f"ward-{number:02d}"): nothing for number in range(CLIENTS)}
    with pytest.MonkeyPatch.context() as patch:
        sources = str(Path(precad.__file__).parents[1])
        patch.setenv("PYTHONPATH", os.pathsep.join([sources, os.environ.get("PYTHONPATH", "")]))
        with LocalDeployment(
            tmp_path_factory.mktemp("load"), task, data, popen=forked
        ) as deployment:
            deployment.start_servers()
            operators = {role: deployment.operator(role) for role in SERVERS}
            models = [initial_vector(task.model)]

            def keep_models() -> None:
                # Each as soon as it is made: a server offers the newest ones alone.
                server_a = operators[Role.SERVER_A]
                models.extend(server_a.model(task, one.version + 1) for one in server_a.reports())

            with ThreadPoolExecutor(max_workers=1) as beside:
                kept = beside.submit(keep_models)
                crowd, rounds = asyncio.run(play(deployment))
                kept.result(TRAINING_S)
            status = {role: operator.status() for role, operator in operators.items()}
            return Rehearsal(task, crowd, rounds, status, models)


def test_every_answer_and_every_outcome_is_what_it_must_be(rehearsal: Rehearsal) -> None:
    played = Counter(act.name for each in rehearsal.rounds for act in each.acts.values())
    assert set(played) == {act.name for act in (HONEST, UNINVITED, *MISDEEDS)}
    assert [each.misses() for each in rehearsal.rounds] == [[] for _ in rehearsal.rounds]
    for each in rehearsal.rounds:
        # Those who weren't drawn hear of the end too, and that they had no part in it.
        assert len(each.outcomes) == CLIENTS
        assert sum(1 for outcome in each.outcomes.values() if outcome) == each.drawn


def test_the_servers_hold_the_same_counts_as_the_clients(rehearsal: Rehearsal) -> None:
    outcomes = [(c.name, how) for each in rehearsal.rounds for c, how in each.outcomes.items()]
    counted = Counter(name for name, how in outcomes if how == COUNTED)
    rejected = Counter(how for _, how in outcomes if how not in {COUNTED, ""})
    assert len(rejected) == len({m.outcome for m in MISDEEDS} - {COUNTED})
    for status in rehearsal.status.values():
        assert dict(status.participations) == dict(counted)
        assert dict(status.rejected) == dict(rejected)


def test_the_model_moved_by_exactly_those_who_counted(rehearsal: Rehearsal) -> None:
    task = rehearsal.task
    deviation = math.sqrt(2) * task.noise_units
    # Each honest vector stands out of the noise in its own coordinate.
    assert task.bound > 20 * deviation
    for each, before, after in zip(
        rehearsal.rounds, rehearsal.models[:-1], rehearsal.models[1:], strict=True
    ):
        moved = np.ldexp(after - before, task.fractional_bits)
        noise = moved - expected_sum(rehearsal.crowd, each.outcomes)
        assert np.abs(noise).max() < 10 * deviation
