"""Trainings of several settings beside each other, for `precad simulate --try`.

All settings have the same samples and the same noise, so that what differs is theirs
alone. A round takes the gradients of all of them in one batch, and sums and Gaussian
noise stay in floating point: models differ from `simulate`'s with the same draws by
rounding (tests/simulation/test_search.py), and take a fraction of the time.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from precad.accounting import cap_of
from precad.client.class_shares import unlike_weights
from precad.client.gradients import (
    Applied,
    Loss,
    RecordGradients,
    build,
    loss_in,
    rehearse,
)
from precad.client.measures import scores_of
from precad.client.records import Records
from precad.common import (
    RECORD_MARGIN,
    Floats,
    Floats32,
    Integers,
    Misconfiguration,
    SampledGradients,
    Task,
    initial_vector,
)
from precad.simulation.result import SimulatedTraining
from precad.simulation.simulated_training import read_data
from precad.simulation.virtual_owners import Owners

_NUMBERS = 2**23
"""Numbers of records' gradients that are held at once."""
_MOST_NUMBERS = 2**28
"""Numbers of owners' updates that are held at once, of all settings."""


class Trial(NamedTuple):
    """What one setting learnt with one seed."""

    scores: dict[str, float]
    """Of the held-out records: ``scores_of`` the last model, and its ``loss``."""
    participations: int
    """T_i of the owner that took part most often."""
    unlike: str | None = None
    """Which class of the held-out records is far rarer than it is weighed, if any."""


class SideBySide:
    """Trainings of several tasks on the same owners' records, from the same seed.

    Args:
        tasks: of one model, as ``fits`` takes them.
        owners: whose records they are.
        model: what is trained, on the CPU.
        loss: of one record.
        seed: decides samples and noise.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        owners: Owners,
        *,
        model: nn.Module,
        loss: Loss,
        seed: int,
    ) -> None:
        """Take the tasks' numbers; every model is at its task's start."""
        self._seed = seed
        self._records = owners.stacked
        self._gradients = RecordGradients(
            model,
            loss,
            tasks[0].mechanism.parameters,
            class_weights=tasks[0].training.class_weights,
        )
        self._gradients.prepare(self._records)
        counts = [len(owner.records) for owner in owners.values()]
        self._owner_of = np.repeat(np.arange(len(counts)), counts)
        settings = [_numbers(task, owners) for task in tasks]
        self._numbers = {
            name: np.array([numbers[name] for numbers in settings])
            for name in settings[0]
        }
        self._thetas = np.tile(initial_vector(tasks[0].model), (len(tasks), 1))
        self.taken = np.zeros((len(tasks), len(counts)), np.int64)
        """T_i of each owner so far, ``[settings, owners]``."""

    @np.errstate(over="ignore", invalid="ignore")  # steps that lead to no number
    def train(self) -> Floats32:
        """Return the model of each setting, ``[settings, d]``."""
        numbers = self._numbers
        for version in range(int(numbers["rounds"].max())):
            generator = np.random.default_rng([self._seed, version])
            coins = generator.random(self.taken.shape[1])
            draws = generator.random(len(self._owner_of))
            noise = generator.standard_normal(self._thetas.shape[1])
            goes_on = version < numbers["rounds"]
            present = (coins < numbers["owner_rate"]) & goes_on
            present &= self.taken < numbers["cap"]
            self.taken += present
            drawn = (draws < numbers["unit_rate"]) & present[:, self._owner_of]
            total = self._sums(*np.nonzero(drawn)) + numbers["noise"] * noise
            self._thetas += numbers["step"] * total * goes_on
        return self._thetas.astype(np.float32)

    def _sums(self, settings: Integers, rows: Integers) -> Floats:
        """Return the sum of owners' clipped updates for each setting, ``[settings, d]``.

        ``rows`` are sampled records among all owners', and ``settings`` say by which
        setting each is, in ascending order; both ``[n]``.
        """
        count, owners = self.taken.shape
        dimension = self._thetas.shape[1]
        updates = torch.zeros(count * owners, dimension)
        places = torch.from_numpy(settings * owners + self._owner_of[rows])
        chunk = max(1, _NUMBERS // dimension)
        for start in range(0, len(rows), chunk):
            part = slice(start, start + chunk)
            gradients = self._clipped(settings[part], rows[part])
            updates.index_add_(0, places[part], gradients, alpha=-1)
        bounds = torch.from_numpy(self._numbers["bounds"]).float().flatten()
        lengths = torch.linalg.vector_norm(updates, dim=1)
        updates *= torch.clamp(bounds / lengths, max=1.0)[:, None]
        return updates.reshape(count, owners, dimension).sum(dim=1).double().numpy()

    def _clipped(self, settings: Integers, rows: Integers) -> torch.Tensor:
        """Return records' gradients, each clipped to its setting's R, ``[n, d]``."""
        inputs, targets, wrong = self._gradients.taken(self._records, rows)
        gradients = self._gradients.shared(
            self._gradients.loaded_by_record(self._thetas[settings]),
            inputs=inputs,
            targets=targets,
            weights_by_record=True,
        )
        norms = torch.linalg.vector_norm(gradients, dim=1)
        unusable = wrong | ~torch.isfinite(norms)
        gradients[unusable] = 0.0
        norms[unusable] = 1.0
        clips = torch.from_numpy(self._numbers["clip"][settings, 0])
        gradients *= torch.clamp(clips / norms, max=1.0)[:, None]
        return gradients


def _numbers(task: Task, owners: Owners) -> dict[str, list[float]]:
    """Return a task's numbers by name: one each, and ``bounds`` by owner."""
    mechanism = task.mechanism
    assert mechanism.step is not None
    claims = owners.roster(task).values()
    scale = 2.0**-task.fractional_bits
    return {
        "rounds": [mechanism.releases],
        "owner_rate": [mechanism.owner_rate],
        "unit_rate": [mechanism.unit_rate],
        "cap": [cap_of(task)],
        "clip": [mechanism.unit_clip * RECORD_MARGIN],
        "noise": [2**0.5 * mechanism.noise_units * scale],
        "step": [mechanism.step.learning_rate / mechanism.denominator(claims)],
        "bounds": [mechanism.bound_of(claim) * scale for claim in claims],
    }


