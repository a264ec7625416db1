"""`precad.simulate`: the protocol's rounds in one process, with the arithmetic and no secrecy."""

import copy
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

from precad.client.gradients.evaluation import Applied
from precad.client.gradients.model_constructs import check_layers
from precad.client.gradients.objectives import Loss
from precad.client.gradients.rehearsal import rehearse
from precad.client.gradients.torch_models import build
from precad.client.records.columns import Columns
from precad.client.records.read_records import read_records
from precad.client.records.torch_records import Records, as_records
from precad.common.errors import Misconfiguration
from precad.common.mechanism import LocalTraining
from precad.common.model import initial_vector
from precad.common.task import Task, with_objective
from precad.common.task_schema import ObjectiveSection
from precad.simulation import rounds as playing
from precad.simulation.datasets import DataSet, load
from precad.simulation.local_training import LocallyTrained
from precad.simulation.result import SimulatedRound, SimulatedTraining
from precad.simulation.virtual_owners import Owners, PerClient, Stacked

PATHS = ("stacked", "per-client")
OnRound = Callable[[SimulatedRound, NDArray[np.float32]], object]
"""Told each round and θ after it, ``[d] float32``."""


def simulate(
    task: Task | str | Path,
    data: Any,
    model: nn.Module | None = None,
    *,
    clients: int | None = None,
    rounds: int | None = None,
    seed: int | None = None,
    path: str = "stacked",
    test: Any = None,
    columns: Columns | None = None,
    attack: playing.Attack | str | None = None,
    attackers: int | Collection[str] | None = None,
    absent: playing.Absent | None = None,
    aggregate: playing.Aggregate | None = None,
    sampler: playing.Sampler | None = None,
    cohort: playing.Cohort | None = None,
    noise: playing.Noise | None = None,
    loss: Loss | ObjectiveSection | str | None = None,
    device: str | torch.device = "cpu",
    on_round: OnRound | None = None,
    checkpoint: playing.Checkpoint | None = None,
) -> SimulatedTraining:
    """Play a whole training in one process: what it would learn, and what it would cost.

    The same task, gradients, clips, encoding, validation rule, noise of both servers, denominator,
    step and accountants as in a real run; no network, shares or keys. It protects nobody, so its
    seed may be known; no server or owner takes a seed.

    Args:
        task: the task or its file. Its number of clients becomes the data's.
        data: one data set, as a ``DataOwner`` takes it (arrays in a tuple, a torch
            Dataset, a frame, a file's path), a ``DataSet`` or its name, such as
            ``digits``, which is dealt to ``clients`` owners in equal parts; or each
            owner's own in a mapping by name, or in a list.
        model: the task's model; built where its architecture is ``logistic`` or
            ``mlp``.
        clients, rounds: n and T; the task's unless given.
        seed: repeats a simulation, with the same device and path; drawn and kept unless
            given.
        path: ``stacked``, records of many clients at once; or ``per-client``, a real
            owner's code for each, many times slower.
        test: held-out records, as ``data`` of one owner, for accuracy and loss; a named
            data set brings its own.
        columns: what a table's columns are, where the task doesn't say it or names them
            otherwise.
        attack: what bad clients submit: a function, ``flip``, ``wraparound``,
            ``oversize`` or ``garbage``.
        attackers: who is bad, by name, or how many of the last; 1 unless given with an
            attack.
        absent: who of the drawn submits nothing; nobody unless given.
        aggregate, sampler, cohort, noise: take the place of the sum, for comparison
            (noise is added all the same), Poisson sampling of records, the servers'
            coin, a server's Gaussian.
        loss: a per-record loss as in torch.nn.functional, cross-entropy unless given;
            or a record objective by its name (``dp-gaussian`` …) or as a section, in
            place of the task's.
        device: where gradients are computed; one with float64.
        on_round: told each round as it ends.
        checkpoint: keeps the state, and gives it back to the same call, which goes on
            from there to the same result, bit for bit, if the given functions keep
            nothing from round to round.

    Raises Misconfiguration: anything that a real run would refuse, a checkpoint without a seed, or
    one of the functions gave something else than its type says.
    """
    task = task if isinstance(task, Task) else Task.load(Path(task))
    data, test = _data(task, columns, data=data, test=test)
    if checkpoint is not None and seed is None:
        raise Misconfiguration(
            "seed", seed, "give one: it is what goes on from a checkpoint"
        )
    seed = playing.checked_seed(seed)
    if path not in PATHS:
        raise Misconfiguration("path", path, f"use one of {', '.join(PATHS)}")
    if isinstance(loss, str | ObjectiveSection):
        task = with_objective(task, loss)
        loss = None
    loss = loss or functional.cross_entropy
    owners = Owners(data, clients, task, seed)
    task = owners.fitted(task, rounds)
    module = build(task.model) if model is None else model
    check_layers(module)  # what can't even be copied
    module = _on(device, module)
    first = next(iter(owners.values()))
    rehearse(
        module,
        loss,
        first.records,
        task,
        first.most,
    )
    draws = playing.Draws(task, seed)
    if isinstance(attack, str):
        if attack not in playing.NAMED:
            remedy = f"use one of {', '.join(playing.NAMED)}, or a function"
            raise Misconfiguration("attack", attack, remedy)
        attack = playing.NAMED[attack]
    bad = _bad(attack, attackers, tuple(owners))
    functions = {
        "sampler": sampler,
        "cohort": cohort,
        "noise": noise,
        "aggregate": aggregate,
    }
    replaced = tuple(
        name for name, function in functions.items() if function is not None
    )
    state = playing.State(initial_vector(task.model), Counter(), [])
    what = {
        "task": task.model_dump(mode="json"),
        "seed": seed,
        "path": path,
        "device": str(device),
        "bad": sorted(bad),
        "replaced": replaced,
    }
    if checkpoint is not None:
        state = checkpoint.found_state(what, state)
    training = playing.Rounds(
        task=task,
        owners=owners,
        draws=draws,
        honest=_honest(
            task,
            owners,
            module=module,
            loss=loss,
            path=path,
        ),
        attack=attack,
        bad=bad,
        absent=absent or (lambda _version, _drawn: ()),
        aggregate=aggregate,
        sampler=sampler or draws.sample,
        cohort=cohort or draws.cohort,
        noise=noise or draws.noise,
        taken=state.taken,
    )
    applied = None if test is None else Applied(module, task.mechanism.parameters, loss)
    theta = state.theta
    history = state.history
    for version in range(len(history), task.mechanism.releases):
        started = time.perf_counter()
        theta, played = training.play(version, theta)
        found = None if applied is None else applied.evaluate(theta, test)
        shown = SimulatedRound(
            number=version + 1,
            accuracy=None if found is None else found.accuracy,
            loss=None if found is None else found.loss,
            seconds=time.perf_counter() - started,
            **played,
        )
        history.append(shown)
        if on_round is not None:
            on_round(shown, theta.copy())
        if checkpoint is not None:
            kept = playing.State(theta, state.taken, history)
            checkpoint.keep_state(what, kept, task.mechanism.releases)
    largest = max(len(each.records) for each in owners.values())
    return SimulatedTraining(
        task=task,
        seed=seed,
        path=path,
        theta=theta,
        rounds=tuple(history),
        replaced=replaced,
        attackers=len(bad),
        largest=largest,
        off_plan=task.mechanism.off_plan(owners.roster(task).values()),
    )


