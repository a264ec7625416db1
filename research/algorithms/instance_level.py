"""Instance-level training (Xie et al., Sec.

5): users who clip and noise each record's gradient.

What InsDP-FedSGD, InsDP-FedAvg and Dopamine share: of N users exactly m are drawn a
round, each takes one or more steps of DP-SGD on Poisson samples of its records, and the
server averages. Noise is each user's own, so that no server need be trusted with
gradients.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from precad.accounting.events import SampledGaussian, poisson_gaussian
from precad.accounting.exact import ExactAccountant
from precad.common import checks
from precad.common.errors import Misconfiguration
from precad.common.model import unrounded_start
from research.algorithms.learner import Learner
from research.algorithms.local_optimizer import LocalOptimizer
from research.algorithms.problem import Problem
from research.algorithms.start import model_and_section
from research.algorithms.user_level import Users, shortened
from research.checkpoint import Checkpoint

RECORDS_AT_ONCE = 20_000
LONG = 10_000
"""Weights of a model that isn't copied for each record: its records are taken by
themselves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceLevel:
    """Settings; symbols as in Xie et al., Table 2.

    Attributes:
        users_per_round: m, of N users.
        rounds: T.
        noise_multiplier: σ of each user's noise over S.
        clip: S, of a record's gradient.
        batch_rate: p; each record is in a step's batch with this probability. The paper
            says without replacement, and accounts for this.
        local_rate: η.
        local_steps: V.
        delta: δ.
        optimizer: of the local steps, ``sgd`` as in the papers' algorithms, or
            ``adam``.
        momentum: of ``sgd``; none is written in the algorithms, .9 is taken in Xie's
            experiments.
        weight_decay: of ``sgd``; likewise, .0005 there.

    Raises:
        Misconfiguration: a rate isn't in (0, 1], or m or V isn't positive.
    """

    users_per_round: int
    rounds: int
    noise_multiplier: float
    clip: float
    batch_rate: float
    local_rate: float
    local_steps: int = 1
    delta: float = 1e-5
    optimizer: str = "sgd"
    momentum: float = 0.0
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        checks.rate("batch_rate", self.batch_rate)
        checks.count("users_per_round", self.users_per_round, 1)
        checks.count("local_steps", self.local_steps, 1)

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> "InstanceLevel":
        """Those of the settings that belong here."""
        names = [each.name for each in fields(cls)]
        return cls(**{name: settings[name] for name in names if name in settings})

    def local(self, participations: int) -> SampledGaussian:
        """What a user who was drawn so often shows of a record: V steps each time, noise σ·S.

        No other user's noise helps: that bounds what follows from many local steps.
        """
        return poisson_gaussian(
            rate=self.batch_rate,
            noise_multiplier=self.noise_multiplier,
            count=self.local_steps * participations,
        )

    def summed(self, participation: float = 1.0) -> SampledGaussian:
        """What the average of m users' single steps shows of a record: noise σ·√m·S.

        Args:
            participation: with which probability a user is drawn; as an atom: who knows
                a user's other records sees whether it was.
        """
        return poisson_gaussian(
            rate=self.batch_rate,
            noise_multiplier=self.noise_multiplier * self.users_per_round**0.5,
            count=self.rounds,
            participation=participation,
        )


def exact_epsilon(event: SampledGaussian, delta: float) -> float:
    """By the exact accountant; 0 where nothing was run."""
    accountant = ExactAccountant()
    accountant.compose(event)
    return accountant.epsilon(delta)


