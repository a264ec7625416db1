"""A data owner's commands: `precad doctor`, `join`, `predict` and `evaluate`."""

import csv
import logging
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict
from multiprocessing import parent_process
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn, TextIO

import click
import numpy as np

from precad.cli import (
    ARGUMENT,
    REQUIRED,
    AsJson,
    OfModel,
    OfRelease,
    command,
    forked,
    print_json,
    require_folder,
    require_writable,
)
from precad.client.check_before_enrolling import (
    Kind,
    covered,
    look_at_columns,
    look_at_earlier_task,
)
from precad.client.data_set_account import at_owners_of
from precad.client.owner_settings import (
    FINISHED,
    JoinSettings,
    look_at_settings,
    own_model,
    own_object,
)
from precad.client.participation import MODEL_FILE, TrainedModel
from precad.client.records import ColumnNotes, read_column, read_inputs
from precad.client.records.read_records import read_records
from precad.client.reporter import HISTORY_FILE, rounds_missed, somebody_looks
from precad.client.results import WEIGHED
from precad.common import (
    PRIVATE_MODE,
    STOP_S,
    Misconfiguration,
    StorageFailure,
    dump_stacks_on_signal,
    end_within,
    say,
    start_log,
    this_build,
    upper,
)
from precad.common.process import doing
from precad.common.terminal import warn

if TYPE_CHECKING:
    from torch import nn


@command()
def doctor(
    *,
    config: Annotated[Path, "The owner's settings file.", "--config", "-c"],
    wait: Annotated[
        float, "Seconds for the servers to answer.", click.FloatRange(min=0)
    ] = 4.0,
    as_json: AsJson,
) -> None:
    """Find mistakes before you enrol: a sentence each, in seconds.

    It looks at the settings, the task, the certificate, every record with the model and
    the loss, the limit, the state folder, both servers and the clocks. Nothing is
    enrolled; the servers see a connection and one call, whatever the records are. Exit
    1 where something has to be mended.
    """
    findings = look_at_settings(config, wait)
    if as_json:
        rows = [
            {
                "about": finding.about,
                "kind": finding.kind.value,
                "said": finding.text,
            }
            for finding in findings
        ]
        print_json({"findings": rows, "wrong": len(findings.wrong)})
    else:
        for finding in findings:
            mark = _MARKS[finding.kind.value]
            say(f"{mark} {finding.about}: {finding.text}")
        finished = any(finding.about == FINISHED for finding in findings)
        if findings.wrong:
            click.echo(f"\nMend what is marked with {_MARKS['bad']}, then look again.")
        elif not finished:
            click.echo(f"\nNothing is in the way: precad join --config {config}")
    sys.exit(1 if findings.wrong else 0)


_MARKS = {"good": "✓", "note": "!", "bad": "✗"}
"""How a finding of each kind begins."""


