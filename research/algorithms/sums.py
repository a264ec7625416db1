"""PRECAD and its private baselines: noisy sums of clipped gradients, by who adds the noise.

All are played by `precad.simulate`: the protocol's own samples, clips, encoding and
discrete noise. A record's ε is the same in all of them, for the same σ and
participations; what differs is whom it holds against, and how much noise the sum has
(PRECAD Table 1).
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from precad.accounting.events import poisson_gaussian
from precad.accounting.exact import epsilon_spent
from precad.client.records.torch_records import as_records
from precad.common.identifiers import Role
from precad.common.mechanism import MAX_BOUND
from precad.common.task import MAX_CLIP_RATIO, Task
from precad.simulation import SimulatedRound, simulate
from precad.simulation.rounds import Aggregate, Draws, Noise, View
from precad.simulation.virtual_owners import Matrix
from research.algorithms.learner import Learner
from research.algorithms.problem import ALGORITHMS, Problem, Trained
from research.algorithms.start import model_and_section
from research.poisoning import Scene

_MOST_FRACTIONAL_BITS = 20
_NOISE_STREAM = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums:
    """Settings of such a training; symbols as in PRECAD Table 2.

    Attributes:
        rounds: T.
        learning_rate: η.
        record_clip: R.
        client_clip: C; None where it is to do nothing.
        noise_multiplier: σ, what one record's ε needs.
        record_rate: p.
        client_rate: q.
        delta: δ.
        non_colluding: τ, of distributed DP: so many of a round's clients surely add
            their noise.
    """

    rounds: int
    learning_rate: float
    record_clip: float
    client_clip: float | None
    noise_multiplier: float
    record_rate: float
    client_rate: float
    delta: float = 1e-5
    non_colluding: int = 1

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> "Sums":
        """Those of the settings that belong here."""
        names = [field.name for field in fields(cls)]
        return cls(**{name: settings[name] for name in names if name in settings})


def task_of(problem: Problem, settings: Sums) -> Task:
    """The task; where C is to do nothing, it is longer than any sum that is likely."""
    _, section = model_and_section(problem)
    largest = max(
        len(problem.records(client)[1]) for client in range(len(problem.shares))
    )
    sample = settings.record_rate * largest
    clip = settings.client_clip
    if clip is None:
        clip = settings.record_clip * min(MAX_CLIP_RATIO, 2 * max(1.0, sample) + 10)
    return Task.parse(
        {
            "name": "experiment",
            "model": section.model_dump(mode="json"),
            "privacy": {
                "record_clip": settings.record_clip,
                "client_clip": clip,
                "noise_multiplier": settings.noise_multiplier,
                "record_rate": settings.record_rate,
                "client_rate": settings.client_rate,
                "delta": settings.delta,
            },
            "training": {
                "learning_rate": settings.learning_rate,
                "rounds": settings.rounds,
            },
            "enrolment": {
                "clients": len(problem.shares),
                "max_expected_records": 2 * max(1.0, sample),
            },
            "fractional_bits": min(
                _MOST_FRACTIONAL_BITS, math.floor(math.log2(MAX_BOUND / clip))
            ),
        }
    )


def _play(
    problem: Problem,
    settings: Sums,
    noise: Callable[[Draws], Noise] | None = None,
    aggregate: Callable[[Task, frozenset[str]], Aggregate] | None = None,
    *,
    clip_in_task: bool = True,
) -> Trained:
    """One training; noise and aggregation are the protocol's unless others are given."""
    task = task_of(
        problem, settings if clip_in_task else replace(settings, client_clip=None)
    )
    module, _ = model_and_section(problem)
    names = [f"client-{number:05d}" for number in range(len(problem.shares))]
    records = {name: problem.records(place) for place, name in enumerate(names)}
    bad = {
        names[len(names) - problem.attackers + k]: k for k in range(problem.attackers)
    }
    training = simulate(
        task,
        {
            name: as_records((torch.from_numpy(x), torch.from_numpy(y)))
            for name, (x, y) in records.items()
        },
        module,
        seed=problem.seed,
        attack=_attack(problem, settings, records, bad) if bad else None,
        attackers=list(bad) or None,
        noise=None if noise is None else noise(Draws(task, problem.seed)),
        aggregate=None if aggregate is None else aggregate(task, frozenset(bad)),
        on_round=lambda played, theta: problem.watch(
            played.number, theta.astype(np.float64)
        ),
        checkpoint=problem.checkpoint,
    )
    return Trained(
        training.theta.astype(np.float64), _epsilon(training.rounds[-1], settings)
    )


