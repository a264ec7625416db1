"""Running an experiment's cells: on several processes, taken up where it was broken off."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from joblib import Parallel, delayed, parallel_config

from precad.common.errors import Misconfiguration
from precad.experiments.registry import load_plugins
from precad.experiments.study.environment import environment
from precad.experiments.study.experiment import (
    EXPERIMENTS,
    Result,
    Scale,
    Settings,
    Surroundings,
)
from precad.experiments.study.kept import Kept

BACKENDS = ("loky", "ray", "dask")
PROBE_S = 5.0
"""How long the first cell is tried for the estimate."""
_PROBE_STEPS = 3
KEPT = "kept"
"""Folder in the results', see ``Surroundings.keep``."""


class _Enough(Exception):
    """The first cell has run for long enough to be judged by."""


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
    on_cell: Callable[[Result, int, int], object] = lambda _result, _done, _all: None,
) -> list[Result]:
    """Measure the cells that ``output`` lacks; each is kept as soon as it is there.

    Args:
        name: of the experiment.
        scale: see ``Scale``.
        output: folder of results.
        data: folder with data sets' files.
        device: where torch computes.
        workers: processes at a time; the results are the same for any number.
        backend: of joblib: ``loky``, processes of this machine; ``ray`` or ``dask``, a cluster's.
        plugins: files of one's own that register parts, loaded by each process.
        on_cell: told each result, how many cells are done and how many there are.

    Returns:
        All results, also those that were there before.

    Raises:
        Misconfiguration: no such experiment, or what its cells refuse.
    """
    load_plugins(plugins)
    cells = EXPERIMENTS[name].all_cells(scale)
    kept = Kept(output, name, scale)
    todo = kept.missing(cells)
    done = len(cells) - len(todo)
    around = environment(device)
    circumstances = Surroundings(data, device, output / KEPT)
    for result in _measured(name, todo, circumstances, workers, backend, plugins):
        kept.add(result, around)
        done += 1
        on_cell(result, done, len(cells))
    return kept.of(cells)


def _measured(
    name: str,
    cells: list[Settings],
    around: Surroundings,
    workers: int,
    backend: str,
    plugins: tuple[Path, ...],
) -> Iterator[Result]:
    if backend not in BACKENDS:
        raise Misconfiguration("--backend", backend, f"use one of {', '.join(BACKENDS)}")
    if workers == 1 and backend == "loky":
        for cell in cells:
            yield measure(name, cell, around)
        return
    if backend == "ray":
        from ray.util.joblib import register_ray  # noqa: PLC0415 -- an extra of its own

        register_ray()  # type: ignore[no-untyped-call]
    jobs = (
        delayed(_in_worker)(name, cell, (around.data, around.device, around.keep), plugins)
        for cell in cells
    )
    with parallel_config(backend=backend, n_jobs=workers):
        yield from Parallel(return_as="generator_unordered" if backend == "loky" else "list")(jobs)


def _in_worker(
    name: str,
    settings: Settings,
    around: tuple[Path | None, str, Path | None],
    plugins: tuple[Path, ...],
) -> Result:
    if name not in EXPERIMENTS:
        load_plugins(plugins)
    return measure(name, settings, Surroundings(*around))


def measure(name: str, cell: Settings, around: Surroundings) -> Result:
    """One cell, with one thread: how sums are split between threads would move last bits."""
    torch.set_num_threads(1)
    started = time.perf_counter()
    values = EXPERIMENTS[name].measure(cell, around)
    return Result(cell, values, time.perf_counter() - started)


def estimated_hours(
    name: str, scale: Scale, output: Path, data: Path | None, device: str = "cpu"
) -> tuple[int, float]:
    """How many cells are missing, and how long they will take one after another.

    By the cells that are there; else by the first one, of which some steps are taken. It takes for
    granted that all cost alike.
    """
    cells = EXPERIMENTS[name].all_cells(scale)
    kept = Kept(output, name, scale)
    missing, there = kept.missing(cells), kept.of(cells)
    if not missing:
        return 0, 0.0
    if there:
        seconds = sum(result.seconds for result in there) / len(there)
    else:
        seconds = _probed(name, missing[0], data, device)
    return len(missing), seconds * len(missing) / 3600


def _probed(name: str, cell: Settings, data: Path | None, device: str) -> float:
    # The first step pays for what is done once, and doesn't count.
    at: list[tuple[int, float]] = []
    found = 0.0

    def progress(done: int, of: int) -> None:
        nonlocal found
        at.append((done, time.perf_counter()))
        (first, began), (last, now) = at[0], at[-1]
        if len(at) > _PROBE_STEPS and now - began >= PROBE_S:
            found = (now - began) / (last - first) * of
            raise _Enough

    try:
        result: Any = measure(name, cell, Surroundings(data, device, progress=progress))
    except _Enough:
        return found
    return float(result.seconds)