@command()
def join(
    *,
    config: Annotated[
        tuple[Path, ...],
        "The settings file; several for several owners of this machine.",
        *("--config", "-c"),
        REQUIRED,
    ],
    logs: Annotated[Path | None, "A folder for the log of each; one file an owner."],
    quiet: Annotated[
        bool, "No progress, and of the log warnings alone.", "--quiet", "-q"
    ],
    wait: Annotated[
        float,
        "Hours that the servers may be away, as over a weekend; the task's outage"
        " unless given.",
        click.FloatRange(min=0),
        {"show_default": False},
    ] = 0.0,
    raise_limit: Annotated[
        bool, "An epsilon_limit above the account's takes its place, for good."
    ],
) -> None:
    """Take part in a training as a data owner, until it ends.

    The settings file (TOML), with paths relative to it:

    \b
        client = "ward-3"
        task = "task.toml"
        server_a = "a.example:7301"
        server_b = "b.example:7302"
        identity = "keys/ward-3"
        data = "records.csv"        # or .parquet, or .npz with arrays x and y
        model = "nets:Net"          # where the task's architecture isn't built in
        state = "state"             # what survives this process; one folder a task
        account = "../account"      # the data set's privacy account, over all tasks
        epsilon_limit = 4.0         # share nothing beyond this ε, all tasks together
        plan = "plan.toml"          # in its place: what may be asked and trained
        held_out = "held-out.npz"   # tried with each model, for you alone

    The records never leave this machine: each round sends one random-looking share of a
    clipped update to each server. Afterwards the state folder holds model.safetensors,
    which `precad predict` and `precad evaluate` take, and history.csv.

    Exit status: 0 at the training's end, 3 where the owner's limit ended its part
    before, 4 where its work took too long three times, 2 for a wrong value, 75 for one
    that may do in a minute, 1 for what else failed (docs/exit-statuses.md).

    Several settings files start several owners, each a process of its own, which load
    their libraries once and share them in memory.
    """  # noqa: D301 -- click reads the control character
    dump_stacks_on_signal()
    signal.signal(signal.SIGINT, _interrupt)
    if len(config) > 1 or logs is not None:
        options = ["--wait", str(wait)]
        if quiet:
            options.append("--quiet")
        if raise_limit:
            options.append("--raise-limit")
        sys.exit(_together(config, options, logs))
    try:
        sys.exit(
            _take_part(
                config[0],
                quiet=quiet,
                wait_h=wait,
                raise_limit=raise_limit,
            )
        )
    except KeyboardInterrupt:
        # An interrupted call of gRPC may wait for ever as it is cleared up.
        os._exit(128 + signal.SIGINT)


_TOLD = b"""
told to stop: what was shared is kept, and the servers go on; the same command takes
part again, from the round that is open then
"""


def _end_soon(number: int) -> None:
    """End this process within ``STOP_S`` after signal ``number``, and say what holds.

    Of several owners of one command their parent says it.
    """
    end_within(STOP_S, 128 + number)
    if parent_process() is None:
        # A stream may be amid a write of its own.
        os.write(2, _TOLD)


def _interrupt(number: int, _frame: object) -> NoReturn:
    """End an owner after a Ctrl-C; a signal handler.

    A terminal sends it to all owners of one command, whose parent passes it on too.
    """
    signal.signal(number, signal.SIG_IGN)
    _end_soon(number)
    raise KeyboardInterrupt


def _together(
    settings: Sequence[Path], options: Sequence[str], logs: Path | None
) -> int:
    """Run an owner's process for each settings file; return their exit status.

    ``options`` are those of `precad join` that all of them get; ``logs`` is the folder
    of their logs, None for this process's own output. The owners load their libraries
    once (see ``forked``). A signal to this process goes on to all of them. The status
    is 0 if all ended with 0, else that of the first, in the order of the settings, that
    didn't; 128 + n where signal n ended it. Raises Misconfiguration: the system can't
    do it, or a log can't be written.
    """
    if sys.platform == "win32":
        raise Misconfiguration(
            "--config, --logs",
            len(settings),
            "one owner a command here, and its output as it is",
        )
    if logs is not None:
        require_folder("--logs", logs)
    # Owners that share a terminal can't each redraw it.
    environment = os.environ | {"TERM": "dumb"}
    forked.begin(environment)
    outputs = [None if logs is None else _log(logs, file) for file in settings]
    # A signal that comes meanwhile is for all of them.
    forwarded = {signal.SIGTERM, signal.SIGINT}
    usual = signal.pthread_sigmask(signal.SIG_BLOCK, forwarded)
    owners = [
        forked.Forked(
            ["precad", "join", "--config", str(file), *options], log, environment
        )
        for file, log in zip(settings, outputs, strict=True)
    ]

    def forward(number: int, _frame: object) -> None:
        for owner in owners:
            owner.send_signal(number)
        # Owners that still run at its end, end with this process.
        _end_soon(number)

    for number in forwarded:
        signal.signal(number, forward)
    signal.pthread_sigmask(signal.SIG_SETMASK, usual)
    statuses = [owner.wait() for owner in owners]
    for file, log, status in zip(settings, outputs, statuses, strict=True):
        if status:
            # Its own lines are far above, where another one trained on for days.
            warn(f"{file} ended with {status}: see {log or 'its lines above'}")
    failed = next(filter(None, statuses), 0)
    # A process that a signal ended has its negative number.
    return failed if failed >= 0 else 128 - failed


