"""The certificate attacked: bad owners optimise against predictions that are certified.

Owners' updates are bounded and the sum is noisy, so that an expected majority of models
can be certified against K owners who do anything (docs/certificates.md). Here K owners
do what should harm the most: each round, as long as the bound allows, straight down the
margin of the certified points. An expected majority that is proved to have flipped
refutes the certificate.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from precad.accounting.adversaries import Adversary, Run
from precad.certify.group_guarantees import ExactGroups
from precad.certify.guarantee import Direction, Guarantee, Replacements
from precad.certify.intervals import (
    ConfidenceBudget,
    Intervals,
    clopper_pearson_lower,
    clopper_pearson_upper,
    simuem,
    votes_of,
)
from precad.certify.prediction import certify_predictions
from precad.client.gradients.torch_models import (
    build,
    load_vector,
    logistic,
    model_section,
)
from precad.common.errors import Misconfiguration
from precad.common.fixed_point import clip_update
from precad.common.task import Task
from precad.simulation import simulate
from precad.simulation.datasets import load
from precad.simulation.rounds import View
from precad.simulation.virtual_owners import Matrix
from research.datasets.partition import iid

SIGNIFICANCE = 1e-4
"""Of a whole audit: half for the certificates, half for what is proved against them."""
_CLASSES = 2
_OWNERS = 48
_NOISE, _ROUNDS, _LEARNING_RATE = 8.0, 4, 6.0
_MOST_LEVELS = 5
BUILDS = {"sound": 1.0, "unchecked": 64.0}
"""How many times C bad owners get away with, by what runs."""


@dataclass(frozen=True, slots=True)
class Certifiable:
    """A task small enough for hundreds of trainings.

    Attributes:
        task: p = q = 1, C = R.
        shares: owners' records by name.
        points: public inputs whose labels are certified, ``[n, features]``.
    """

    task: Task
    shares: dict[str, tuple[NDArray[np.float32], NDArray[np.int64]]] = field(repr=False)
    points: NDArray[np.float32] = field(repr=False)

    @property
    def guarantee(self) -> Guarantee:
        """Against owners that replace their updates: the exact pair."""
        return Replacements(
            ExactGroups(Run.of(self.task).event(Adversary.CLIENT_LEVEL))
        )


@dataclass(frozen=True, slots=True)
class Attacked:
    """What K owners did to the points that were certified against K.

    Attributes:
        attackers: K.
        points: how many points were certified against K and attacked together.
        label_votes: the certified label's votes at the point that fell furthest.
        other_votes: the next label's there.
        models: how many voted.
        certified_at_least: what the certificate promises of the label's expected share
            there.
        at_most: what the votes prove of that share.
        flipped: whether the votes prove that some point's majority is another label.
        refuted: whether that, or a label's share below what the certificate promises
            for K.
    """

    attackers: int
    points: int
    label_votes: int
    other_votes: int
    models: int
    certified_at_least: float
    at_most: float
    flipped: bool
    refuted: bool


@dataclass(frozen=True, slots=True)
class CertificateVerdict:
    """An audit of all certificates of a task.

    Attributes:
        radii: certified K by point, ``[n] int64``; −1 where a point abstains.
        within: attacks with as many owners as are certified against.
        beyond: with more, until a majority is proved to have flipped: how loose the
            bound is.
        least_certified: least certified K of the points that were attacked beyond.
    """

    radii: NDArray[np.int64] = field(repr=False)
    within: tuple[Attacked, ...]
    beyond: tuple[Attacked, ...]
    least_certified: int

    @property
    def refuted(self) -> bool:
        """Whether a certificate doesn't hold."""
        return any(one.refuted for one in self.within)

    @property
    def flipped_by(self) -> int | None:
        """The fewest owners that were shown to flip a majority that is certified against some."""
        shown = [one.attackers for one in (*self.within, *self.beyond) if one.flipped]
        return min(shown, default=None)

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        known, counts = np.unique(self.radii, return_counts=True)
        return {
            "points_by_certified_attackers": {
                str(radius): count
                for radius, count in zip(known.tolist(), counts.tolist(), strict=True)
            },
            "within": [asdict(one) for one in self.within],
            "beyond": [asdict(one) for one in self.beyond],
            "least_certified": self.least_certified,
            "flipped_by": self.flipped_by,
            "refuted": self.refuted,
        }


