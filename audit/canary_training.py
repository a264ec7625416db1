"""A simulated training with canaries, and an adversary's best linear estimate of each coin.

Canaries are records of a consenting owner that count, or count as zero, by fair coins.
In a task made for auditing every record counts in every round, which has coins of its
own: what one round shows of a record is a mechanism by itself, and what follows only
processes it, so that T rounds of one training audit the statement of one round as T
trainings would.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg import solve
from torch.nn import functional

from precad.accounting.adversaries import Adversary, Run
from precad.audit import verdict
from precad.client.gradients.record_gradients import RecordGradients
from precad.client.gradients.torch_models import build, logistic, model_section
from precad.client.records.torch_records import Records, as_records
from precad.common import checks
from precad.common.errors import Misconfiguration
from precad.common.fixed_point import clip_record_norm, decode
from precad.common.identifiers import Role
from precad.common.model import ModelVector, initial_vector
from precad.common.ring import RingVector
from precad.common.task import Task
from precad.simulation import simulate
from precad.simulation.rounds import Draws
from precad.simulation.virtual_owners import Owners

LOUD = 1.5
"""How many times as large as a record's inputs: gradients pass usual clips, and aren't
learned."""


@dataclass(frozen=True, slots=True)
class Canaries:
    """m records, and their coins, which are the audit's secret until the guesses are made."""

    records: Records
    coins: NDArray[np.bool_] = field(repr=False)
    """``[periods, m] bool``, whether each counts; where not, its gradient is zero in
    every sample that it is drawn into, which is what neighbouring data sets differ in.
    A row holds for one of equally many rounds: one row is for the whole training, T are
    for one round each."""

    def __len__(self) -> int:
        return len(self.records)


