"""A simulated training with canaries, and an adversary's best estimates of their coins.

Canaries are records of a consenting owner that count, or count as zero, by fair coins.
In a task made for auditing, every record counts in every round, and each round has
coins of its own. What one round shows of a record is then a mechanism by itself, and
what follows only processes it. So T rounds of one training audit the statement of one
round as T trainings would.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from types import MappingProxyType

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg import solve
from torch.nn import functional

from precad.accounting.adversaries import Adversary, Run
from precad.client.gradients.record_gradients import RecordGradients
from precad.client.gradients.torch_models import build, logistic, model_section
from precad.client.records.torch_records import Records, as_records
from precad.common import checks
from precad.common.errors import Misconfiguration
from precad.common.fixed_point import clip_record_norm, decode
from precad.common.frozen import frozen_dataclass, frozen_kw_only_dataclass
from precad.common.identifiers import Role
from precad.common.model import ModelVector, initial_vector
from precad.common.ring import RingVector
from precad.common.task import Task
from precad.simulation import simulate
from precad.simulation.rounds import Draws
from precad.simulation.virtual_owners import Owners
from research.audits import verdict

LOUD = 1.5
"""How many times as large as a record's inputs a canary's are: gradients pass usual
clips, and aren't learned."""


@frozen_dataclass
class Canaries:
    """Canaries and their coins, which are secret until the guesses are made."""

    records: Records
    """The m canaries."""
    coins: NDArray[np.bool_] = field(repr=False)
    """Whether each canary counts, ``[periods, m] bool``. Where it doesn't, its gradient
    is zero in every sample that it is drawn into, which is what neighbouring data sets
    differ in. Each row holds for a period, and all periods have equally many rounds:
    one row is for the whole training, T rows are for one round each."""

    def __len__(self) -> int:
        """Return m."""
        return len(self.records)


def coins_at(coins: NDArray[np.bool_], version: int, rounds: int) -> NDArray[np.bool_]:
    """Return the coins of one of ``rounds`` rounds, ``[m] bool``, from all periods'."""
    period = version * len(coins) // rounds
    return np.asarray(coins[period])


def loud_canaries(
    like: Records,
    *,
    count: int,
    classes: int,
    seed: int,
    loud: float = LOUD,
    periods: int = 1,
) -> Canaries:
    """Make canaries whose gradients are long and nearly at right angles to each other.

    Inputs are Gaussian; labels are drawn at random. The coins come from the same
    generator: the seed is the audit's secret until it is over, and repeats it
    afterwards.

    Args:
        like: records whose shape, types and spread the canaries take.
        count: m.
        classes: labels are below it.
        seed: of the generator.
        loud: how many times as large as the records' spread the canaries' is.
        periods: how many parts of the training have coins of their own.

    Raises Misconfiguration: inputs that aren't real numbers, or labels that aren't
    whole ones.
    """
    checks.count("canaries", count, 1)
    if not like.inputs.is_floating_point() or like.targets.is_floating_point():
        raise Misconfiguration(
            "data",
            f"{like.inputs.dtype}, {like.targets.dtype}",
            "canaries are made for inputs of real numbers with a label each",
        )
    generator = torch.Generator().manual_seed(seed)
    spread = float(like.inputs.std()) or 1.0
    shape = (count, *like.inputs.shape[1:])
    noise = torch.randn(shape, generator=generator, dtype=like.inputs.dtype)
    inputs = loud * spread * noise
    labels = torch.randint(0, classes, (count,), generator=generator)
    records = Records(inputs, labels.to(like.targets.dtype))
    coins = torch.rand(periods, count, generator=generator).numpy() < 1 / 2
    return Canaries(records, coins)


_CLASSES = 10
"""Classes of the task made for auditing."""
_PARAMETERS_A_CANARY = 8.0
"""Parameters of its model for each canary."""
_NOISE = 1.4
"""Its σ."""
_RATE = 1e-4
"""Learning rate by the number of canaries: so small that none is learned in a hundred
rounds."""
_LOUDER = 12.0
"""Loudness of its canaries: gradients pass eight times the clip, which shows what a
clip that isn't kept lets through."""
_OWNERS = 2
"""Owners beside the audited one."""
_RECORDS = 50
"""Records of each of them."""
_ROOM = 10.0
"""Client clip by the square root of the canaries: it shall hide nothing that the record
clip should have stopped."""


@frozen_kw_only_dataclass
class Designed:
    """A task and owners that were made for an audit."""

    task: Task
    """A task of σ = 1.4 at p = q = 1: a round is Gaussian, μ .71 against one server,
    .51 by the models."""
    shares: dict[str, tuple[NDArray[np.float32], NDArray[np.int64]]] = field(repr=False)
    """The other owners' inputs and labels, by name; they mean nothing."""
    canaries: Canaries = field(repr=False)
    """The audited owner's records."""
    crowding: float = 0.0
    """How closely the canaries' gradients lie, see ``AuditedStatement.plan``: canaries
    by dimensions where they point anywhere, 0 where they lie otherwise."""