def certifiable(seed: int, owners: int = _OWNERS) -> Certifiable:
    """Zeros and ones of scikit-learn's digits, dealt to owners; logistic regression."""
    data = load("digits")
    mine, held_out = data.train_y < _CLASSES, data.test_y < _CLASSES
    x, y = data.train_x[mine], data.train_y[mine]
    shares = {
        f"owner-{number:03d}": (x[part], y[part])
        for number, part in enumerate(iid(len(y), owners, seed % 2**31), 1)
    }
    values: dict[str, Any] = {
        "name": "audit",
        "model": model_section(logistic(x.shape[1], _CLASSES), architecture="logistic"),
        "privacy": {
            "record_clip": 1.0,
            "client_clip": 1.0,
            "noise_multiplier": _NOISE,
            "record_rate": 1.0,
            "client_rate": 1.0,
        },
        "training": {"learning_rate": _LEARNING_RATE, "rounds": _ROUNDS},
        "enrolment": {"clients": owners, "max_expected_records": 2.0 * len(y) / owners},
        "fractional_bits": 18,
    }
    return Certifiable(Task.parse(values), shares, data.test_x[held_out])


def audit_certificates(
    made: Certifiable,
    models: int,
    seed: int,
    *,
    loose: float = 1.0,
    significance: float = SIGNIFICANCE,
    on_ensemble: Callable[[str], object] = lambda _: None,
) -> CertificateVerdict:
    """Certify from the votes of so many models, and attack what was certified.

    Args:
        made: the task.
        models: M, in each ensemble.
        seed: of all trainings.
        loose: how many times C bad owners get away with; 1 where norms are checked.
        significance: how likely sound certificates fail, at most.
        on_ensemble: told what is trained next.

    Raises:
        Misconfiguration: so few models certify nothing.
    """
    ensemble = _Ensembles(made, models, loose)
    on_ensemble("models without bad owners")
    counts = votes_of(
        ensemble.labels(seed, 0, np.empty(0, int), np.empty(0, int)), _CLASSES
    )
    points = len(counts)
    budget = ConfidenceBudget(
        confidence=1 - significance / 2, classes=_CLASSES, points=points, strict=True
    )
    intervals = simuem(counts, budget)
    guarantee, owners = made.guarantee, len(made.shares)
    found = certify_predictions(
        intervals, guarantee, (Direction.ADDITIONS,), limit=owners
    )
    radii = np.where(found.certified, found.radius, -1)
    levels = np.unique(radii[radii >= 1])
    if len(levels) > _MOST_LEVELS:
        levels = levels[np.linspace(0, len(levels) - 1, _MOST_LEVELS).astype(int)]
    if not len(levels):
        raise Misconfiguration(
            "models", models, "no point is certified by so few: give more"
        )
    # Of each level every point, and of each point the label and the next one, has a
    # bound.
    error = significance / 2 / (2 * len(levels) * points)

    def attack(bad: int, mine: NDArray[np.int64]) -> Attacked:
        on_ensemble(f"models with {bad} bad owners")
        after = votes_of(
            ensemble.labels(seed, bad, mine, intervals.labels[mine]), _CLASSES
        )[mine]
        return _judged(bad, mine, after, intervals, guarantee, error)

    within = tuple(attack(int(k), np.flatnonzero(radii == k)) for k in levels)
    beyond: list[Attacked] = []
    weakest = int(levels[0])
    bad = 2 * weakest
    while bad <= owners and not any(one.flipped for one in (*within, *beyond)):
        beyond.append(attack(bad, np.flatnonzero(radii == weakest)))
        bad *= 2
    return CertificateVerdict(radii, within, tuple(beyond), weakest)


