"""An audited training in one process, sound or broken on purpose."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

from precad.audit.builds import LOOSE, MODELS, ONE_SERVER, RELEASES, Build
from precad.audit.canaries import Canaries
from precad.audit.scores import Sight, scores
from precad.audit.verdict import Statement
from precad.client.train import Records, as_records, build
from precad.common.enrolment import Enrolment, Roster
from precad.common.errors import Misconfiguration
from precad.common.identifiers import ClientId, Role
from precad.common.model import initial_vector
from precad.common.ring import RingVector
from precad.common.task import Task
from precad.simulation import simulate
from precad.simulation.draws import Draws

AUDITED = "owner-audited"
ASSUMED = (1.0, 1 / 16)
"""What an adversary believes of the noise: that it is as stated, or next to nothing."""


@dataclass(frozen=True, slots=True)
class Audited:
    """What an audited training left: θ_0 to θ_T, and by round what server B knows of the noise.

    That is its own, ``[d] int64``; and where it had a round released several times, how far server
    A's last noisy share is from their mean.
    """

    task: Task
    models: list[NDArray[np.float64]]
    known_noise: list[RingVector]
    denominator: float


def statements(task: Task, periods: int) -> tuple[Statement, Statement]:
    """The two record-level guarantees: who sees the models, and one server that looks on.

    Args:
        task: what is audited.
        periods: of the training, each with coins of its own; what is stated is of one.
    """
    privacy, rounds = task.privacy, task.training.rounds // periods
    one = privacy.noise_multiplier
    return (
        Statement(MODELS, privacy.record_rate, 2**0.5 * one, rounds, privacy.delta),
        Statement(ONE_SERVER, privacy.record_rate, one, rounds, privacy.delta),
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
    known: list[RingVector] = []
    draws = Draws(ran, 0 if seed is None else seed)
    rounds = task.training.rounds

    def sample(version: int, client: str, count: int, rate: float) -> NDArray[np.int64]:
        drawn = draws.sample(version, client, count, rate)
        return canaries.counting(drawn, version, rounds) if client == AUDITED else drawn

    def drawn_noise(server: Role, version: int, dimension: int) -> RingVector:
        if server is Role.SERVER_B:
            own = draws.noise(server, version, dimension)
            known[version] += own
            return own
        releases = RELEASES if build_of is Build.REDRAWN else 1
        first = version * releases
        each = [draws.noise(server, first + again, dimension) for again in range(releases)]
        known.append(each[-1] - np.rint(np.mean(each, axis=0)).astype(np.int64))
        return np.zeros_like(each[-1]) if build_of is Build.OTHER_SILENT else each[-1]

    simulate(
        ran,
        data,
        model,
        seed=seed,
        sampler=sample,
        noise=drawn_noise,
        on_round=lambda _, theta: models.append(theta),
    )
    return Audited(task, models, known, denominator(task, data))


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
        canaries: theirs are the scores, ``[periods, m] float64``.
        model: the task's.

    Raises:
        Misconfiguration: a part doesn't fit the task, or a client isn't always drawn.
    """
    task = trained.task
    if task.privacy.client_rate < 1:
        raise Misconfiguration(
            "privacy.client_rate", task.privacy.client_rate, "audits take tasks with q = 1"
        )
    both = statements(task, len(canaries.coins))
    found = scores(
        trained.models,
        [Sight([], both[0].noise), Sight(trained.known_noise, both[1].noise)],
        canaries,
        _together(shares),
        task=task,
        model=build(task.model) if model is None else model,
        loss=functional.cross_entropy,
        denominator=trained.denominator,
        assumed=ASSUMED,
    )
    return dict(zip(both, found, strict=True))


def _as_built(task: Task, build_of: Build) -> Task:
    """The task that the broken build really runs; the statement stays the true task's."""
    values = task.model_dump(mode="json")
    if build_of is Build.HALF_NOISE:
        values["privacy"]["noise_multiplier"] /= 2
    if build_of is Build.UNCLIPPED:
        values["privacy"]["record_clip"] *= LOOSE
        values["privacy"]["noise_multiplier"] /= LOOSE
    return Task.parse(values)


def _together(shares: dict[str, Any]) -> Records | None:
    if not shares:
        return None
    every = [as_records(share) for share in shares.values()]
    return Records(
        torch.cat([records.inputs for records in every]),
        torch.cat([records.targets for records in every]),
    )