def designed(canaries: int, rounds: int, seed: int) -> Designed:
    """Make the task, its owners and canaries, with coins of its own for each round.

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
    values: dict[str, object] = {
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
    inputs, labels = shares["owner-1"]
    made_canaries = loud_canaries(
        Records(torch.from_numpy(inputs), torch.from_numpy(labels)),
        count=canaries,
        classes=_CLASSES,
        seed=seed,
        loud=_LOUDER,
        periods=rounds,
    )
    return Designed(
        task=Task.parse(values),
        shares=shares,
        canaries=made_canaries,
        crowding=1 / _PARAMETERS_A_CANARY,
    )


# The training with canaries, and what its adversaries see.

AUDITED = "owner-audited"
"""Name of the canaries' owner."""
Vector = NDArray[np.float64]
_ROWS = 512
"""Records whose gradients are computed at once."""
ServerANoise = Callable[[Draws, int, int], tuple[RingVector, RingVector]]
"""Takes the draws, the version and d; returns what server A adds and what server B
learns of it, ``[d] int64`` each."""
ASSUMED = (1.0, 1 / 16)
"""What an adversary believes of the noise, as a share of what is stated: that it is as
stated, or next to nothing."""


@frozen_dataclass
class Audited:
    """What an audited training left for its adversaries to look at."""

    models: Sequence[ModelVector]
    """θ_0 to θ_T."""
    known_noise: list[RingVector]
    """What server B knows of each round's noise, ``[d] int64``. That is its own; and
    where it had a round released several times, how far server A's last noisy share is
    from their mean."""
    denominator: float
    """What both servers divide by."""


def statements(
    task: Task, periods: int
) -> tuple[verdict.AuditedStatement, verdict.AuditedStatement]:
    """Return the record-level guarantees of one of the training's ``periods``.

    The first is against who sees the models, the second against one server.
    """
    run = Run.of(task)

    def statement(name: str, adversary: Adversary) -> verdict.AuditedStatement:
        step = run.step(adversary)
        return verdict.AuditedStatement(
            name=name,
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
    """Simulate the training with the canaries' owner among the others.

    That owner has no other records.

    Args:
        made: the task, its owners and canaries.
        ran: the task that a broken build plays in the stated one's place.
        server_a_noise: a broken build's noise in place of server A's.
        seed: of the simulation.
    """
    task = made.task
    coins = made.canaries.coins
    ran = task if ran is None else ran
    data: dict[str, object] = {**made.shares, AUDITED: made.canaries.records}
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
        if client != AUDITED:
            return drawn
        counts = coins_at(coins, version, rounds)
        return drawn[counts[drawn]]

    def noise(server: Role, version: int, dimension: int) -> RingVector:
        # Server A's noise is asked for first.
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
        on_round=lambda _, theta: models.append(theta),
    )
    return Audited(models, known, denominator(task, data))


def denominator(task: Task, data: Mapping[str, object]) -> float:
    """Return what both servers divide by, from what the owners enrol with."""
    roster = Owners(data, None, task, 0).roster(task)
    return task.mechanism.denominator(roster.values())


def views(
    trained: Audited, made: Designed
) -> dict[verdict.AuditedStatement, list[Vector]]:
    """Return the canaries' scores for each statement, by what its adversary may know.

    A score is the best linear estimate of a coin, from all rounds that it holds for and
    all canaries. A better adversary would raise the bounds; none makes them false. The
    other owners may be the adversary's.

    A round's noisy sum, less the mean that the known records have, is p·Σ coin·gradient
    of the canaries, and noise. The statistic of all rounds is s = p·K·coins + noise of
    covariance σ²·K, with K the gradients' products summed over the rounds; the estimate
    is ¼p·(¼p²K + σ²)⁻¹ (s − ½p·K·1), less a constant.

    Returns:
        ``[periods, m] float64`` scores by statement, for each of ``ASSUMED``.

    Raises Misconfiguration: a part doesn't fit the task, or a client isn't always
    drawn.
    """
    task = made.task
    mechanism = task.mechanism
    canaries = made.canaries
    rounds = len(trained.models) - 1
    if mechanism.owner_rate < 1:
        raise Misconfiguration(
            "privacy.client_rate", mechanism.owner_rate, "audits take tasks with q = 1"
        )
    if len(trained.known_noise) != rounds:
        raise Misconfiguration(
            "known_noise",
            len(trained.known_noise),
            f"must be one for each of the {rounds} rounds",
        )
    periods = len(canaries.coins)
    audited = statements(task, periods)
    gradients = RecordGradients(
        build(task.model), functional.cross_entropy, mechanism.parameters
    )
    gradients.prepare(canaries.records)
    others = [as_records(share) for share in made.shares.values()]
    scores: dict[verdict.AuditedStatement, list[list[Vector]]] = {
        statement: [[] for _ in ASSUMED] for statement in audited
    }
    rate = mechanism.unit_rate
    for period in np.split(np.arange(rounds), periods):
        products, statistics = _statistics(trained, made, period, gradients, others)
        surprises = statistics - rate / 2 * products.sum(axis=1)
        for statement, surprise in zip(audited, surprises, strict=True):
            variance = (statement.noise * mechanism.unit_clip) ** 2
            for share, estimates in zip(ASSUMED, scores[statement], strict=True):
                assumed = variance * share**2 * np.eye(len(canaries))
                covariance = rate**2 / 4 * products + assumed
                estimates.append(solve(covariance, surprise, assume_a="pos"))
    return {
        statement: [np.array(estimates) for estimates in scores[statement]]
        for statement in audited
    }


