"""`precad account`: what one run or several cost in privacy, against whom, by three accountants."""

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from precad.cli.options import PATH, json_option, print_json, task_numbers
from precad.common import checks
from precad.common.errors import Misconfiguration

if TYPE_CHECKING:
    from precad.accounting.adversaries import Run
    from precad.accounting.events import ReleaseCounts

_RECORD = ("record_rate", "client_rate", "noise_multiplier", "rounds", "delta")
# R, C, d and f: what R'/C takes.
_CLIENT = ("record_clip", "client_clip", "dimension", "fractional_bits")


@click.command()
@click.option(
    "--task",
    type=PATH,
    multiple=True,
    help="The task (TOML), instead of its numbers; repeat it for all of an owner's.",
)
@click.option(
    "--run",
    type=PATH,
    multiple=True,
    help="Folder of a finished run, counted as drawn in every round; may be repeated.",
)
@click.option(
    "--record-rate", type=float, help="p: probability of a record being drawn in a round, 0 to 1."
)
@click.option(
    "--client-rate", type=float, help="q: probability of a client being drawn in a round, 0 to 1."
)
@click.option(
    "--noise-multiplier", type=float, help="σ: standard deviation of one server's noise over R'."
)
@click.option("--rounds", type=int, help="T: rounds of the run.")
@click.option("--delta", type=float, help="δ: above 0 and below 1, like 1e-5.")
@click.option(
    "--participations",
    type=int,
    multiple=True,
    help="T_i: how often the client took part, from its ledger; once for each task, in "
    "order. Without it this is a plan: the 0.999 quantile of Binomial(T, q).",
)
@click.option(
    "--again",
    multiple=True,
    help="Of those participations, versions that were released more than once, as the "
    "ledger has it: M:COUNT, COUNT versions of 1 + M releases; 1:3,2:1 for several M. "
    "Once for each task, in order; none for none.",
)
@click.option(
    "--cap",
    type=int,
    help="Most participations, fixed beforehand; by default the task's limit, or T.",
)
@click.option(
    "--record-clip", type=float, help="R: bound on a record's gradient. Needs C, d and f too."
)
@click.option(
    "--client-clip", type=float, help="C: bound on a client's update. Needs R, d and f too."
)
@click.option(
    "--dimension", type=int, help="d: parameters of the model; R' is R + √d·2^−f + C·2^−18."
)
@click.option("--fractional-bits", type=int, help="f: fractional bits of the fixed point.")
@click.option(
    "--cover-uploads", is_flag=True, help="Undrawn clients upload too: nobody sees the coin."
)
@click.option(
    "--sampling",
    default="poisson",
    help="How records and clients are drawn; this system runs poisson.",
)
@json_option
def account(
    task: tuple[Path, ...],
    run: tuple[Path, ...],
    record_rate: float | None,
    client_rate: float | None,
    noise_multiplier: float | None,
    rounds: int | None,
    delta: float | None,
    participations: tuple[int, ...],
    again: tuple[str, ...],
    cap: int | None,
    record_clip: float | None,
    client_clip: float | None,
    dimension: int | None,
    fractional_bits: int | None,
    cover_uploads: bool,
    sampling: str,
    as_json: bool,
) -> None:
    """What a run costs in privacy, against whom, by three accountants.

    ONE SERVER: a record, against one curious server with any other
    clients. It sees who takes part and knows its own noise: rate p,
    multiplier σ, once per participation.

    CLIENTS ONLY: a record, against other clients, both servers honest.
    They see the models, with both noises on: √2·σ.

    CLIENT LEVEL: a whole client, against anyone who sees the models,
    both servers honest: with probability q a whole step of √2·σ·R'/C,
    or rate q where uploads are covered. It needs R, C, d and f.

    Neighbours differ in one record whose gradient is zero, or in one
    client whose update is.

    EXACT is the guarantee. RDP is an upper bound found in another way,
    a cross-check. GDP-CLT is the PRECAD paper's formula, true in a limit
    only: it usually reports too small an ε.

    A version of which a release was lost and made again is one step
    with σ/√(1+m), not m more: --again takes them as precad ledger shows
    them.

    Several tasks or runs are those of one owner on the same records:
    each is shown (of more than twelve none), and what all cost together.

    For example:

    \b
        precad account --task task.toml
        precad account --task spring.toml --task autumn.toml \\
          --participations 40 --participations 55
        precad account --task task.toml --participations 40 --again 1:3
        precad account --record-rate 0.2 --client-rate 1 \\
          --noise-multiplier 2 --rounds 60 --delta 1e-5
    """  # noqa: D301 -- click reads the control character
    given = locals()
    runs = _runs(given)
    # NumPy and SciPy load here, so that `precad --help` doesn't wait for them.
    from precad.cli.account_tables import document, show  # noqa: PLC0415

    if as_json:
        print_json(document(runs), indent=2)
    else:
        show(runs)


