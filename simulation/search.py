"""Trainings of several settings beside each other, for `precad simulate --try`.

All settings have the same samples and the same noise, so that what differs is theirs
alone. A round takes the gradients of all of them in one batch, and sums and Gaussian
noise stay in floating point: models differ from `simulate`'s with the same draws by
rounding (tests/simulation/test_search.py), and take a fraction of the time.
"""

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

from precad.accounting.guarantees import cap_of
from precad.client.gradients.evaluation import Applied
from precad.client.gradients.model_constructs import check_layers
from precad.client.gradients.objectives import Loss
from precad.client.gradients.record_gradients import RecordGradients
from precad.client.gradients.rehearsal import rehearse
from precad.client.gradients.torch_models import build
from precad.common.errors import Misconfiguration
from precad.common.fixed_point import RECORD_MARGIN
from precad.common.mechanism import SampledGradients
from precad.common.model import initial_vector
from precad.common.roster import most_records
from precad.common.task import Task
from precad.simulation.simulate import read_data
from precad.simulation.virtual_owners import Owners

_NUMBERS = 2**23
"""Numbers of gradients that are held at once, where one setting needs fewer."""
Uniform = NDArray[np.float64]
"""Uniform numbers from 0 to below 1."""


class Setting:
    """One task among those that are trained beside each other.

    ``owners`` are whose records they are. ``taken`` is T_i of each owner so far.
    """

    def __init__(self, task: Task, owners: Owners) -> None:
        mechanism = task.mechanism
        claims = owners.roster(task).values()
        scale = 2.0**-task.fractional_bits
        bounds = [mechanism.bound_of(claim) * scale for claim in claims]
        self.rounds = mechanism.releases
        self.bounds = torch.tensor(bounds, dtype=torch.float32)
        self.clip = mechanism.unit_clip * RECORD_MARGIN
        self.noise = 2.0**0.5 * mechanism.noise_units * scale
        self.step = mechanism.step.learning_rate / mechanism.denominator(claims)
        self.taken = np.zeros(len(bounds), np.int64)
        self._owner_rate = mechanism.owner_rate
        self._unit_rate = mechanism.unit_rate
        self._cap = cap_of(task)
        counts = [claim.records for claim in claims]
        self._owner_of = np.repeat(np.arange(len(counts)), counts)
        self._most = np.array(
            [most_records(count, self._unit_rate) for count in counts]
        )

    def sample(self, coins: Uniform, draws: Uniform) -> NDArray[np.int64]:
        """Return the records that are sampled in a round, among all owners', ``[any]``.

        ``coins`` are of the owners, ``draws`` of the records: a larger rate draws those
        of a smaller one too.
        """
        present = (coins < self._owner_rate) & (self.taken < self._cap)
        self.taken += present
        drawn = present[self._owner_of] & (draws < self._unit_rate)
        counts = np.bincount(self._owner_of[drawn], minlength=len(coins))
        # A larger sample counts as an empty one, as with real owners.
        return np.flatnonzero(drawn & (counts <= self._most)[self._owner_of])