def search(
    tasks: Sequence[Task],
    data: object,
    model: nn.Module | None = None,
    *,
    clients: int | None = None,
    rounds: int | None = None,
    seeds: Sequence[int],
    test: object = None,
    loss: Loss | None = None,
    play: Callable[[Task, int], SimulatedTraining] | None = None,
) -> Iterator[list[Trial]]:
    """Train every task with every seed; yield each seed's trials, by task.

    Arguments are as ``simulate`` takes them. ``play`` trains a task with a seed, where
    the tasks don't fit beside each other (``fits``).

    Raises Misconfiguration: the model or the loss can't take the records, they can't be
    used otherwise, or none are held out.
    """
    first_task = tasks[0]
    shares, held_out = read_data(
        first_task,
        None,
        data=data,
        test=test,
    )
    if held_out is None:
        raise Misconfiguration(
            "test",
            None,
            "give records to compare settings on, of a task that trains: a question has"
            " none to try",
        )
    loss = loss_in(first_task, loss)
    module = build(first_task.model) if model is None else model
    applied = Applied(module, first_task, loss)
    unlike = unlike_weights(first_task, held_out.targets.numpy())
    for seed in seeds:
        if play is None:
            owners = Owners(shares, clients, first_task, seed)
            first = next(iter(owners.values()))
            assert isinstance(first.records, Records)
            rehearse(module, loss, first.records, first_task, first.most)
            training = SideBySide(
                [owners.fitted(task, rounds) for task in tasks],
                owners,
                model=module,
                loss=loss,
                seed=seed,
            )
            learnt = [
                *zip(training.train(), training.taken.max(axis=1).tolist(), strict=True)
            ]
        else:
            played = [play(task, seed) for task in tasks]
            learnt = [(each.theta, each.rounds[-1].participations) for each in played]
        trials = []
        for theta, taken in learnt:
            outputs = applied.outputs(theta, held_out.inputs)
            found = applied.evaluate(theta, held_out, outputs=outputs)
            scores = scores_of(first_task, outputs, held_out.targets)
            trials.append(Trial(scores | {"loss": found.loss}, taken, unlike))
        yield trials


def fits(tasks: Sequence[Task], clients: int) -> bool:
    """Return whether tasks can be trained beside each other, with so many owners."""
    task = tasks[0]
    mechanism = task.mechanism
    return (
        task.objective is None
        and isinstance(mechanism.contribution, SampledGradients)
        and mechanism.most_records_per_unit is None
        and len(tasks) * clients * mechanism.dimension <= _MOST_NUMBERS
    )