def _runs(given: dict[str, Any]) -> "list[tuple[str, Run, float, int]]":
    """Each run's name, what it is, its δ and its cap."""
    from precad.accounting.events import require_poisson  # noqa: PLC0415

    require_poisson(given["sampling"])
    tasks, folders = given.pop("task"), given.pop("run")
    counts: list[int] = given.pop("participations") or []
    many = len(tasks) + len(folders)
    if given["cap"] is not None:
        checks.count("cap", given["cap"])
    if counts and len(counts) != max(1, many):
        raise Misconfiguration(
            "participations", len(counts), f"give one for each of {max(1, many)} tasks, or none"
        )
    if many > 1 and given["cap"] is not None:
        raise Misconfiguration("cap", given["cap"], "leave it out where there are several tasks")
    again: list[str] = given.pop("again") or []
    taken = _taken(counts, again, max(1, many))
    if not many:
        return [("", *_typed(given, None, taken[0]))]
    if folders:
        if again:
            raise Misconfiguration(
                "again",
                ", ".join(again),
                "a finished run takes its worst version for all: "
                "leave --again out, or name its task",
            )
        for name in (*_RECORD, *_CLIENT):
            if given[name] is not None:
                option = "--" + name.replace("_", "-")
                raise Misconfiguration(name, given[name], f"the run says it: leave {option} out")
    found = [
        (str(path), *_typed(given, path, count))
        for path, count in zip(tasks, taken[: len(tasks)], strict=True)
    ]
    finished = zip(folders, taken[len(tasks) :], strict=True)
    return found + [(str(folder), *_finished(folder, count)) for folder, count in finished]


def _taken(counts: list[int], again: list[str], many: int) -> "list[ReleaseCounts | None]":
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


_AGAIN = re.compile(r"([0-9]{1,9}):([0-9]{1,9})")


def _typed(
    given: dict[str, Any], path: Path | None, taken: "ReleaseCounts | None"
) -> "tuple[Run, float, int]":
    """What a task, or all options by name, say."""
    from precad.accounting.adversaries import Run, sensitivity_ratio  # noqa: PLC0415
    from precad.accounting.exact import largest_count, record_epsilon  # noqa: PLC0415

    if path is not None:
        from precad.common.task import Task  # noqa: PLC0415

        if given["cover_uploads"]:
            raise Misconfiguration(
                "cover_uploads", True, "the task says it: leave --cover-uploads out"
            )
        task_numbers(given | {"task": path}, (*_RECORD, *_CLIENT), ())
        task = Task.load(path)
        run, delta, cap = Run.of(task, counts=taken), task.privacy.delta, given["cap"]
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
    # One number of the client level alone is of no use.
    wanted = any(given[name] is not None for name in _CLIENT)
    numbers = task_numbers(
        given | {"task": None},
        (*_RECORD, *_CLIENT) if wanted else _RECORD,
        () if wanted else _CLIENT,
    )
    clips = {name: numbers.pop(name) for name in _CLIENT}
    if clips["client_clip"] is not None:
        numbers["sensitivity_ratio"] = sensitivity_ratio(**clips)
    delta = numbers.pop("delta")
    run = Run(**numbers, counts=taken, cover_uploads=given["cover_uploads"])
    return run, delta, run.rounds if given["cap"] is None else given["cap"]


def _finished(folder: Path, taken: "ReleaseCounts | None") -> "tuple[Run, float, int]":
    """What a finished run's summary says."""
    from precad.accounting.events import versions_of  # noqa: PLC0415
    from precad.certify.finished_runs import FinishedRun  # noqa: PLC0415

    inputs = FinishedRun.read(folder).inputs
    run = replace(
        inputs.run(inputs.rounds, None if taken is None else versions_of(taken)),
        counts=taken,
        attempts=inputs.attempts,
        projections=inputs.malicious_submission_soundness_bits,
    )
    return run if taken is not None else run.at_cap(inputs.rounds), inputs.delta, inputs.rounds