def _log(folder: Path, settings: Path) -> Path:
    """Return an owner's own log, which only its user may read: refusals quote cells.

    Raises Misconfiguration: it can't be written.
    """
    path = folder.resolve() / f"{settings.stem}.log"
    try:
        os.close(os.open(path, forked.TO_LOG, PRIVATE_MODE))
    except OSError as error:
        raise Misconfiguration(
            "--logs",
            path,
            f"can't be written ({error.strerror}); name another folder",
        ) from None
    return path


class _StandardError(logging.StreamHandler[TextIO]):
    """Writes the log to what ``sys.stderr`` is at that moment.

    So lines go above a progress bar while one is drawn there.
    """

    @property
    def stream(self) -> TextIO:
        """Return standard error as it is now."""
        return sys.stderr

    @stream.setter
    def stream(self, value: TextIO) -> None:
        """Ignore the value: the stream is always standard error."""


ENDED_BY_LIMIT = 3
"""Exit status: nothing failed, and the training goes on without this owner."""
ENDED_LATE = 4
"""Exit status: this owner's work took longer than ``deadlines.work`` three times."""


def _take_part(
    config: Path,
    *,
    quiet: bool,
    wait_h: float,
    raise_limit: bool,
) -> int:
    """Take part as one data owner until the training ends; return the exit status.

    ``config`` is its settings file; ``quiet`` shows no progress, and warnings alone of
    the log. ``wait_h`` is how many hours the servers may be away, 0 for the task's
    outage. ``raise_limit`` lets a higher ε take the place of the account's limit, for
    good. Raises StorageFailure: the final model couldn't be written; and whatever
    ``JoinSettings.load``, ``data_owner`` and ``DataOwner.run`` raise.
    """
    start_log(logging.WARNING if quiet else logging.INFO, _StandardError())
    log = logging.getLogger("precad")
    log.info("%s", this_build())
    watched = not quiet and somebody_looks()
    if watched:
        # The bar shows the rounds.
        logging.getLogger("precad.rounds").setLevel(logging.WARNING)
        log.info("loading torch and the records")

    owner = JoinSettings.load(config).data_owner(raise_limit=raise_limit)
    task = owner.task
    name = owner.client.name
    doing(part=name, owner=name, task=task.name)
    rounds, covers_all = covered(task, owner.budget)
    if covers_all:
        log.info("%s", rounds)
    else:
        log.warning(
            "%s: it ends this owner's part early; %s",
            rounds,
            owner.budget.to_go_on(),
        )
    for finding in look_at_earlier_task(task, owner.budget):
        log.warning("%s", finding.text)
    result = owner.run(
        progress=None if watched else False, wait_s=3600 * wait_h or None
    )
    if result.validation is not None and watched:
        # For the owner's eyes: logs have other readers.
        log.info("own held-out records: %s", result.validation)
    finished = result.ended == "finished"
    if result.model_file is None and finished:
        raise StorageFailure(
            "the training is over, but the model isn't written: mend the disk, and"
            " start again while the servers are there"
        )
    rejected = dict(result.rejected) or "none rejected"
    became = f"{result.submitted} submissions, {result.counted} counted, {rejected}"
    unit = task.mechanism.unit
    spent = (
        f"exact {unit}-level ε over all tasks of this account = {upper(result.epsilon)}"
    )
    spent += at_owners_of(owner.budget.spent(), task.privacy.delta)
    against = f"one curious server, δ = {task.privacy.delta:g}"
    newest = "final model"
    planned = task.mechanism.releases
    if not finished:
        reached = 0 if result.model is None else result.model.version
        newest = f"this owner's part ended at round {reached} of {planned}: its model"
    log.info(
        "%s: %s; %s (%s); %s %s",
        result.ended,
        became,
        spent,
        against,
        newest,
        result.model,
    )
    log.info(
        "the state folder has the model, %s, and the rounds, %s",
        MODEL_FILE,
        HISTORY_FILE,
    )
    if finished and result.model_file:
        missed = rounds_missed(result.model_file.with_name(HISTORY_FILE), planned)
        if missed:
            log.warning(
                "this owner was missing in %d of %d rounds, as far as history.csv knows:"
                " the model learnt nothing from its records in those that it would have"
                " been drawn for",
                missed,
                planned,
            )
        return 0
    if result.ended == "late":
        return ENDED_LATE
    log.warning(
        "the owner's limit ended its part before the training's end: %s",
        owner.budget.to_go_on(),
    )
    return ENDED_BY_LIMIT