def train(
    learner: Learner,
    users: Users,
    start: torch.Tensor,
    settings: InstanceLevel,
    seeds: list[int],
    progress: Callable[[int, torch.Tensor], object] = lambda _done, _thetas: None,
    checkpoint: Checkpoint | None = None,
    on_step: Callable[[int, int], object] = lambda _done, _all: None,
) -> tuple[torch.Tensor, NDArray[np.int64]]:
    """A model for each seed, and how often each user was drawn for it.

    ``progress`` is told each round's outcome, ``on_step`` how many steps of how many
    are done; with ``checkpoint`` the state after some steps is kept, and taken up.

    Returns:
        ``[models, d]`` and ``[models, users]``.

    Raises:
        Misconfiguration: more users a round than there are.
    """
    count, m = len(users.y), settings.users_per_round
    if m > count:
        raise Misconfiguration("users_per_round", m, f"at most {count} take part")
    thetas = start.repeat(len(seeds), 1)
    generators = [np.random.default_rng(seed) for seed in seeds]
    drawn_for, first = np.zeros((len(seeds), count), np.int64), 0
    cohorts, at = (
        np.empty((len(seeds), m), np.int64),
        thetas.repeat_interleave(m, dim=0),
    )
    optimizer = LocalOptimizer(
        settings.optimizer,
        settings.local_rate,
        settings.momentum,
        settings.weight_decay,
    )
    if checkpoint is not None:
        first, thetas, kept = checkpoint.found(thetas, generators)
        if first:
            drawn_for, cohorts = kept["drawn_for"], kept["cohorts"]
            at = torch.from_numpy(kept["at"]).to(at)
            optimizer.restore(at, kept)
    steps = settings.rounds * settings.local_steps
    for done in range(first, steps):
        if done % settings.local_steps == 0:
            cohorts = np.array([g.permutation(count)[:m] for g in generators])
            for model, cohort in enumerate(cohorts):
                drawn_for[model, cohort] += 1
            at = thetas.repeat_interleave(m, dim=0)
            optimizer.begin()
        noisy = _noisy(learner, at, users, cohorts, settings, generators)
        at = optimizer.step(at, noisy)
        on_step(done + 1, steps)
        if (done + 1) % settings.local_steps == 0:
            moved = (at - thetas.repeat_interleave(m, dim=0)).reshape(len(seeds), m, -1)
            thetas = thetas + moved.mean(dim=1)
            progress((done + 1) // settings.local_steps, thetas)
        if checkpoint is not None and checkpoint.due(done + 1, steps):
            now = {"at": at.cpu().numpy(), "cohorts": cohorts, "drawn_for": drawn_for}
            checkpoint.keep(done + 1, thetas, generators, **now, **optimizer.state())
    return thetas, drawn_for


def _noisy(
    learner: Learner,
    at: torch.Tensor,
    users: Users,
    cohorts: NDArray[np.int64],
    settings: InstanceLevel,
    generators: list[np.random.Generator],
) -> torch.Tensor:
    """Each pair of a model and a user: (Σ clipped gradients + noise)/L, with L = p·|D_i| fixed."""
    own = users.weights.cpu().numpy() > 0
    most = own.shape[1]
    chosen, noise = [], []
    for cohort, generator in zip(cohorts, generators, strict=True):
        chosen.append(
            (generator.random((len(cohort), most)) < settings.batch_rate) & own[cohort]
        )
        noise.append(generator.standard_normal((len(cohort), at.shape[1])))
    pair, record = np.nonzero(np.concatenate(chosen))
    user = torch.from_numpy(cohorts.ravel()[pair])
    rows, places = torch.from_numpy(pair), torch.from_numpy(record)
    deviation = settings.noise_multiplier * settings.clip
    total = torch.from_numpy(deviation * np.concatenate(noise)).to(at)
    if at.shape[1] > LONG:
        ends = np.searchsorted(pair, np.arange(len(at) + 1)).tolist()
        parts = [torch.arange(first, last) for first, last in pairwise(ends)]
    else:
        parts = list(torch.split(torch.arange(len(rows)), RECORDS_AT_ONCE))
    for part in parts:
        # A convolution refuses to have no record at all.
        if not len(part):
            continue
        x, y, of = (
            users.x[user[part], places[part]],
            users.y[user[part], places[part]],
            rows[part],
        )
        if at.shape[1] > LONG:
            gradients = learner.of_records(at[of[0]], x, y)
        else:
            ones = torch.ones(len(part), 1, device=at.device)
            gradients = learner.gradients(at[of], x[:, None], y[:, None], ones)
        total.index_add_(0, of.to(at.device), shortened(gradients, settings.clip))
    sizes = torch.from_numpy(own.sum(axis=1)[cohorts.ravel()]).to(at)
    return total / (settings.batch_rate * sizes)[:, None]


def play(problem: Problem, settings: InstanceLevel) -> tuple[NDArray[np.float64], int]:
    """One model; bad users poison their records and keep to the protocol (Xie Sec.

    5.2).

    Returns:
        θ, ``[d]``, and how often the user was drawn that was drawn most.
    """
    module, section = model_and_section(problem)
    users = Users.of([problem.records(client) for client in range(len(problem.shares))])
    start = torch.tensor(unrounded_start(section), dtype=torch.float32)
    thetas, drawn = train(
        Learner(module),
        users,
        start,
        settings,
        [problem.seed],
        lambda done, now: problem.watch(done, now[0].double().numpy()),
        problem.checkpoint,
    )
    return thetas[0].double().numpy(), int(drawn.max())
