"""The SDK for data owners: hand over data, a model and a loss, and take part."""

import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from precad.client.account_file import ACCOUNT_FILE
from precad.client.asked_records import (
    AskedRecords,
    asked_records,
    require_unset,
)
from precad.client.check_before_enrolling import (
    WITHIN_S,
    Findings,
    check_name,
    kept_model,
    look_at_columns,
    look_at_earlier_task,
    look_at_limit,
    look_at_owner,
    look_at_servers,
    look_at_state,
)
from precad.client.connection import Servers
from precad.client.own_account import OwnAccount
from precad.client.participant import Participant
from precad.client.participation import (
    MODEL_FILE,
    Compute,
    Observer,
    Participation,
    RoundView,
    TrainedModel,
)
from precad.client.pending_update import Pending
from precad.client.records import ColumnNotes, Columns
from precad.client.reporter import (
    OnRound,
    Reporter,
    Validate,
    display_for,
    note_privately,
)
from precad.client.server_state import ask_for_state
from precad.client.server_statements import ServerStatements
from precad.common import (
    ClientId,
    Enrolment,
    Keystream,
    Misconfiguration,
    PrecadError,
    RingVector,
    Role,
    Secret,
    Task,
    by_proxy,
    log,
    make_folder,
    missing,
    most_records,
    on_grid,
    state_lock,
)
from precad.common.identity import Identity

if TYPE_CHECKING:
    from torch import nn

    from precad.client.gradients import Evaluation, Loss
    from precad.client.records import Records

# What loads torch, which takes seconds, is loaded where a model is trained: owners that
# answer a question do without it.
Value = TypeVar("Value")