Records = Annotated[Path, "The records: a file as for `precad join`.", ARGUMENT]
"""The argument of commands that apply a trained model."""


def files_of(request: OfRelease) -> tuple[Path, Path, JoinSettings | None]:
    """Return the task's file and the model's, and the settings if given.

    What options say goes before the settings. Raises Misconfiguration: they name none,
    or there is no model yet.
    """
    task = request.task
    model_file = request.model_file
    settings = None if request.config is None else JoinSettings.load(request.config)
    if settings is not None:
        task = task or settings.task
        model_file = model_file or settings.final_model()
    if task is None or model_file is None:
        raise Misconfiguration("--config", None, "give it, or --task and --model-file")
    return task, model_file, settings


def trained(request: OfModel) -> tuple[TrainedModel, "nn.Module", JoinSettings | None]:
    """Return the trained model that is meant, its module, and the settings if given.

    The module's own parameters aren't the trained ones yet. Where neither options nor
    settings name a module, it is built from the task. Raises Misconfiguration: the
    options don't name a model, or it can't be read; TaskMismatch: it is another task's.
    """
    from precad.client.gradients import build, check_buffers  # noqa: PLC0415
    from precad.client.trained_heads import model_for_inputs  # noqa: PLC0415

    task, model_file, settings = files_of(request)
    model = model_for_inputs(TrainedModel.load(model_file, task))
    module = None
    if request.model is not None:
        module = own_model(request.model)
    elif settings is not None:
        module = settings.own_model()
    if module is None:
        module = build(model.task.model)
    check_buffers(module, model.task.model)
    return model, module, settings


def _ask_of(notes: Sequence[ColumnNotes]) -> None:
    """Ask on stderr what precad doctor asks of columns: another table, or unit?"""
    for finding in look_at_columns(notes):
        if finding.kind is Kind.NOTE:
            warn(finding.text)