def _epsilon(last: SimulatedRound, settings: Sums) -> dict[str, float]:
    """Of the record of the client that was counted most often."""
    step = poisson_gaussian(
        rate=settings.record_rate, noise_multiplier=settings.noise_multiplier
    )
    spent = epsilon_spent(step, delta=settings.delta, counts={0: last.participations})
    return {"record": spent}


def _attack(
    problem: Problem,
    settings: Sums,
    records: dict[str, tuple[NDArray[np.float32], NDArray[np.int64]]],
    bad: dict[str, int],
) -> Callable[[Matrix, View], Matrix]:
    """The plug-in as `precad.simulate` calls it, clipped: what is too long would be rejected."""
    module, _ = model_and_section(problem)
    learner = Learner(module)
    total = sum(len(y) for _, y in records.values())
    step = settings.learning_rate / (
        settings.client_rate * settings.record_rate * total
    )
    bound = math.inf if settings.client_clip is None else settings.client_clip
    by_number = {number: records[name] for name, number in bad.items()}

    def submit(updates: Matrix, view: View) -> Matrix:
        scene = Scene(
            theta=view.theta,
            others=view.decode(view.others),
            step=step,
            bound=bound,
            learn=lambda number, rate, steps: learner.descend(
                view.theta, *by_number[number], rate, steps
            ),
            numbers=tuple(bad[name] for name in view.clients),
            generator=view.generator,
        )
        found = problem.attack.submit(view.decode(updates), scene)
        most = min(bound, view.task.privacy.most_client_clip) * (1 - 1e-6)
        return view.encode(clipped(found, most))

    return submit


def clipped(rows: NDArray[np.float64], bound: float) -> NDArray[np.float64]:
    """Updates, ``[m, d]``, those longer than C scaled to it."""
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(rows * np.minimum(1, bound / np.maximum(norms, 1e-300)))


def _nobody(_server: Role, _version: int, dimension: int) -> NDArray[np.int64]:
    return np.zeros(dimension, np.int64)


@ALGORITHMS.register("precad")
def precad(problem: Problem, settings: Mapping[str, Any]) -> Trained:
    """Each of two servers adds noise σR: the sum has √2·σR, and ε stands against one of them."""
    return _play(problem, Sums.of(settings))


@ALGORITHMS.register("central-dp")
def central_dp(problem: Problem, settings: Mapping[str, Any]) -> Trained:
    """One trusted server adds noise σR; nothing stands against itself."""

    def noise(draws: Draws) -> Noise:
        return lambda server, version, dimension: (
            draws.noise(server, version, dimension)
            if server is Role.SERVER_A
            else _nobody(server, version, dimension)
        )

    return _play(problem, Sums.of(settings), noise)


@ALGORITHMS.register("local-dp")
def local_dp(problem: Problem, settings: Mapping[str, Any]) -> Trained:
    """Each client adds noise σR to its own update: a round of m clients has √m·σR."""
    chosen = Sums.of(settings)
    return _own_noise(problem, chosen, chosen.noise_multiplier)


@ALGORITHMS.register("distributed-dp")
def distributed_dp(problem: Problem, settings: Mapping[str, Any]) -> Trained:
    """Each client adds noise σR/√τ: a round of m clients has √(m/τ)·σR.

    ε stands only while at least τ clients of a round don't collude and did add theirs.
    Secure aggregation hides single updates, so that nobody can check them: C does
    nothing.
    """
    chosen = Sums.of(settings)
    share = chosen.noise_multiplier / math.sqrt(chosen.non_colluding)
    return _own_noise(problem, chosen, share)


def _own_noise(problem: Problem, settings: Sums, multiplier: float) -> Trained:
    """Good clients add noise to their rows; then the server clips every row to C, if there is one.

    Bad clients add none (PRECAD Sec. 6.3).
    """

    def aggregate(task: Task, bad: frozenset[str]) -> Aggregate:
        deviation = multiplier * task.mechanism.noise_units / settings.noise_multiplier
        bound = math.inf
        if settings.client_clip is not None:
            bound = math.ldexp(settings.client_clip, task.fractional_bits)

        def combined(updates: Matrix, view: View) -> NDArray[np.float64]:
            generator = np.random.default_rng(
                [problem.seed, view.version, _NOISE_STREAM]
            )
            total = np.zeros(task.dimension)
            for name, row in zip(view.clients, updates, strict=True):
                noised = row.astype(np.float64)
                if name not in bad:
                    noised += generator.normal(0, deviation, len(row))
                total += clipped(noised[None], bound)[0]
            return total

        return combined

    return _play(problem, settings, lambda _: _nobody, aggregate, clip_in_task=False)