def _judged(
    bad: int,
    mine: NDArray[np.int64],
    after: NDArray[np.int64],
    intervals: Intervals,
    guarantee: Guarantee,
    error: float,
) -> Attacked:
    """Of the attacked points the one that fell furthest."""
    rows, labels = np.arange(len(mine)), intervals.labels[mine]
    models = int(after[0].sum())
    own = after[rows, labels]
    others = after.copy()
    others[rows, labels] = -1
    other = others.max(axis=1)
    most = clopper_pearson_upper(own, models, error)
    flipped = most < clopper_pearson_lower(other, models, error)
    promised = guarantee.curves(bad, Direction.ADDITIONS).lower(intervals.p_a[mine])
    worst = int(np.argmin(most - promised))
    return Attacked(
        attackers=bad,
        points=len(mine),
        label_votes=int(own[worst]),
        other_votes=int(other[worst]),
        models=models,
        certified_at_least=float(promised[worst]),
        at_most=float(most[worst]),
        flipped=bool(flipped.any()),
        refuted=bool((flipped | (most < promised)).any()),
    )


class _Ensembles:
    """Trainings of one task by simulation, with bad owners or without."""

    def __init__(self, made: Certifiable, models: int, loose: float) -> None:
        self._made, self._models = made, models
        values = made.task.model_dump(mode="json")
        values["privacy"]["client_clip"] *= loose
        self._ran = Task.parse(values)
        self._module = build(made.task.model)

    def labels(
        self, seed: int, bad: int, targets: NDArray[np.int64], labels: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """What each model names the points, ``[points, models]``."""
        points = torch.from_numpy(self._made.points)
        against = _down(self._module, points[targets], torch.from_numpy(labels))
        found = []
        for number in range(self._models):
            trained = simulate(
                self._ran,
                self._made.shares,
                seed=seed * self._models + number,
                attack=self._submit(bad, against),
                attackers=len(self._made.shares),
            )
            load_vector(self._module, trained.theta)
            with torch.no_grad():
                found.append(self._module(points).argmax(dim=1).numpy())
        return np.stack(found, axis=1)

    def _submit(
        self, bad: int, against: Callable[[NDArray[np.float64]], NDArray[np.float64]]
    ) -> Callable[[Matrix, View], Matrix]:
        """All owners' rows: honest ones within the task's C, bad ones within the one that ran."""
        task, ran = self._made.task, self._ran

        def submit(updates: Matrix, view: View) -> Matrix:
            rows = [
                clip_update(row, task.mechanism.bound, task.fractional_bits)
                for row in updates[: len(updates) - bad]
            ]
            if bad:
                units = view.encode(
                    2 * ran.privacy.most_client_clip * against(view.theta)
                )
                rows += [
                    clip_update(units, ran.mechanism.bound, ran.fractional_bits)
                ] * bad
            return np.array(rows)

        return submit


def _down(
    module: nn.Module, points: torch.Tensor, labels: torch.Tensor
) -> Callable[[NDArray[np.float64]], NDArray[np.float64]]:
    """The direction in which these points' margins fall fastest at θ, ``[d]`` of length 1."""

    def direction(theta: NDArray[np.float64]) -> NDArray[np.float64]:
        load_vector(module, theta.copy())
        outputs = module(points)
        own = outputs.gather(1, labels[:, None])[:, 0]
        others = outputs.scatter(1, labels[:, None], -torch.inf).max(dim=1).values
        slopes = torch.autograd.grad((own - others).mean(), list(module.parameters()))
        flat = torch.cat([slope.flatten() for slope in slopes]).double().numpy()
        return np.asarray(-flat / max(float(np.linalg.norm(flat)), 1e-300))

    return direction
