"""An audited training in one process, sound or broken on purpose."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

from precad.client.train import Records, as_records, build
from precad.common.enrolment import Enrolment, Roster
from precad.common.errors import Misconfiguration
from precad.common.identifiers import ClientId, Role
from precad.common.model import initial_vector
from precad.common.ring import RingVector
from precad.common.task import Task
from precad.experiments.audit.canaries import Canaries
from precad.experiments.audit.scores import Seen, scores
from precad.experiments.audit.verdict import Statement
from precad.experiments.simulation import simulate
from precad.experiments.simulation.draws import Draws

AUDITED = "owner-audited"
ASSUMED = (1.0, 1 / 16)
"""What an adversary believes of the noise: that it is as stated, or next to nothing."""


class Build(StrEnum):
    """What runs: this system, or one with a fault that an audit must find."""

    SOUND = "sound"
    HALF_NOISE = "half-noise"
    """Both servers draw noise of half the standard deviation."""
    OTHER_SILENT = "other-silent"
    """Server A adds no noise: server B takes its own off and sees the sum."""
    REDRAWN = "redrawn"
    """Every round is released eight times with fresh noise, and averaged by who looks."""
    UNCLIPPED = "unclipped"
    """Records are clipped to eight times the clip that the task states."""


_RELEASES = 8
_LOOSE = 8.0


@dataclass(frozen=True, slots=True)
class Audited:
    """What an audited training left: θ_0 to θ_T, and each server's noise by round."""

    task: Task
    models: list[NDArray[np.float64]]
    noise: dict[Role, list[RingVector]]
    denominator: float


def statements(task: Task) -> tuple[Statement, Statement]:
    """The two record-level guarantees: who sees the models, and one server that looks on."""
    privacy, rounds = task.privacy, task.training.rounds
    one = privacy.noise_multiplier
    return (
        Statement("models", privacy.record_rate, 2**0.5 * one, rounds, privacy.delta),
        Statement("one server", privacy.record_rate, one, rounds, privacy.delta),
    )


def train(
    task: Task,
    shares: dict[str, Any],
    canaries: Canaries,
    *,
    model: nn.Module | None = None,
    build_of: Build = Build.SOUND,
    seed: int | None = None,
) -> Audited:
    """Simulates the training with the canaries' owner among the others.

    Args:
        task: what is audited; its number of clients is one more than ``shares`` has.
        shares: the other owners' records by name.
        canaries: the audited owner's, who has no other records.
        model: the task's; built where its architecture is a built-in one.
        build_of: what runs.
        seed: as in ``simulate``.

    Raises:
        Misconfiguration: as in ``simulate``.
    """
    ran = _as_built(task, build_of)
    data = {**shares, AUDITED: canaries.records}
    models = [initial_vector(task.model)]
    noise: dict[Role, list[RingVector]] = {Role.SERVER_A: [], Role.SERVER_B: []}
    draws = Draws(ran, 0 if seed is None else seed)

    def sample(version: int, client: str, count: int, rate: float) -> NDArray[np.int64]:
        drawn = draws.sample(version, client, count, rate)
        return canaries.counting(drawn, 0) if client == AUDITED else drawn

    def drawn_noise(server: Role, version: int, dimension: int) -> RingVector:
        if build_of is Build.REDRAWN:
            times = [
                draws.noise(server, version * _RELEASES + again, dimension)
                for again in range(_RELEASES)
            ]
            found: RingVector = np.rint(np.mean(times, axis=0)).astype(np.int64)
        else:
            found = draws.noise(server, version, dimension)
        if build_of is Build.OTHER_SILENT and server is Role.SERVER_A:
            found = np.zeros_like(found)
        noise[server].append(found)
        return found

    simulate(
        ran,
        data,
        model,
        seed=seed,
        sampler=sample,
        noise=drawn_noise,
        on_round=lambda _, theta: models.append(theta),
    )
    return Audited(task, models, noise, denominator(task, data))


def denominator(task: Task, data: dict[str, Any]) -> float:
    """What both servers divide by, from what the owners enrol with."""
    rate = task.privacy.record_rate
    claims = [Enrolment(ClientId(name), len(as_records(of)), rate) for name, of in data.items()]
    roster = Roster({claim.client: claim for claim in claims})
    return roster.denominator(task.privacy.client_rate)


def views(
    trained: Audited, shares: dict[str, Any], canaries: Canaries, model: nn.Module | None = None
) -> dict[Statement, list[NDArray[np.float64]]]:
    """Each statement's scores, from all that its adversary may know: two ways, see ``ASSUMED``.

    Args:
        trained: the training.
        shares: the other owners' records: other clients may be the adversary's.
        canaries: theirs are the scores, ``[m] float64``.
        model: the task's.

    Raises:
        Misconfiguration: a part doesn't fit the task, or a client isn't always drawn.
    """
    task = trained.task
    if task.privacy.client_rate < 1:
        raise Misconfiguration(
            "privacy.client_rate", task.privacy.client_rate, "audits take tasks with q = 1"
        )
    known = _together(shares)
    module = build(task.model) if model is None else model
    own: tuple[list[RingVector], ...] = ([], trained.noise[Role.SERVER_B])
    return {
        statement: scores(
            Seen(trained.models, noise, statement.noise),
            canaries.records,
            known,
            task=task,
            model=module,
            loss=functional.cross_entropy,
            denominator=trained.denominator,
            assumed=ASSUMED,
        )
        for statement, noise in zip(statements(task), own, strict=True)
    }


def _as_built(task: Task, build_of: Build) -> Task:
    """The task that the broken build really runs; the statement stays the true task's."""
    values = task.model_dump(mode="json")
    if build_of is Build.HALF_NOISE:
        values["privacy"]["noise_multiplier"] /= 2
    if build_of is Build.UNCLIPPED:
        values["privacy"]["record_clip"] *= _LOOSE
        values["privacy"]["noise_multiplier"] /= _LOOSE
    return Task.parse(values)


def _together(shares: dict[str, Any]) -> Records | None:
    if not shares:
        return None
    every = [as_records(share) for share in shares.values()]
    return Records(
        torch.cat([records.inputs for records in every]),
        torch.cat([records.targets for records in every]),
    )
