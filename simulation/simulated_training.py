"""`precad.simulate`: the protocol's arithmetic in one process, without its secrecy."""

import copy
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from precad.client.asked_records import (
    AskedRecords,
    asked_records,
    require_unset,
)
from precad.client.gradients import (
    Applied,
    Loss,
    build,
    check_layers,
    loss_in,
    rehearse,
)
from precad.client.participation import TrainedModel
from precad.client.records import Columns, Records, records_in_task, require_others
from precad.common import (
    Floats32,
    Misconfiguration,
    ObjectiveSection,
    Task,
    initial_vector,
    with_objective,
)
from precad.simulation.datasets import DataSet, load
from precad.simulation.result import SimulatedRound, SimulatedTraining
from precad.simulation.rounds import (
    NAMED,
    Absent,
    Aggregate,
    Attack,
    Checkpoint,
    Cohort,
    Draws,
    Noise,
    Rounds,
    Sampler,
    State,
    checked_seed,
)
from precad.simulation.virtual_owners import (
    Answering,
    Owners,
    PerClient,
    Stacked,
    StackedTraining,
)

PATHS = ("stacked", "per-client")
"""Ways to compute updates: of many clients at once, or by a real owner's code."""
OnRound = Callable[[SimulatedRound, Floats32], object]
"""Takes each round and θ after it, ``[d] float32``."""


def simulate(
    task: Task | str | Path,
    data: object,
    model: nn.Module | None = None,
    *,
    clients: int | None = None,
    rounds: int | None = None,
    seed: int | None = None,
    path: str = "stacked",
    test: object = None,
    columns: Columns | None = None,
    attack: Attack | str | None = None,
    attackers: int | Collection[str] | None = None,
    absent: Absent | None = None,
    aggregate: Aggregate | None = None,
    sampler: Sampler | None = None,
    cohort: Cohort | None = None,
    noise: Noise | None = None,
    loss: Loss | ObjectiveSection | str | None = None,
    evaluated: TrainedModel | None = None,
    device: str | torch.device = "cpu",
    on_round: OnRound | None = None,
    checkpoint: Checkpoint | None = None,
) -> SimulatedTraining:
    """Play a whole training in one process: what it would learn, and would cost.

    Task, gradients, clips, encoding, validation rule, noise of both servers,
    denominator, step and accountants are the same as in a real run; there are no
    network, shares or keys. It protects nobody, so its seed may be known; no server or
    owner takes a seed.

    Args:
        task: the task or its file. Its number of clients becomes the data's.
        data: one data set, as a ``DataOwner`` takes it (arrays in a tuple, a torch
            Dataset, a frame, a file's path; a tuple's third array says whose each record
            is, where the task has a unit), a ``DataSet`` or its name, such as
            ``digits``, which is dealt to ``clients`` owners in equal parts; or each
            owner's own in a mapping by name, or in a list.
        model: the task's model; built where its architecture is ``logistic`` or
            ``mlp``.
        clients, rounds: n and T; the task's unless given.
        seed: repeats a simulation, with the same device and path; drawn and kept unless
            given.
        path: ``stacked``, records of many clients at once; or ``per-client``, a real
            owner's code for each, many times slower, and the only one where the task
            has a unit of its own, such as a patient.
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
        loss: a per-record loss as in torch.nn.functional, the task's unless given;
            or a record objective by its name (``dp-gaussian`` …) or as a section, in
            place of the task's.
        evaluated: the trained model that a question asks about; ``model`` is its module
            where its task names no architecture.
        device: where gradients are computed; one with float64.
        on_round: told each round as it ends.
        checkpoint: keeps the state, and gives it back to the same call, which goes on
            from there to the same result, bit for bit, if the given functions keep
            nothing from round to round.

    Raises Misconfiguration: anything that a real run would refuse, a checkpoint without
    a seed, or one of the functions gave something else than its type says.
    """
    if not isinstance(task, Task):
        task = Task.load(Path(task))
    data, held_out = read_data(
        task,
        columns,
        data=data,
        test=test,
        evaluated=evaluated,
        module=model,
    )
    if checkpoint is not None and seed is None:
        raise Misconfiguration(
            "seed", seed, "give one: it is what goes on from a checkpoint"
        )
    seed = checked_seed(seed)
    path = _path_of(task, path)
    if isinstance(loss, str | ObjectiveSection):
        task = with_objective(task, loss)
        loss = None
    owners = Owners(data, clients, task, seed)
    task = owners.fitted(task, rounds)
    applied = None
    if task.query is None:
        loss = loss_in(task, loss)
        module = build(task.model) if model is None else model
        # Refuses a layer that can't even be copied.
        check_layers(module)
        module = _on(device, module)
        honest = _honest(task, owners, module, loss, path)
        if held_out is not None:
            applied = Applied(module, task, loss)
    else:
        require_unset(model=None if evaluated else model, loss=loss, test=test)
        honest = Answering()
    draws = Draws(task, seed)
    attack = _named_attack(attack)
    bad = _bad(attack, attackers, tuple(owners))
    replaced = tuple(
        name
        for name, own in {
            "sampler": sampler,
            "cohort": cohort,
            "noise": noise,
            "aggregate": aggregate,
        }.items()
        if own is not None
    )
    state = State(initial_vector(task.model), Counter(), [])
    simulated = {
        "task": task.model_dump(mode="json"),
        "seed": seed,
        "path": path,
        "device": str(device),
        "bad": sorted(bad),
        "replaced": replaced,
    }
    if checkpoint is not None:
        state = checkpoint.found_state(simulated, state)
    training = Rounds(
        task=task,
        owners=owners,
        draws=draws,
        honest=honest,
        attack=attack,
        bad=bad,
        absent=absent,
        aggregate=aggregate,
        sampler=sampler or draws.sample,
        cohort=cohort or draws.cohort,
        noise=noise or draws.noise,
        taken=state.taken,
    )
    theta = state.theta
    history = state.history
    total = task.mechanism.releases
    for version in range(len(history), total):
        started = time.perf_counter()
        theta, played = training.play(version, theta)
        if applied is not None and held_out is not None:
            found = applied.evaluate(theta, held_out)
            played = replace(
                played,
                accuracy=found.accuracy,
                loss=found.loss,
                r_squared=found.r_squared,
                quality=f", {found.quality}",
            )
        played = replace(played, seconds=time.perf_counter() - started)
        history.append(played)
        if on_round is not None:
            on_round(played, theta.copy())
        if checkpoint is not None:
            state = State(theta, state.taken, history)
            checkpoint.keep_state(simulated, state, total)
    unit_counts = [owner.records.unit_count for owner in owners.values()]
    return SimulatedTraining(
        task=task,
        seed=seed,
        path=path,
        theta=theta,
        rounds=tuple(history),
        replaced=replaced,
        attackers=len(bad),
        largest=max(unit_counts),
        units=sum(unit_counts),
        off_plan=task.mechanism.off_plan(owners.roster(task).values()),
    )