def _statistics(
    trained: Audited,
    made: Designed,
    period: NDArray[np.int64],
    gradients: RecordGradients,
    others: Sequence[Records],
) -> tuple[Vector, Vector]:
    """Return K ``[m, m]`` and s ``[2, m]`` of ``views``, summed over a period's rounds.

    The first row of s is by the models, the second by one server. ``others`` are the
    other owners' records.
    """
    mechanism = made.task.mechanism
    clip = mechanism.unit_clip
    scale = trained.denominator / made.task.training.learning_rate
    count = len(made.canaries)
    products = np.zeros((count, count))
    # Who sees the models takes no noise off, a server its own.
    statistics = np.zeros((2, count))
    for version in period:
        theta = trained.models[version]
        moved = (trained.models[version + 1].astype(np.float64) - theta) * scale
        for records in others:
            for rows in _clipped(gradients, records, theta, clip):
                moved += mechanism.unit_rate * rows.sum(axis=0)
        parts = list(_clipped(gradients, made.canaries.records, theta, clip))
        canary_rows = np.concatenate(parts)
        products += canary_rows @ canary_rows.T
        statistics[0] -= canary_rows @ moved
        noise = decode(trained.known_noise[version], made.task.fractional_bits)
        statistics[1] -= canary_rows @ (moved - noise)
    return products, statistics


def _clipped(
    gradients: RecordGradients,
    records: Records,
    theta: ModelVector,
    clip: float,
) -> Iterator[Vector]:
    """Yield the clipped gradients of all records, ``[any, d] float64`` at a time."""
    named = gradients.loaded(theta)
    count = len(records)
    for start in range(0, count, _ROWS):
        numbers = np.arange(start, min(start + _ROWS, count))
        inputs, targets = records.take(numbers)
        rows = gradients.shared(named, inputs=inputs, targets=targets)
        yield clip_record_norm(rows.double().cpu().numpy(), clip)


SIGNIFICANCE = 1e-4
"""Significance of a whole audit: a sound system fails one in ten thousand, at most."""


def planned(
    made: Designed, repetitions: int, less: Mapping[str, float] = MappingProxyType({})
) -> dict[verdict.AuditedStatement, verdict.Power]:
    """Plan how many coins to guess for each statement, and what to expect of it.

    The statements share ``SIGNIFICANCE``.

    Args:
        made: the task, its owners and canaries.
        repetitions: how many trainings are judged together.
        less: how many times less noise than stated each view has, by its name; the
            number of guesses doesn't depend on it.
    """
    coins = made.canaries.coins
    audited = statements(made.task, len(coins))
    return {
        statement: statement.plan(
            canaries=coins.size,
            significance=SIGNIFICANCE / len(audited),
            repetitions=repetitions,
            less=less.get(statement.name, 1.0),
            crowding=made.crowding,
        )
        for statement in audited
    }


def audit(
    plans: dict[verdict.AuditedStatement, verdict.Power],
    trainings: Iterable[tuple[Audited, Designed]],
) -> tuple[verdict.AuditVerdict, ...]:
    """Score and judge trainings together.

    Raises Misconfiguration: one doesn't fit the plan.
    """
    as_stated: dict[verdict.AuditedStatement, list[verdict.Guesses]] = {
        statement: [] for statement in plans
    }
    as_broken: dict[verdict.AuditedStatement, list[verdict.Guesses]] = {
        statement: [] for statement in plans
    }
    for trained, made in trainings:
        coins = made.canaries.coins.ravel()
        for statement, (stated, broken) in views(trained, made).items():
            planned_guesses = verdict.guess(
                stated.ravel(), coins, plans[statement].guesses
            )
            as_stated[statement].append(planned_guesses)
            # Who believes in next to no noise guesses every coin.
            all_guesses = verdict.guess(broken.ravel(), coins, len(coins))
            as_broken[statement].append(all_guesses)
    verdicts: list[verdict.AuditVerdict] = []
    for statement, power in plans.items():
        ways = [
            verdict.pooled(as_stated[statement]),
            verdict.pooled(as_broken[statement]),
        ]
        judged = verdict.judge(statement, power, ways, SIGNIFICANCE / len(plans))
        verdicts.append(judged)
    return tuple(verdicts)
