"""`precad account`: what one run or several cost in privacy, against whom, by three accountants."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from precad.cli.options import Json, print_json, task_numbers
from precad.common import checks
from precad.common.errors import Misconfiguration

if TYPE_CHECKING:
    from precad.common.account.guarantees import Run

_RECORD = ("record_rate", "client_rate", "noise_multiplier", "rounds", "delta")
# R, C, d and f: what R'/C takes.
_CLIENT = ("record_clip", "client_clip", "dimension", "fractional_bits")


def account(
    *,
    task: Annotated[
        list[Path] | None,
        Option(help="The task (TOML), instead of its numbers; repeat it for all of an owner's."),
    ] = None,
    run: Annotated[
        list[Path] | None,
        Option(help="Folder of a finished run, counted as drawn in every round; may be repeated."),
    ] = None,
    record_rate: Annotated[
        float | None, Option(help="p: probability of a record being drawn in a round, 0 to 1.")
    ] = None,
    client_rate: Annotated[
        float | None, Option(help="q: probability of a client being drawn in a round, 0 to 1.")
    ] = None,
    noise_multiplier: Annotated[
        float | None, Option(help="σ: standard deviation of one server's noise over R'.")
    ] = None,
    rounds: Annotated[int | None, Option(help="T: rounds of the run.")] = None,
    delta: Annotated[float | None, Option(help="δ: above 0 and below 1, like 1e-5.")] = None,
    participations: Annotated[
        list[int] | None,
        Option(
            help="T_i: how often the client took part, from its ledger; once for each task, in "
            "order. Without it this is a plan: the 0.999 quantile of Binomial(T, q)."
        ),
    ] = None,
    cap: Annotated[
        int | None,
        Option(help="Most participations, fixed beforehand; by default the task's limit, or T."),
    ] = None,
    record_clip: Annotated[
        float | None, Option(help="R: bound on a record's gradient. Needs C, d and f too.")
    ] = None,
    client_clip: Annotated[
        float | None, Option(help="C: bound on a client's update. Needs R, d and f too.")
    ] = None,
    dimension: Annotated[
        int | None, Option(help="d: parameters of the model; R' is R + √d·2^−f + C·2^−18.")
    ] = None,
    fractional_bits: Annotated[
        int | None, Option(help="f: fractional bits of the fixed point.")
    ] = None,
    cover_uploads: Annotated[
        bool, Option("--cover-uploads", help="Undrawn clients upload too: nobody sees the coin.")
    ] = False,
    sampling: Annotated[
        str, Option(help="How records and clients are drawn; this system runs poisson.")
    ] = "poisson",
    as_json: Json = False,
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

    Several tasks or runs are those of one owner on the same records:
    each is shown, and what all cost together.

    For example:

    \b
        precad account --task task.toml
        precad account --task spring.toml --task autumn.toml \\
          --participations 40 --participations 55
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
    from precad.common.account.events import require_poisson  # noqa: PLC0415

    require_poisson(given["sampling"])
    tasks, folders = given.pop("task") or [], given.pop("run") or []
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
    taken: list[int | None] = [*counts] if counts else [None] * max(1, many)
    if not many:
        return [("", *_typed(given, None, taken[0]))]
    if folders:
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


def _typed(given: dict[str, Any], path: Path | None, taken: int | None) -> "tuple[Run, float, int]":
    """What a task, or all options by name, say."""
    from precad.common.account.guarantees import Run, sensitivity_ratio  # noqa: PLC0415
    from precad.common.account.participations import most_participations  # noqa: PLC0415

    if path is not None:
        from precad.common.task import Task  # noqa: PLC0415

        if given["cover_uploads"]:
            raise Misconfiguration(
                "cover_uploads", True, "the task says it: leave --cover-uploads out"
            )
        task_numbers(given | {"task": path}, (*_RECORD, *_CLIENT), ())
        task = Task.load(path)
        run, delta, cap = Run.of(task, participations=taken), task.privacy.delta, given["cap"]
        limit = task.privacy.epsilon_limit
        if cap is None and limit is not None:
            cap = most_participations(
                record_rate=run.record_rate,
                noise_multiplier=run.noise_multiplier,
                delta=delta,
                epsilon_limit=limit,
                ceiling=run.rounds,
            )
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
    run = Run(**numbers, participations=taken, cover_uploads=given["cover_uploads"])
    return run, delta, run.rounds if given["cap"] is None else given["cap"]


def _finished(folder: Path, taken: int | None) -> "tuple[Run, float, int]":
    """What a finished run's summary says."""
    from precad.common.certify.runs import FinishedRun  # noqa: PLC0415

    inputs = FinishedRun.read(folder).inputs
    run = replace(
        inputs.run(inputs.rounds, taken),
        attempts=inputs.attempts,
        projections=inputs.malicious_submission_soundness_bits,
    )
    return run if taken is not None else run.at_cap(inputs.rounds), inputs.delta, inputs.rounds