def coins_at(coins: NDArray[np.bool_], version: int, rounds: int) -> NDArray[np.bool_]:
    """A round's coins, ``[m] bool``, of all periods'."""
    return np.asarray(coins[version * len(coins) // rounds])


def loud_canaries(
    like: Records,
    *,
    count: int,
    classes: int,
    seed: int,
    loud: float = LOUD,
    periods: int = 1,
) -> Canaries:
    """Canaries whose gradients are long and nearly at right angles to each other.

    Inputs are Gaussian; labels are drawn at random. The coins come from the same
    generator: the seed is the audit's secret until it is over, and repeats it
    afterwards. Shape and spread are those of ``like``, the spread ``loud`` times as
    large; labels are below ``classes``. Each of the training's ``periods`` has coins of
    its own. Raises Misconfiguration: inputs that aren't real numbers, or labels that
    aren't whole ones.
    """
    checks.count("canaries", count, 1)
    if not like.inputs.is_floating_point() or like.targets.is_floating_point():
        remedy = "canaries are made for inputs of real numbers with a label each"
        raise Misconfiguration(
            "data", f"{like.inputs.dtype}, {like.targets.dtype}", remedy
        )
    generator = torch.Generator().manual_seed(seed)
    spread = float(like.inputs.std()) or 1.0
    shape = (count, *like.inputs.shape[1:])
    noise = torch.randn(shape, generator=generator, dtype=like.inputs.dtype)
    inputs = loud * spread * noise
    targets = torch.randint(0, classes, (count,), generator=generator).to(
        like.targets.dtype
    )
    coins = torch.rand(periods, count, generator=generator).numpy() < 1 / 2
    return Canaries(Records(inputs, targets), coins)


_CLASSES = 10
_PARAMETERS_A_CANARY = 8.0
_NOISE = 1.4
_RATE = 1e-4
"""Learning rate by the number of canaries: so small that none is learned in a hundred
rounds."""
_LOUDER = 12.0
"""Gradients pass eight times the clip: what a clip that isn't kept lets through."""
_OWNERS = 2
_RECORDS = 50
_ROOM = 10.0
"""Of the client clip: it shall hide nothing that the record clip should have stopped.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Designed:
    """What an audit needs."""

    task: Task
    """σ = 1.4 at p = q = 1: a round is Gaussian, μ .71 against one server, .51 by the
    models."""
    shares: dict[str, tuple[NDArray[np.float32], NDArray[np.int64]]] = field(repr=False)
    """The other owners' records, of no meaning."""
    canaries: Canaries = field(repr=False)
    """The audited owner's."""
    crowding: float = 0.0
    """See ``Statement.plan``; 0 where their gradients lie otherwise."""


def designed(canaries: int, rounds: int, seed: int) -> Designed:
    """The task, its owners and canaries, with coins of its own for each round.

    Raises Misconfiguration: more canaries than a client's clip can hold.
    """
    generator = np.random.default_rng(seed)
    features = math.ceil(_PARAMETERS_A_CANARY * canaries / _CLASSES)
    shares = {
        f"owner-{number}": (
            generator.standard_normal((_RECORDS, features), np.float32),
            generator.integers(0, _CLASSES, _RECORDS),
        )
        for number in range(1, _OWNERS + 1)
    }
    values: dict[str, Any] = {
        "name": "audit",
        "model": model_section(logistic(features, _CLASSES), architecture="logistic"),
        "privacy": {
            "record_clip": 1.0,
            "client_clip": _ROOM * math.sqrt(canaries),
            "noise_multiplier": _NOISE,
            "record_rate": 1.0,
            "client_rate": 1.0,
        },
        "training": {"learning_rate": _RATE * canaries, "rounds": rounds},
        "enrolment": {
            "clients": _OWNERS + 1,
            "max_expected_records": float(max(canaries, _RECORDS)),
        },
        "fractional_bits": 14,
    }
    like = Records(*(torch.from_numpy(part) for part in shares["owner-1"]))
    found = loud_canaries(
        like,
        count=canaries,
        classes=_CLASSES,
        seed=seed,
        loud=_LOUDER,
        periods=rounds,
    )
    return Designed(
        task=Task.parse(values),
        shares=shares,
        canaries=found,
        crowding=1 / _PARAMETERS_A_CANARY,
    )


# The training with them, and who looks on.

AUDITED = "owner-audited"
Vector = NDArray[np.float64]
_ROWS = 512
ServerANoise = Callable[[Draws, int, int], tuple[RingVector, RingVector]]
"""Version and d in; what server A adds and what server B learns of it out, ``[d]
int64`` each."""
ASSUMED = (1.0, 1 / 16)
"""What an adversary believes of the noise: that it is as stated, or next to nothing."""


@dataclass(frozen=True, slots=True)
class Audited:
    """What an audited training left: θ_0 to θ_T, and by round what server B knows of the noise.

    That is its own, ``[d] int64``; and where it had a round released several times, how
    far server A's last noisy share is from their mean.
    """

    models: Sequence[ModelVector]
    known_noise: list[RingVector]
    denominator: float


def statements(
    task: Task, periods: int
) -> tuple[verdict.AuditedStatement, verdict.AuditedStatement]:
    """The record-level guarantees of one of the training's ``periods``: models, and one server."""
    run = Run.of(task)

    def statement(family: str, adversary: Adversary) -> verdict.AuditedStatement:
        step = run.step(adversary)
        return verdict.AuditedStatement(
            name=family,
            rate=step.rate,
            noise=step.noise_multiplier,
            rounds=run.rounds // periods,
            delta=task.privacy.delta,
        )

    return (
        statement(verdict.MODELS, Adversary.CLIENTS_ONLY),
        statement(verdict.ONE_SERVER, Adversary.ONE_SERVER),
    )


def train(
    made: Designed,
    *,
    ran: Task | None = None,
    server_a_noise: ServerANoise | None = None,
    seed: int | None = None,
) -> Audited:
    """Simulate the training with the canaries' owner, who has no other records, among the others.

    A broken build plays the task ``ran``, or has a ``server_a_noise`` of its own.
    """
    task = made.task
    canaries = made.canaries
    ran = task if ran is None else ran
    data = {**made.shares, AUDITED: canaries.records}
    models = [initial_vector(task.model)]
    known: list[RingVector] = []
    draws = Draws(ran, 0 if seed is None else seed)
    rounds = task.mechanism.releases

    def sample(
        version: int,
        client: str,
        count: int,
        rate: float,
    ) -> NDArray[np.int64]:
        drawn = draws.sample(
            version=version,
            client=client,
            count=count,
            rate=rate,
        )
        counts = coins_at(canaries.coins, version, rounds)
        return drawn[counts[drawn]] if client == AUDITED else drawn

    def noise(server: Role, version: int, dimension: int) -> RingVector:
        if server is Role.SERVER_B:
            own = draws.noise(server, version, dimension)
            known[version] += own
            return own
        if server_a_noise is None:
            known.append(np.zeros(dimension, np.int64))
            return draws.noise(server, version, dimension)
        added, learnt = server_a_noise(draws, version, dimension)
        known.append(learnt)
        return added

    simulate(
        ran,
        data,
        seed=seed,
        sampler=sample,
        noise=noise,
        on_round=lambda _, t: models.append(t),
    )
    return Audited(models, known, denominator(task, data))


def denominator(task: Task, data: dict[str, Any]) -> float:
    """What both servers divide by, from what the owners enrol with."""
    roster = Owners(data, None, task, 0).roster(task)
    return task.mechanism.denominator(roster.values())


def views(
    trained: Audited, made: Designed
) -> dict[verdict.AuditedStatement, list[Vector]]:
    """Each statement's scores, from all that its adversary may know: two ways, see ``ASSUMED``.

    A score is the best linear estimate of a coin, from all rounds that it holds for and
    all canaries. A round's noisy sum, less the mean that the known records have, is p·Σ
    coin·gradient of the canaries, and noise. The statistic of all rounds is s =
    p·K·coins + noise of covariance σ²·K, with K the gradients' products summed over the
    rounds; the estimate is ¼p·(¼p²K + σ²)⁻¹ (s − ½p·K·1), less a constant. A better
    adversary would raise the bounds; none makes them false.

    Scores are ``[periods, m] float64``; the other owners may be the adversary's. Raises
    Misconfiguration: a part doesn't fit the task, or a client isn't always drawn.
    """
    task = made.task
    mechanism = task.mechanism
    canaries = made.canaries
    models = trained.models
    rounds = len(models) - 1
    if mechanism.owner_rate < 1:
        remedy = "audits take tasks with q = 1"
        raise Misconfiguration("privacy.client_rate", mechanism.owner_rate, remedy)
    if len(trained.known_noise) != rounds:
        remedy = f"must be one for each of the {rounds} rounds"
        raise Misconfiguration("known_noise", len(trained.known_noise), remedy)
    both = statements(task, len(canaries.coins))
    gradients = RecordGradients(
        build(task.model), functional.cross_entropy, mechanism.parameters
    )
    gradients.prepare(canaries.records)
    clip = mechanism.unit_clip
    rate = mechanism.unit_rate
    others = [as_records(share) for share in made.shares.values()]
    scale = trained.denominator / mechanism.step.learning_rate
    found: dict[verdict.AuditedStatement, list[list[Vector]]] = {
        of: [[] for _ in ASSUMED] for of in both
    }
    for period in np.split(np.arange(rounds), len(canaries.coins)):
        products = np.zeros((len(canaries), len(canaries)))
        # Who sees the models takes no noise off, a server its own.
        statistics = np.zeros((len(both), len(canaries)))
        for number in period:
            theta = models[number]
            moved = (models[number + 1].astype(np.float64) - theta) * scale
            for records in others:
                for rows in _clipped(gradients, records, theta, clip):
                    moved += rate * rows.sum(axis=0)
            rows = np.concatenate(
                list(_clipped(gradients, canaries.records, theta, clip))
            )
            products += rows @ rows.T
            statistics[0] -= rows @ moved
            noise = decode(trained.known_noise[number], task.fractional_bits)
            statistics[1] -= rows @ (moved - noise)
        surprises = statistics - rate / 2 * products.sum(axis=1)
        for statement, surprise in zip(both, surprises, strict=True):
            variance = (statement.noise * clip) ** 2
            for share, estimate in zip(ASSUMED, found[statement], strict=True):
                spread = rate**2 / 4 * products + variance * share**2 * np.eye(
                    len(canaries)
                )
                estimate.append(solve(spread, surprise, assume_a="pos"))
    return {of: [np.array(estimate) for estimate in found[of]] for of in both}


def _clipped(
    gradients: RecordGradients,
    records: Records,
    theta: ModelVector,
    clip: float,
) -> Iterator[Vector]:
    """Clipped gradients of all records, ``[any, d] float64`` at a time."""
    named = gradients.loaded(theta)
    for start in range(0, len(records), _ROWS):
        inputs, targets = records.take(
            np.arange(start, min(start + _ROWS, len(records)))
        )
        rows = (
            gradients.shared(named, inputs=inputs, targets=targets)
            .double()
            .cpu()
            .numpy()
        )
        yield clip_record_norm(rows, clip)


SIGNIFICANCE = 1e-4
"""Of a whole audit: a sound system fails one in ten thousand, at most."""


def planned(
    made: Designed, repetitions: int, less: Mapping[str, float] = MappingProxyType({})
) -> dict[verdict.AuditedStatement, verdict.Power]:
    """How many coins will be guessed for each statement, and what to expect of it.

    The statements share ``SIGNIFICANCE``. ``less`` says how many times less noise than
    stated each view has, by its name; the number of guesses doesn't depend on it.
    """
    coins = made.canaries.coins
    both = statements(made.task, len(coins))
    each = SIGNIFICANCE / len(both)
    crowding = made.crowding
    return {
        of: of.plan(
            canaries=coins.size,
            significance=each,
            repetitions=repetitions,
            less=less.get(of.name, 1.0),
            crowding=crowding,
        )
        for of in both
    }


def audit(
    plans: dict[verdict.AuditedStatement, verdict.Power],
    trainings: Iterable[tuple[Audited, Designed]],
) -> tuple[verdict.AuditVerdict, ...]:
    """Score and judge trainings together.

    Raises Misconfiguration: one doesn't fit the plan.
    """
    ways: dict[verdict.AuditedStatement, list[tuple[verdict.Guesses, ...]]] = {
        of: [] for of in plans
    }
    for trained, made in trainings:
        coins = made.canaries.coins.ravel()
        for statement, found in views(trained, made).items():
            as_stated, as_broken = (scores.ravel() for scores in found)
            planned_guesses = verdict.guess(as_stated, coins, plans[statement].guesses)
            ways[statement].append(
                (planned_guesses, verdict.guess(as_broken, coins, len(coins)))
            )
    together = {
        of: list(map(verdict.pooled, zip(*ways[of], strict=True))) for of in plans
    }
    each = SIGNIFICANCE / len(plans)
    return tuple(
        verdict.judge(of, power, together[of], each) for of, power in plans.items()
    )
