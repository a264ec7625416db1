"""Running an experiment's cells: on several processes, taken up where it was broken off."""

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from joblib import Parallel, delayed, parallel_config

from precad.common.errors import Misconfiguration, MissingPackage
from research.checkpoint import Checkpoint
from research.registry import load_plugins
from research.study.environment import environment
from research.study.experiment import EXPERIMENTS, Result, Scale, Settings, Surroundings
from research.study.kept import Kept, key_of

BACKENDS = ("loky", "ray", "dask")
PARTIAL = ".partial"
"""Folder beside the results, for cells that aren't whole."""
DASKS_ADDRESS = "DASK_SCHEDULER_ADDRESS"
"""The environment's variable, as Dask itself reads it."""
LOST_NODES = 5
"""So often in a row may the same cells be lost."""
EVERY: Settings = {}
"""Cells with any settings."""
KEPT = "kept"
"""Folder in the results', see ``Surroundings.keep``."""
_Measured = tuple[Result, Mapping[str, Any]]
"""With what it was measured on, which may be another node of a cluster."""


def run(
    name: str,
    scale: Scale,
    output: Path,
    *,
    data: Path | None = None,
    device: str = "cpu",
    workers: int = 1,
    backend: str = "loky",
    plugins: tuple[Path, ...] = (),
    only: Settings = EVERY,
    on_cell: Callable[[Result, int, int], object] = lambda _result, _done, _all: None,
) -> list[Result]:
    """Measure the cells that ``output`` lacks; each is kept as soon as it is there.

    A cell that was broken off goes on from the last state that was kept, where it trains.

    Args:
        name: of the experiment.
        scale: see ``Scale``.
        output: folder of results.
        data: folder with data sets' files.
        device: where torch computes.
        workers: processes at a time; the results are the same for any number.
        backend: of joblib: ``loky``, processes of this machine; ``ray`` or ``dask``, a
            cluster's.
        plugins: files of one's own that register parts, loaded by each process.
        only: cells with these settings alone.
        on_cell: told each result, how many cells are done and how many there are.

    Returns:
        All results, also those that were there before.

    Raises:
        Misconfiguration: no such experiment or cell, what its cells refuse, or no
            cluster is named.
        MissingPackage: the backend isn't installed.
    """
    load_plugins(plugins)
    chosen = cells_with(name, scale, only)
    kept = Kept(output, name, scale)
    todo = kept.missing(chosen)
    done = len(chosen) - len(todo)
    at = _Place(data, device, output)
    for result, on in _measured(name, todo, at, workers, backend, plugins):
        kept.add(result, on)
        at.checkpoint(name, result.settings, on).drop()
        done += 1
        on_cell(result, done, len(chosen))
    return kept.of(EXPERIMENTS[name].all_cells(scale))


def cells_with(name: str, scale: Scale, only: Settings) -> list[Settings]:
    """An experiment's cells that have these settings.

    Raises:
        Misconfiguration: none has.
    """
    cells = EXPERIMENTS[name].all_cells(scale)
    found = [c for c in cells if all(key in c and c[key] == only[key] for key in only)]
    if not found:
        said = ", ".join(f"{key}={value}" for key, value in only.items())
        raise Misconfiguration(
            "--only", said, f"no cell of {name} has this: see its settings"
        )
    return found


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a process finds data and computes, and where it keeps what a cell has so far."""

    data: Path | None
    device: str
    output: Path

    def around(self, name: str, cell: Settings) -> Surroundings:
        """With a file of the cell's own."""
        checkpoint = self.checkpoint(name, cell, environment(self.device))
        return Surroundings(
            self.data, self.device, self.output / KEPT, checkpoint=checkpoint
        )

    def checkpoint(
        self, name: str, cell: Settings, on: Mapping[str, Any]
    ) -> Checkpoint:
        """The cell's file there; it stays until its result is kept.

        Another version's or processor's isn't taken up: what went on there would have
        other bits.
        """
        same = {what: value for what, value in on.items() if what != "cores"}
        what = json.dumps([name, key_of(cell), same, self.device])
        file = f"{name}-{hashlib.sha256(what.encode()).hexdigest()[:16]}.npz"
        return Checkpoint(self.output / PARTIAL / file)