class SideBySide:
    """Trainings of several tasks on the same owners' records, from the same seed.

    Args:
        tasks: of one model, whose records are clipped one by one, without an objective.
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
        self._seed = seed
        self._parameters = tasks[0].mechanism.parameters
        self._gradients = RecordGradients(model, loss, self._parameters)
        self._gradients.prepare(owners.stacked)
        self._inputs = owners.stacked.inputs
        wrong = self._gradients.wrong_labels(owners.stacked.targets)
        self._targets = torch.where(wrong, 0, owners.stacked.targets)
        self._wrong = wrong.flatten(1).any(dim=1) if wrong.ndim > 1 else wrong
        sizes = [len(owner.records) for owner in owners.values()]
        self._owner_of = torch.repeat_interleave(torch.tensor(sizes))
        self.settings = [Setting(task, owners) for task in tasks]
        start = initial_vector(tasks[0].model)
        self._thetas = torch.from_numpy(np.tile(start, (len(tasks), 1)))
        largest = max(
            task.mechanism.owner_rate * task.mechanism.unit_rate for task in tasks
        )
        together = largest * len(self._inputs) * len(start)
        self._together = max(1, int(_NUMBERS / together))

    def train(self) -> NDArray[np.float32]:
        """Return the model of each setting, ``[settings, d]``."""
        owners = len(self.settings[0].taken)
        records, dimension = len(self._inputs), self._thetas.shape[1]
        for version in range(max(setting.rounds for setting in self.settings)):
            generator = np.random.default_rng([self._seed, version])
            coins = generator.random(owners)
            draws = generator.random(records)
            noise = torch.from_numpy(generator.standard_normal(dimension))
            rows = {
                number: torch.from_numpy(setting.sample(coins, draws))
                for number, setting in enumerate(self.settings)
                if version < setting.rounds
            }
            numbers = list(rows)
            for start in range(0, len(numbers), self._together):
                group = numbers[start : start + self._together]
                sums = self._sums(group, [rows[number] for number in group])
                for number, total in zip(group, sums, strict=True):
                    setting = self.settings[number]
                    moved = total.double() + setting.noise * noise
                    self._thetas[number] += setting.step * moved
        return np.asarray(self._thetas.float().numpy())

    def _sums(self, group: list[int], rows: list[torch.Tensor]) -> torch.Tensor:
        """Return the sum of owners' clipped updates for each setting, ``[settings, d]``.

        ``group`` are the settings' numbers, ``rows`` the records of each.
        """
        owners = len(self.settings[0].taken)
        if not any(map(len, rows)):
            return torch.zeros(len(group), self._thetas.shape[1])
        counts = torch.tensor([len(each) for each in rows])
        places = torch.repeat_interleave(counts)
        of_record = torch.tensor(group)[places]
        sampled = torch.cat(rows)
        weights: dict[str, torch.Tensor] = {}
        start = 0
        for parameter in self._parameters:
            part = self._thetas[:, start : start + parameter.size].float()
            weights[parameter.name] = part[of_record].reshape(-1, *parameter.shape)
            start += parameter.size
        gradients = self._gradients.shared(
            weights,
            inputs=self._inputs[sampled],
            targets=self._targets[sampled],
            weights_by_record=True,
        )
        norms = torch.linalg.vector_norm(gradients, dim=1)
        unusable = self._wrong[sampled] | ~torch.isfinite(norms)
        gradients[unusable] = 0.0
        norms[unusable] = 1.0
        clips = torch.tensor([self.settings[number].clip for number in group])
        gradients *= -torch.clamp(clips[places] / norms, max=1.0)[:, None]
        updates = torch.zeros(len(group) * owners, gradients.shape[1])
        updates.index_add_(0, places * owners + self._owner_of[sampled], gradients)
        bounds = torch.cat([self.settings[number].bounds for number in group])
        lengths = torch.linalg.vector_norm(updates, dim=1)
        updates *= torch.clamp(bounds / lengths, max=1.0)[:, None]
        return updates.reshape(len(group), owners, -1).sum(dim=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What one setting learnt with one seed, as the last of ``simulate``'s rounds."""

    accuracy: float | None
    loss: float | None
    participations: int
    """T_i of the owner that was counted most often."""


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
) -> Iterator[list[Trial]]:
    """Train every task with every seed; yield each seed's trials, by task.

    Arguments are as ``simulate`` takes them; ``fits`` says which tasks are taken.

    Raises Misconfiguration: anything that ``simulate`` refuses, or there are no
    held-out records.
    """
    shares, held_out = read_data(
        tasks[0],
        None,
        data=data,
        test=test,
    )
    if held_out is None:
        raise Misconfiguration("test", None, "give records to compare settings on")
    loss = loss or functional.cross_entropy
    module = build(tasks[0].model) if model is None else model
    # Refuses a layer that can't even be copied.
    check_layers(module)
    module = copy.deepcopy(module).float()
    applied = Applied(module, tasks[0].mechanism.parameters, loss)
    for seed in seeds:
        owners = Owners(shares, clients, tasks[0], seed)
        fitted = [owners.fitted(task, rounds) for task in tasks]
        first = next(iter(owners.values()))
        if seed == seeds[0]:
            rehearse(
                module,
                loss,
                first.records,
                fitted[0],
                first.most,
            )
        training = SideBySide(
            fitted,
            owners,
            model=module,
            loss=loss,
            seed=seed,
        )
        trials = []
        thetas = training.train()
        for theta, setting in zip(thetas, training.settings, strict=True):
            evaluation = applied.evaluate(theta, held_out)
            trial = Trial(
                accuracy=evaluation.accuracy,
                loss=evaluation.loss,
                participations=int(setting.taken.max()),
            )
            trials.append(trial)
        yield trials


def fits(task: Task) -> bool:
    """Return whether a task can be trained beside others: records clipped, plainly."""
    mechanism = task.mechanism
    return (
        task.objective is None
        and isinstance(mechanism.contribution, SampledGradients)
        and mechanism.most_records_per_unit is None
        and not task.training.any_operations
    )
