"""The runs that `precad account` is asked about: of task files, finished runs, or numbers."""

import re
from dataclasses import asdict, replace
from pathlib import Path

from precad.accounting.adversaries import Run, sensitivity_ratio
from precad.accounting.events import ReleaseCounts, require_poisson, versions_of
from precad.accounting.exact import largest_count, record_epsilon
from precad.certify.finished_runs import FinishedRun
from precad.cli.account import AccountRequest
from precad.cli.account_tables import Named
from precad.cli.options import task_numbers
from precad.common import checks
from precad.common.errors import Misconfiguration
from precad.common.task import Task

_RECORD = ("record_rate", "client_rate", "noise_multiplier", "rounds", "delta")
# R, C, d and f: what R'/C takes.
_CLIENT = ("record_clip", "client_clip", "dimension", "fractional_bits")
_AGAIN = re.compile(r"([0-9]{1,9}):([0-9]{1,9})")


def runs_of(request: AccountRequest) -> list[Named]:
    """Return each run's name, what it is, its δ and its cap.

    Raises:
        Misconfiguration: a number is missing, out of its range or given twice.
    """
    require_poisson(request.sampling)
    tasks, folders = request.task, request.run
    counts, again = request.participations, request.again
    many = len(tasks) + len(folders)
    if request.cap is not None:
        checks.count("cap", request.cap)
    if counts and len(counts) != max(1, many):
        raise Misconfiguration(
            "participations", len(counts), f"give one for each of {max(1, many)} tasks, or none"
        )
    if many > 1 and request.cap is not None:
        raise Misconfiguration("cap", request.cap, "leave it out where there are several tasks")
    taken = _taken(counts, again, max(1, many))
    if not many:
        return [("", *_typed(request, taken[0]))]
    if folders:
        if again:
            raise Misconfiguration(
                "again",
                ", ".join(again),
                "a finished run takes its worst version for all: "
                "leave --again out, or name its task",
            )
        for name in (*_RECORD, *_CLIENT):
            value = getattr(request, name)
            if value is not None:
                option = "--" + name.replace("_", "-")
                raise Misconfiguration(name, value, f"the run says it: leave {option} out")
    found = [
        (str(path), *_of_task(request, path, count))
        for path, count in zip(tasks, taken[: len(tasks)], strict=True)
    ]
    finished = zip(folders, taken[len(tasks) :], strict=True)
    return found + [(str(folder), *_finished(folder, count)) for folder, count in finished]


def _taken(
    counts: tuple[int, ...], again: tuple[str, ...], many: int
) -> list[ReleaseCounts | None]:
    """Participations of each run by m, None where nothing was said.

    Raises:
        Misconfiguration: a text isn't of the form, or says more than there were participations.
    """
    if again and len(again) != len(counts):
        raise Misconfiguration(
            "again",
            ", ".join(again),
            "give --participations too: what was released again is part of it"
            if not counts
            else f"give one for each of {len(counts)} --participations (none for none), or none",
        )
    found: list[ReleaseCounts | None] = [None] * many
    for place, total in enumerate(counts):
        checks.count("participations", total)
        by_m = _by_m(again[place]) if again else {}
        if sum(by_m.values()) > total:
            raise Misconfiguration(
                "again", again[place], f"is of more versions than --participations {total}"
            )
        found[place] = {0: total - sum(by_m.values())} | by_m
    return found


def _by_m(text: str) -> dict[int, int]:
    """M → versions, of `1:3,2:1` or `none`."""
    found: dict[int, int] = {}
    for part in () if text.strip() == "none" else text.split(","):
        read = _AGAIN.fullmatch(part.strip())
        if read is None or not int(read[1]):
            raise Misconfiguration(
                "again",
                text,
                "give M:COUNT, both whole numbers and M at least 1, like 1:3 or 1:3,2:1",
            )
        if int(read[1]) in found:
            raise Misconfiguration("again", text, f"says M = {read[1]} twice")
        found[int(read[1])] = int(read[2])
    return found


def _of_task(
    request: AccountRequest, path: Path, taken: ReleaseCounts | None
) -> tuple[Run, float, int]:
    """What a task says."""
    if request.cover_uploads:
        raise Misconfiguration("cover_uploads", True, "the task says it: leave --cover-uploads out")
    task_numbers(asdict(request) | {"task": path}, (*_RECORD, *_CLIENT), ())
    task = Task.load(path)
    run, delta, cap = Run.of(task, counts=taken), task.privacy.delta, request.cap
    limit = task.privacy.epsilon_limit
    if cap is None and limit is not None:
        again = {m: count for m, count in (taken or {}).items() if m}
        upgraded = sum(again.values())

        def within(count: int) -> bool:
            epsilon = record_epsilon(
                record_rate=run.record_rate,
                noise_multiplier=run.noise_multiplier,
                delta=delta,
                counts={0: max(0, count - upgraded)} | again,
            )
            return epsilon <= limit

        cap = largest_count(within, run.rounds)
    return run, delta, run.rounds if cap is None else cap


def _typed(request: AccountRequest, taken: ReleaseCounts | None) -> tuple[Run, float, int]:
    """What all options by name say."""
    given = asdict(request) | {"task": None}
    # One number of the client level alone is of no use.
    wanted = any(given[name] is not None for name in _CLIENT)
    numbers = task_numbers(
        given, (*_RECORD, *_CLIENT) if wanted else _RECORD, () if wanted else _CLIENT
    )
    clips = {name: numbers.pop(name) for name in _CLIENT}
    if clips["client_clip"] is not None:
        numbers["sensitivity_ratio"] = sensitivity_ratio(**clips)
    delta = numbers.pop("delta")
    run = Run(**numbers, counts=taken, cover_uploads=request.cover_uploads)
    return run, delta, run.rounds if request.cap is None else request.cap


def _finished(folder: Path, taken: ReleaseCounts | None) -> tuple[Run, float, int]:
    """What a finished run's summary says."""
    inputs = FinishedRun.read(folder).inputs
    run = replace(
        inputs.run(inputs.rounds, None if taken is None else versions_of(taken)),
        counts=taken,
        attempts=inputs.attempts,
        projections=inputs.malicious_submission_soundness_bits,
    )
    return run if taken is not None else run.at_cap(inputs.rounds), inputs.delta, inputs.rounds