def _measured(
    name: str,
    cells: list[Settings],
    at: _Place,
    workers: int,
    backend: str,
    plugins: tuple[Path, ...],
) -> Iterator[_Measured]:
    if backend not in BACKENDS:
        raise Misconfiguration(
            "--backend", backend, f"use one of {', '.join(BACKENDS)}"
        )
    if workers == 1 and backend == "loky":
        for cell in cells:
            yield measure(name, cell, at.around(name, cell)), environment(at.device)
        return
    jobs = [delayed(_in_worker)(name, cell, at, plugins) for cell in cells]
    if backend != "loky":
        yield from (_by_ray if backend == "ray" else _by_dask)(jobs, workers)
        return
    with parallel_config(backend="loky", n_jobs=workers):
        yield from Parallel(return_as="generator_unordered")(jobs)


def _by_ray(jobs: list[Any], workers: int) -> Iterator[_Measured]:
    """As many cells at a time as workers; those that a lost node had are measured anew.

    Raises:
        RayError: the same cells were lost ``LOST_NODES`` times.
    """
    try:
        import ray  # noqa: PLC0415 -- an extra of its own
        from ray.exceptions import RayError  # noqa: PLC0415
        from ray.util.joblib import register_ray  # noqa: PLC0415
    except ModuleNotFoundError:
        raise MissingPackage("--backend ray", "ray", "ray") from None
    register_ray()
    if not ray.is_initialized():
        ray.init(log_to_driver=False)
    lost = 0
    while jobs:
        nodes = ray.nodes()
        room = sum(node["Resources"].get("CPU", 0) for node in nodes if node["Alive"])
        most = max(1, min(workers, int(room)))
        try:
            # After a node is lost its pool is of no use.
            with parallel_config(backend="ray", n_jobs=most), Parallel() as parallel:
                while jobs:
                    found = parallel(jobs[:most])
                    del jobs[:most]
                    lost = 0
                    yield from found
        except RayError:
            lost += 1
            if lost == LOST_NODES:
                raise


def _by_dask(jobs: list[Any], workers: int) -> Iterator[_Measured]:
    """As many cells at a time as workers; those that a lost node had its scheduler gives to others.

    Raises:
        Misconfiguration: no scheduler is named, none answers, or its workers aren't as
            needed.
        KilledWorker: a cell was lost more often than Dask allows.
    """
    try:
        from distributed import Client  # noqa: PLC0415 -- an extra of its own
    except ModuleNotFoundError:
        raise MissingPackage("--backend dask", "distributed", "dask") from None
    address = os.environ.get(DASKS_ADDRESS, "")
    if not address:
        raise Misconfiguration(
            DASKS_ADDRESS, address, "say where your cluster's scheduler is"
        )
    try:
        client = Client(address)
    except (OSError, ValueError) as error:
        raise Misconfiguration(
            DASKS_ADDRESS, address, f"no scheduler answers: {error}"
        ) from None
    with client:
        if set(client.nthreads().values()) != {1}:
            remedy = "start workers there of one thread each: dask worker --nthreads 1"
            raise Misconfiguration(DASKS_ADDRESS, address, remedy)
        # One cell a task, so that short ones too are dealt to all workers.
        with parallel_config("dask", client=client), Parallel(batch_size=1) as parallel:
            while jobs:
                yield from parallel(jobs[:workers])
                del jobs[:workers]


def _in_worker(
    name: str, settings: Settings, at: _Place, plugins: tuple[Path, ...]
) -> _Measured:
    load_plugins(plugins)
    return measure(name, settings, at.around(name, settings)), environment(at.device)


def measure(name: str, cell: Settings, around: Surroundings) -> Result:
    """One cell, with one thread: how sums are split between threads would move last bits."""
    torch.set_num_threads(1)
    started = time.perf_counter()
    values = EXPERIMENTS[name].measure(cell, around)
    return Result(cell, values, time.perf_counter() - started)