def _path_of(task: Task, path: str) -> str:
    """Return the path to take: the owners' own code where units are means.

    And where owners train by themselves by operations that may raise.


    Raises Misconfiguration: ``path`` is none.
    """
    if path not in PATHS:
        raise Misconfiguration("path", path, f"use one of {', '.join(PATHS)}")
    raises = task.local is not None and task.training.any_operations
    means = task.mechanism.most_records_per_unit is not None
    return "per-client" if means or raises else path


def _honest(
    task: Task, owners: Owners, module: nn.Module, loss: Loss, path: str
) -> Stacked | PerClient | Answering:
    """Return what computes honest owners' updates on the path.

    Raises Misconfiguration: model, loss and records don't go together.
    """
    first = next(iter(owners.values()))
    assert isinstance(first.records, Records)
    rehearse(module, loss, first.records, task, first.most)
    if path == "per-client":
        return PerClient(module, loss, task)
    stacked = Stacked if task.local is None else StackedTraining
    return stacked(module, loss, task, owners)


def _on(device: str | torch.device, model: nn.Module) -> nn.Module:
    """Return a copy of the model on the device, in float32.

    Raises Misconfiguration: no such device, or it has no float64.
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


def read_data(
    task: Task,
    columns: Columns | None,
    *,
    data: object,
    test: object,
    evaluated: TrainedModel | None = None,
    module: nn.Module | None = None,
) -> tuple[object, Records | None]:
    """Return training records, as ``Owners`` takes them, and held-out ones.

    The arguments are as ``simulate`` takes them; a named data set has both.
    """
    if isinstance(data, str) and not Path(data).suffix:
        data = load(data)
    if isinstance(data, DataSet):
        if test is None:
            test = (data.test_x, data.test_y)
        data = (data.train_x, data.train_y)

    def read(share: object) -> Records | AskedRecords:
        if task.query is not None:
            return asked_records(
                share,
                task,
                columns,
                evaluated=evaluated,
                module=module,
            )
        return records_in_task(share, task, columns)

    own_columns = columns or Columns()
    target = own_columns.target
    if task.data is not None:
        target = task.data.target.name
        target = own_columns.rename.get(target, target)
    # A mapping that has the target is one table, by column; another is owners' shares.
    shares: object
    if isinstance(data, Mapping) and target not in data:
        shares = {name: read(share) for name, share in data.items()}
    elif isinstance(data, list):
        shares = [read(share) for share in data]
    else:
        shares = read(data)
    if test is None or task.query is not None:
        return shares, None
    held_out = records_in_task(test, task, columns)
    if isinstance(shares, Records):
        require_others(held_out, shares)
    return shares, held_out


def _named_attack(attack: Attack | str | None) -> Attack | None:
    """Return the attack of this name, or the one that was given.

    Raises Misconfiguration: there is none of this name.
    """
    if not isinstance(attack, str):
        return attack
    if attack not in NAMED:
        remedy = f"use one of {', '.join(NAMED)}, or a function"
        raise Misconfiguration("attack", attack, remedy)
    return NAMED[attack]


def _bad(
    attack: Attack | None,
    attackers: int | Collection[str] | None,
    names: tuple[str, ...],
) -> frozenset[str]:
    """Return the bad clients among ``names``: those given by name, or the last ones.

    Raises Misconfiguration: attackers without an attack, too many, or of a name that no
    client has.
    """
    if attack is None:
        if attackers:
            raise Misconfiguration(
                "attackers", attackers, "say what they do with attack"
            )
        return frozenset()
    if attackers is None:
        attackers = 1
    if isinstance(attackers, int):
        honest = len(names) - attackers
        if attackers < 0 or honest < 0:
            raise Misconfiguration(
                "attackers", attackers, f"there are {len(names)} clients"
            )
        return frozenset(names[honest:])
    strangers = sorted(set(attackers) - set(names))
    if strangers:
        raise Misconfiguration(
            "attackers", strangers[:3], "are no clients of this simulation"
        )
    return frozenset(attackers)