class DataOwner:
    """One data owner's part in a training.

    ```
    owner = DataOwner(
        "ward-3", task="task.toml", data=(x, y), identity="keys/ward-3",
        server_a="a.example:7301", server_b="b.example:7302", epsilon_limit=4.0,
    )
    result = owner.run()
    ```
    ``client``, as in the certificate, takes part in ``task``, or the task of that file,
    over ``server_a`` and ``server_b``, each ``host:port``; ``identity`` is the folder
    with ca.pem, cert.pem and key.pem, or what was loaded from it.

    Args:
        data: a pair of arrays, tensors or frames of numbers ``(inputs, targets)`` with
            one row a record; a torch Dataset of such pairs that has a length; a frame
            of pandas or Polars, or the path of a .csv, .parquet or .npz file, with
            ``columns`` or by the task's ``data``. Copied, and a Dataset or a file read
            once, here: what changes later, such as a random augmentation, doesn't
            count. Scalers, vocabularies and the like must come from public data: what
            is fitted on the records isn't protected.
        model: torch module whose named parameters and buffers are the task's; built
            from the task's architecture (logistic, mlp) unless given. Training starts
            where the task says: other weights that somebody chose are refused
            (docs/own-model.md).
        loss: ``loss(outputs, targets)`` as in torch.nn.functional, over one record at a
            time; the task's unless given.
        epsilon_limit: the owner's own limit of a record's ε (a unit's, where the task
            has its own) against one corrupted server, over all tasks of the account;
            nothing of the records is shared beyond it. Fixed with the account's first
            charge, until ``raise_limit`` lets a higher one take its place. Neighbours
            differ in one unit, replaced by one whose gradient is zero; how many units
            there are is public.
        plan: file of a plan that the account opens with, before anything is charged: a
            purse for questions and a list of trainings, whose exact ε holds in any
            order (docs/questions.md). The account's own unless given.
        record_rate: p_i; the task's unless given. Lowered to the next rate that the
            servers take (docs/enrolment.md).
        state: folder where the open version's update, what the servers signed and the
            account survive restarts, with a log of records that gave no gradient; in
            memory unless given. One folder a task and client, as confidential as the
            records.
        account: folder of the data set's account, for all tasks that these records take
            part in, one after the other or at once; the state folder unless given.
        token: one-time enrolment token from the operator, where the servers ask for
            one.
        columns: what a table's columns are, where the task doesn't say it or names them
            otherwise.
        held_out: records like ``data`` that aren't trained on: the newest model is
            tried on them after a round's upload, for this owner alone. They cost no
            privacy, and change nothing that leaves the machine.
        units: where the task protects another unit than a record, such as a patient:
            what says whose each record is, one identifier for each, as 2 or "2". Tables
            have it in ``columns.unit``, a .npz file in its array ``units``.
        held_out_units: the same for ``held_out``, which may share no unit with ``data``.
        evaluated: the trained model that a question asks about; ``model`` is its module
            where its task names no architecture.
        proxy: ``http://[user:password@]host:port`` of an HTTP proxy that leads to the
            servers; the environment's isn't used.

    Raises Misconfiguration: task, data, model or limit can't be used; says which and
    what would do.
    """

    def __init__(
        self,
        client: str,
        *,
        task: Task | str | Path,
        data: object,
        server_a: str,
        server_b: str,
        identity: Identity | str | Path,
        model: "nn.Module | None" = None,
        loss: "Loss | None" = None,
        epsilon_limit: float | None = None,
        raise_limit: bool = False,
        plan: str | Path | None = None,
        record_rate: float | None = None,
        state: str | Path | None = None,
        account: str | Path | None = None,
        token: str | None = None,
        columns: Columns | None = None,
        held_out: object = None,
        units: object = None,
        held_out_units: object = None,
        evaluated: TrainedModel | None = None,
        proxy: str | None = None,
    ) -> None:
        """Read the task, the records and the identity; make the owner's folders."""
        if not isinstance(task, Task):
            task = Task.load(Path(task))
        self.task = task
        self.client = ClientId(client)

        self._column_notes: list[ColumnNotes] = []
        self._records: Records | AskedRecords
        self._held_out: Records | None = None
        if task.query is None:
            if evaluated is not None:
                raise Misconfiguration(
                    "evaluated_model",
                    str(evaluated.digest),
                    "leave it out: a training evaluates none, a question does",
                )
            try:
                from precad.client.records import records_in_task, require_others  # noqa: PLC0415
            except ModuleNotFoundError as error:
                raise missing(error, "DataOwner", "client") or error from None

            records = records_in_task(
                data,
                task,
                columns,
                notes=self._column_notes,
                units=units,
            )
            self._records = records
            if held_out is not None and len(records):
                self._held_out = _named(
                    "held_out",
                    lambda: records_in_task(
                        held_out,
                        task,
                        columns,
                        units=held_out_units,
                    ),
                )
                require_others(self._held_out, records)
        else:
            require_unset(
                model=None if evaluated else model,
                loss=loss,
                units=units,
                held_out=held_out,
                held_out_units=held_out_units,
            )
            asked = asked_records(
                data,
                task,
                columns,
                evaluated=evaluated,
                module=model,
            )
            self._records = asked
            self._column_notes += asked.notes
            self._answer = asked.total()
        if len(self._records) == 0:
            raise Misconfiguration("data", "no records", "give at least one")
        # Sampling, claim and account use the same number, on the grid of rates that
        # servers take.
        self._record_rate = on_grid(task, record_rate)
        mechanism = task.mechanism
        claim = Enrolment(self.client, self._records.unit_count, self._record_rate)
        self._bound = mechanism.bound_of(claim)
        if task.query is None:
            self._most_units = most_records(claim.records, self._record_rate)
            self._take_model(model, loss)
        else:
            claim.check(task)
        self._addresses = {
            Role.SERVER_A: by_proxy(server_a, proxy),
            Role.SERVER_B: by_proxy(server_b, proxy),
        }
        self._identity = (
            Identity.load(Path(identity))
            if isinstance(identity, str | Path)
            else identity
        )
        self._token = None if token is None else Secret(token.encode())
        self._folder = _made_folder(state)
        self._account_folder = (
            self._folder if account is None else _made_folder(account)
        )
        self.budget = OwnAccount(
            task,
            self._record_rate,
            epsilon_limit,
            _file_in(self._account_folder, ACCOUNT_FILE),
            self.client,
            raise_limit=raise_limit,
            plan=None if plan is None else Path(plan),
        )
        self._note = partial(
            note_privately, _file_in(self._folder, "failed-records.log")
        )
        self.pending = Pending(task, self.client, _file_in(self._folder, "pending.bin"))
        self.statements = ServerStatements(task, self.client, self._folder)

    def _take_model(self, model: "nn.Module | None", loss: "Loss | None") -> None:
        """Take the model and the loss, or the task's. Raises Misconfiguration."""
        from precad.client.gradients import build, check_processor, loss_in  # noqa: PLC0415

        self._model = build(self.task.model) if model is None else model
        check_processor(self._model)
        self._loss = loss_in(self.task, loss)

    def check(self, wait_s: float = WITHIN_S) -> Findings:
        """What may keep this owner from taking part, before it enrols: a sentence each.

        Looks at every record with the model and the loss, the claim, the limit, the
        state folder, both servers (for ``wait_s``), their task, the clocks, and whether
        the name is in use. The servers see a connection and one call, whatever the
        records are. ``wrong`` of the result has what must be mended. Raises none of our
        errors.
        """
        task = self.task
        findings_of_servers = look_at_servers(
            task,
            self.client,
            self._identity,
            self._addresses,
            wait_s,
            self._token,
        )
        findings = Findings()
        findings.passes("identity", lambda: check_name(self.client, self._identity))
        findings.extend(look_at_columns(self._column_notes))
        if isinstance(self._records, AskedRecords):
            findings.good("data", f"{len(self._records):,} records answer")
        else:
            findings.extend(
                look_at_owner(
                    task,
                    self.client,
                    self._records,
                    self._record_rate,
                    model=self._model,
                    loss=self._loss,
                    held_out=self._held_out,
                )
            )
        findings.extend(look_at_limit(task, self.budget))
        findings.extend(look_at_earlier_task(task, self.budget, self._folder))
        findings.extend(look_at_state(task, self._folder, self._account_folder))
        findings.extend(findings_of_servers())
        return findings

    def run(
        self,
        on_round: OnRound | None = None,
        *,
        progress: bool | None = None,
        wait_s: float | None = None,
    ) -> Participation:
        """Enrol and take part until the training ends or the owner's limit is reached.

        With a state folder the newest model lies there afterwards, as
        ``model.safetensors``, however the training ended, and the rounds in
        ``history.csv``. Where the final model lies there already, no server is asked
        for anything. Where the limit has ended this owner's part before, server A is
        asked once whether the training is over, which still gives the final model.

        ``on_round`` is told each round as a ``RoundInfo``, in order, in a thread of its
        own that waits while an upload is due. What it raises stops nothing and shows
        nowhere outside: the log says that it did, the result what. ``progress`` is
        shown on a terminal and in a notebook only, unless given. The servers may be
        away for ``wait_s``, the task's deadlines unless given.

        Raises:
            Misconfiguration: model, loss and records don't go together (see
                `rehearse`), or another process uses the state folder; before a server
                is called, and never later.
            TaskMismatch, PeerUnavailable: a server runs another task, or isn't there.
            PeerViolation: the servers show different models, or one has forgotten what
                it signed.
            StorageFailure: the state folder can't be written.
        """
        check_name(self.client, self._identity)
        rounds = self.task.mechanism.releases
        path = kept_model(self.task, self._folder, rounds)
        if path is not None:
            return self._over("finished", path)
        if self._has_nothing_left():
            path = kept_model(self.task, self._folder, 0)
            return self._over("budget", path)
        limit = self.budget.limit
        reporter = Reporter(
            self.task,
            epsilon_limit=None if limit is None else limit.epsilon,
            on_round=on_round,
            validate=self._validation(),
            folder=self._folder,
            display=display_for(self.client.name, rounds, wanted=progress),
            note=self._note,
        )
        with state_lock(self._folder):
            try:
                with reporter:
                    self._rehearse(reporter)
                    result = self._take_part(reporter, wait_s=wait_s)
            finally:
                model_file = self._keep_model(reporter.newest)
        result.model_file = model_file
        result.history = tuple(reporter.history)
        result.validation = reporter.validation
        result.callback_failures = reporter.failures
        result.callback_error = reporter.first_failure
        return result

    def _over(self, ended: str, path: Path | None) -> Participation:
        """Return the result where there is nothing to do; ``path`` is the model's."""
        return Participation(
            epsilon=self.budget.epsilon(),
            ended=ended,
            model=None if path is None else TrainedModel.load(path, self.task),
            model_file=path,
        )

    def _has_nothing_left(self) -> bool:
        """Return whether the limit leaves nothing to share, nor a final model to fetch.

        An update that was charged may still be shared in a further attempt. Where the
        training is over its servers still give the final model.
        """
        covers = self.task.mechanism.hides_coin
        if covers or self.pending.version is not None or not self.budget.is_used_up():
            return False
        with suppress(PrecadError):
            state = ask_for_state(
                self.task,
                self._identity,
                Role.SERVER_A,
                self._addresses[Role.SERVER_A],
                within_s=WITHIN_S,
                token=None,
            )
            return not state.finished
        return True

    def _rehearse(self, observer: Observer) -> None:
        """Try the model and the loss on all records, before a server is called.

        Raises Misconfiguration: they don't go together.
        """
        records = self._records
        if isinstance(records, AskedRecords):
            return
        from precad.client.gradients import rehearse  # noqa: PLC0415

        observer.doing(f"trying {len(records)} records with the model and its loss")
        rehearse(
            self._model,
            self._loss,
            records,
            self.task,
            self._most_units,
        )
        held_out = self._held_out
        if held_out is not None:
            _named(
                "held_out",
                lambda: rehearse(self._model, self._loss, held_out, self.task),
            )

    def _take_part(
        self,
        observer: Observer,
        compute: Compute | None = None,
        connection: type[Servers] = Servers,
        wait_s: float | None = None,
    ) -> Participation:
        """Enrol and take part, for `run`; for audits and bad clients too.

        ``compute`` gives the update instead of ``update``; ``connection`` is a class of
        calls to the servers other than the honest one.
        """
        with connection(
            self.task,
            self.client,
            server_a=self._addresses[Role.SERVER_A],
            server_b=self._addresses[Role.SERVER_B],
            identity=self._identity,
            patience_s=wait_s,
            observer=observer,
        ) as servers:
            observer.doing("asking both servers for their task")
            servers.check_task()
            observer.doing("enrolling")
            servers.enrol(self._records.unit_count, self._record_rate, self._token)
            return Participant(
                servers=servers,
                budget=self.budget,
                pending=self.pending,
                compute=compute or self.update,
                statements=self.statements,
                observer=observer,
                wait_s=wait_s,
            ).run()

    def _validation(self) -> Validate | None:
        """Return what tries a model on the held-out records; None without them."""
        held_out = self._held_out
        if held_out is None:
            return None
        from precad.client.gradients import Applied  # noqa: PLC0415

        applied = Applied(self._model, self.task, self._loss)

        def evaluate(
            model: TrainedModel, between: Callable[[], object]
        ) -> "Evaluation":
            return applied.evaluate(model.theta, held_out, between)

        return evaluate

    def _keep_model(self, model: TrainedModel | None) -> Path | None:
        """Write the newest model to the state folder and return the file's path.

        None where there is no folder or no model, or where the disk fails: the result
        of `run` still has the model.
        """
        if self._folder is None or model is None:
            return None
        path = self._folder / MODEL_FILE
        try:
            model.save(path, self.statements.answered())
        except Misconfiguration as error:
            log.warning("%s", error)
            return None
        return path

    def update(self, view: RoundView) -> RingVector:
        """Algorithm 2 for one version: units sampled, clipped, summed and encoded.

        What comes back is X, ``[d] int64``. The Poisson sample, and the records of its
        units where they are more than one, are drawn afresh from the CSPRNG, once a
        version. The work is that of ``most_records``, whatever was drawn
        and also where it is for show and none was, and a record that gives no gradient
        counts as zero and stands in the owner's private log alone.
        """
        records = self._records
        if isinstance(records, AskedRecords):
            return self._answer
        from precad.client.gradients import poisson_sample  # noqa: PLC0415
        from precad.client.gradients.local_update import local_update  # noqa: PLC0415

        began = time.perf_counter()
        randomness = Keystream(Secret.random(), "record-sample", view.attempt)
        sampled = poisson_sample(records.unit_count, self._record_rate, randomness)
        if view.covering:
            sampled = sampled[:0]
        most_records_per_unit = self.task.mechanism.most_records_per_unit
        indices, sizes = records.draw(sampled, most_records_per_unit, randomness)
        failed: list[int] = []
        update = local_update(
            self._model,
            self._loss,
            records,
            indices,
            view.theta,
            self.task,
            sizes=sizes,
            bound=self._bound,
            most=self._most_units,
            on_failure=failed.append,
        )
        self._note(
            f"attempt {view.attempt}: {len(failed)} records without a gradient {failed}"
        )
        late_s = time.perf_counter() - began - view.left_s
        if late_s > 0:
            self._note(
                f"attempt {view.attempt}: the work was done {late_s:.3g} s after the"
                " public time, so the upload told how long it took; let deadlines.work"
                " be longer, or this machine do less beside"
            )
        return update


def _named(field: str, make: Callable[[], Value]) -> Value:
    """Return what ``make`` makes of the argument that an owner knows as ``field``.

    Raises Misconfiguration: as ``make``, with ``field`` before the name that it gives.
    """
    try:
        return make()
    except Misconfiguration as error:
        raise Misconfiguration(
            f"{field}, {error.field}", error.value, error.remedy
        ) from None


def _made_folder(path: str | Path | None) -> Path | None:
    if path is None:
        return None
    folder = Path(path)
    make_folder(folder)
    return folder


def _file_in(folder: Path | None, name: str) -> Path | None:
    return None if folder is None else folder / name