@command()
def predict(
    asked: OfModel,
    data: Records,
    out: Annotated[Path | None, "A .csv or .npy file; CSV on stdout unless given."],
    raw: Annotated[bool, "The model's outputs as they are."],
    identifier: Annotated[
        str | None, "A column of the table that goes along, such as patient.", "--id"
    ],
) -> None:
    """What a trained model says of records; nothing leaves this machine.

        precad predict new.csv --config ward-3.toml --out predictions.csv

    A line a record: the likeliest class and the probability of each; or a number in the
    target's own unit. With the task's [data] section a table is read as in training,
    and needs no target.
    """
    ending = ".csv" if out is None else out.suffix.lower()
    if ending not in (".csv", ".npy"):
        raise Misconfiguration("--out", out, "give a file that ends with .csv or .npy")
    if ending == ".npy" and identifier is not None:
        raise Misconfiguration("--id", identifier, "stands in CSV alone: leave it out")
    require_writable("--out", out)
    from precad.client.gradients import evaluation  # noqa: PLC0415
    from precad.client.records import as_inputs  # noqa: PLC0415

    model, module, settings = trained(asked)
    task = model.task
    if model.version < task.mechanism.releases:
        warn(f"the model is of round {model.version} of {task.mechanism.releases}")
    columns = None if settings is None else settings.columns
    notes: list[ColumnNotes] = []
    rows = read_inputs(data, task.data, columns, notes)
    _ask_of(notes)
    outputs = evaluation.Applied(module, task).outputs(model.theta, as_inputs(rows))
    predicted = outputs if raw else evaluation.own_words(task, outputs)
    if predicted is None:
        raise Misconfiguration(
            "--raw",
            None,
            f"the model gives {list(outputs.shape)}, no column a class: give --raw",
        )
    if out is not None and ending == ".npy":
        np.save(out, predicted)
        return
    names = ["record"]
    cells: list[Sequence[object]] = [range(len(rows))]
    if identifier is not None:
        names.append(identifier)
        cells.append(read_column(data, identifier, columns))
    values = predicted.reshape(len(rows), -1)
    if task.training.class_weights:
        warn(WEIGHED)
    if raw:
        names += [f"output_{number}" for number in range(values.shape[1])]
    elif predicted.ndim == 1:
        names.append(f"predicted_{task.target.name}")
    else:
        levels = evaluation.level_names(task, predicted.shape[1])
        names += ["class", *(f"probability_{level}" for level in levels)]
        cells.append([levels[place] for place in predicted.argmax(axis=1)])
    cells += [[f"{value:.7g}" for value in column] for column in values.T.tolist()]
    with click.open_file(str(out or "-"), "w", "utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(names)
        writer.writerows(zip(*cells, strict=True))


@command()
def evaluate(
    asked: OfModel,
    data: Records,
    loss: Annotated[str | None, "A loss of your own, MODULE:NAME."],
    as_csv: Annotated[bool, "Print CSV.", "--csv"],
    as_json: AsJson,
) -> None:
    """How well a trained model does on records of one's own, which it didn't train on.

    Nothing leaves this machine.

        precad evaluate held-out.csv --config ward-3.toml

    Two classes: AUC, accuracy, sensitivity and specificity (the task's second level is
    what is looked for), Brier score, calibration; more: accuracy, the recall of each,
    the confusion matrix; a number: R², mean absolute and root mean squared error in its
    own unit. Each has a 95 % interval, for records that are drawn independently.

    What it says is about these records, and has no privacy guarantee: whoever
    publishes it publishes something of them. `precad report --results` takes the JSON.
    """
    from precad.client.gradients import Applied  # noqa: PLC0415
    from precad.client.measures import results_of  # noqa: PLC0415
    from precad.client.records import as_records  # noqa: PLC0415

    model, module, settings = trained(asked)
    task = model.task
    own_loss = None if settings is None else settings.own_loss()
    if loss is not None:
        own_loss = own_object("--loss", loss)
    columns = None if settings is None else settings.columns
    notes: list[ColumnNotes] = []
    try:
        records = as_records(read_records(data, task.data, columns, notes))
    except Misconfiguration as error:
        # Where the inputs can be read, their target is what is wrong.
        read_inputs(data, task.data, columns)
        raise Misconfiguration(
            error.field, error.value, f"{error.remedy}; precad predict needs no target"
        ) from None
    _ask_of(notes)
    applied = Applied(module, task, own_loss)
    outputs = applied.outputs(model.theta, records.inputs)
    found = applied.evaluate(model.theta, records, outputs=outputs)
    results = results_of(task, outputs, records.targets)
    if as_json:
        document = {"model": str(model.digest), "version": model.version}
        print_json(results.model_dump() | document | asdict(found))
    elif as_csv:
        results.write_csv(sys.stdout)
    else:
        click.echo(f"{model}: {found}")
        results.show(sys.stdout)
        if task.training.class_weights:
            click.echo(WEIGHED)