def _honest(
    task: Task,
    owners: Owners,
    *,
    module: nn.Module,
    loss: Loss,
    path: str,
) -> Stacked | PerClient | LocallyTrained:
    """Return what computes honest owners' updates, by the task's kind of contribution."""
    contribution = task.mechanism.contribution
    if isinstance(contribution, LocalTraining):
        return LocallyTrained(module, loss, task, contribution)
    if path == "stacked":
        return Stacked(module, loss, task, owners)
    return PerClient(module, loss, task)


def _on(device: str | torch.device, model: nn.Module) -> nn.Module:
    """A copy of the model there.

    Raises Misconfiguration: no such device, or no float64.
    """
    try:
        torch.zeros(1, dtype=torch.float64, device=device)
        return copy.deepcopy(model).float().to(device)
    except (RuntimeError, TypeError, AssertionError) as error:
        remedy = (
            f"can't be used ({str(error).splitlines()[0]}): give cpu, or a GPU with"
            " float64"
        )
        raise Misconfiguration("device", str(device), remedy) from None


def _data(
    task: Task,
    columns: Columns | None,
    *,
    data: Any,
    test: Any,
) -> tuple[Any, Any]:
    """Training and held-out records; a named data set has both."""
    if isinstance(data, str) and not Path(data).suffix:
        data = load(data)
    if isinstance(data, DataSet):
        test = (data.test_x, data.test_y) if test is None else test
        data = data.train_x, data.train_y

    def read(share: Any) -> Records:
        return as_records(read_records(share, task.data, columns))

    own = columns or Columns()
    target = own.target
    if task.data is not None:
        target = own.rename.get(task.data.target.name, task.data.target.name)
    # A mapping of columns is one table.
    if isinstance(data, Mapping) and target not in data:
        data = {name: read(share) for name, share in data.items()}
    else:
        data = [read(share) for share in data] if isinstance(data, list) else read(data)
    return data, None if test is None else read(test)


def _bad(
    attack: playing.Attack | str | None,
    attackers: int | Collection[str] | None,
    names: tuple[str, ...],
) -> frozenset[str]:
    if attack is None:
        if attackers:
            raise Misconfiguration(
                "attackers", attackers, "say what they do with attack"
            )
        return frozenset()
    if attackers is None or isinstance(attackers, int):
        count = 1 if attackers is None else attackers
        if not 0 <= count <= len(names):
            raise Misconfiguration(
                "attackers", count, f"there are {len(names)} clients"
            )
        return frozenset(names[len(names) - count :])
    strangers = sorted(set(attackers) - set(names))
    if strangers:
        raise Misconfiguration(
            "attackers", strangers[:3], "are no clients of this simulation"
        )
    return frozenset(attackers)
