"""A data owner's settings file: its values, the code it names, and what is wrong."""

import importlib
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import Field, PrivateAttr, SecretStr

from precad.client.account_file import ACCOUNT_FILE
from precad.client.allowed_code import code_from
from precad.client.asked_records import asked_records
from precad.client.check_before_enrolling import (
    WITHIN_S,
    Findings,
    Kind,
    check_name,
    kept_model,
    look_at_columns,
    look_at_earlier_task,
    look_at_limit,
    look_at_owner,
    look_at_servers,
    look_at_state,
)
from precad.client.own_account import OwnAccount
from precad.client.participation import MODEL_FILE, TrainedModel
from precad.client.records import ColumnNotes, Columns
from precad.common import (
    Address,
    ClientId,
    DiallingSettings,
    Enrolment,
    Misconfiguration,
    Role,
    Secret,
    Task,
    on_grid,
)
from precad.common.identity import Identity, ends_soon

if TYPE_CHECKING:
    from torch import nn

    from precad.client.data_owner import DataOwner
    from precad.client.gradients import Loss
    from precad.client.records import Records

OwnObject = Any
"""Whatever an owner's own code has under a name."""


class JoinSettings(DiallingSettings):
    """A data owner's settings file."""

    DIALS = ("server_a", "server_b")

    client: str
    server_a: Address
    server_b: Address
    data: Path
    """The records: a .npz file with arrays x and y, a .csv or a .parquet file."""
    state: Path
    """Folder for what survives this process: one a task and client."""
    account: Path | None = None
    """Folder of the data set's account, the same for all tasks; the state folder unless
    given."""
    held_out: Path | None = None
    """Records like `data` that aren't trained on: each model is tried on them, for the
    owner."""
    evaluated_model: Path | None = None
    """Where a question evaluates a trained model: that model.safetensors. `model` is its
    module, where its task names no architecture."""
    evaluated_task: Path | None = None
    """The task that it was trained in."""
    epsilon_limit: Annotated[float, Field(gt=0)] | None = None
    plan: Path | None = None
    """The file of the plan that the account opens with: a purse for questions, and a
    list of trainings."""
    record_rate: Annotated[float, Field(gt=0, le=1)] | None = None
    token: SecretStr | None = None
    """One-time enrolment token from the operator, where the servers ask for one."""
    columns: Columns = Columns()
    """What a table's columns are."""
    model: str | None = None
    """A model of one's own, MODULE:NAME, from the settings' folder or the current one;
    called without arguments. The task's architecture unless given."""
    loss: str | None = None
    """A loss of one's own, MODULE:NAME, as in torch.nn.functional; the task's unless
    given."""
    _folder: Path | None = PrivateAttr(default=None)
    """Where the file lies."""

    @classmethod
    def load(cls, path: Path) -> Self:
        """Return the settings of a TOML file.

        Raises Misconfiguration: names file, field and remedy.
        """
        loaded = super().load(path)
        loaded._folder = path.resolve().parent  # noqa: SLF001 -- its own
        return loaded

    def own_model(self) -> OwnObject:
        """Return the torch module that the setting ``model`` makes; None without one.

        Raises Misconfiguration: as ``own_model`` of this module.
        """
        return None if self.model is None else own_model(self.model, self._folder)

    def evaluated(self) -> TrainedModel | None:
        """Return the model that a question asks about; None without one.

        Raises Misconfiguration: it can't be read. TaskMismatch: it is another task's.
        """
        return model_asked_about(self.evaluated_model, self.evaluated_task)

    def final_model(self) -> Path:
        """Return the file of the final model. Raises Misconfiguration: there is none.

        Of a question it is the answer.
        """
        path = self.state / MODEL_FILE
        if not path.is_file():
            raise Misconfiguration(
                "--config",
                path,
                "isn't there: this training isn't over, or hasn't begun",
            )
        return path

    def own_loss(self) -> "Loss | None":
        """Return what the setting ``loss`` names; None without one.

        Raises Misconfiguration: as ``own_object``.
        """
        loss: Loss | None = own_object("loss", self.loss, self._folder)
        return loss

    def data_owner(
        self,
        *,
        data: object = None,
        model: "nn.Module | None" = None,
        loss: "Loss | None" = None,
        raise_limit: bool = False,
    ) -> "DataOwner":
        """Return the data owner that these settings describe.

        ``data``, ``model`` and ``loss`` take the place of the settings' where given.

        Raises Misconfiguration: task, data, model, identity or limit can't be used.
        """
        # torch takes seconds: whoever only looks at settings does without.
        from precad.client.data_owner import DataOwner  # noqa: PLC0415

        task = Task.load(self.task)
        if task.query is None:
            # Said before keys are looked for, where it isn't installed.
            importlib.import_module("torch")
        return DataOwner(
            self.client,
            task=task,
            data=self.data if data is None else data,
            server_a=self.server_a,
            server_b=self.server_b,
            identity=Identity.load(self.identity, self.key_passphrase_file),
            model=self.own_model() if model is None else model,
            loss=self.own_loss() if loss is None else loss,
            epsilon_limit=self.epsilon_limit,
            raise_limit=raise_limit,
            plan=self.plan,
            record_rate=self.record_rate,
            state=self.state,
            account=self.account,
            token=None if self.token is None else self.token.get_secret_value(),
            columns=self.columns,
            held_out=self.held_out,
            evaluated=self.evaluated(),
        )


def model_asked_about(
    model_file: Path | None, task_file: Path | None
) -> TrainedModel | None:
    """Return the model that a question asks about; None where a file isn't named.

    Raises Misconfiguration: it can't be read. TaskMismatch: it is another task's.
    """
    if model_file is None or task_file is None:
        return None
    return TrainedModel.load(model_file, task_file)


def own_object(field: str, place: str | None, folder: Path | None = None) -> OwnObject:
    """Return what MODULE:NAME names; None where nothing is named.

    It is looked for in ``folder``, the settings', once its owner has allowed the code
    there, and in the current folder.

    Raises Misconfiguration, of ``field``: ``place`` can't be loaded, or lies in
    ``folder`` and isn't allowed.
    """
    if place is None:
        return None
    module, _, attribute = place.partition(":")
    with code_from(field, place, folder), _own_code(field, place, "loaded"):
        return getattr(importlib.import_module(module), attribute)


_GIVE = {
    "loaded": "give MODULE:NAME, found from this folder",
    "made": "give MODULE:NAME, callable without arguments",
}
_TORCHVISION = (
    "torchvision is of another build than torch, as CUDA's beside a CPU's: install both"
    " anew from one index, pip install --force-reinstall torch torchvision with the"
    " --index-url that torch's page names for this machine"
)
"""Remedy where torchvision can't load its operators."""


@contextmanager
def _own_code(field: str, place: str, done: str) -> Iterator[None]:
    """Let the owner's code run as a program of its own name, and say what it raises.

    A file that is also a script reads a command line, and may end the program: that
    isn't precad's line, and precad goes on. ``done`` is a key of ``_GIVE``.

    Raises Misconfiguration, of ``field``: it raised, or ended the program.
    """
    command_line = sys.argv
    sys.argv = [place.partition(":")[0]]
    try:
        yield
    except Misconfiguration:
        raise
    except SystemExit as error:
        raise Misconfiguration(
            field,
            place,
            f"ended the program while it was {done} (status {error.code}): keep that"
            ' under if __name__ == "__main__"',
        ) from error
    except Exception as error:  # whatever it does
        remedy = _TORCHVISION if "torchvision::" in str(error) else _GIVE[done]
        raise Misconfiguration(
            field,
            place,
            f"can't be {done} ({type(error).__name__}: {error}): {remedy}",
        ) from error
    finally:
        sys.argv = command_line


def own_model(place: str, folder: Path | None = None) -> "nn.Module":
    """Return the torch module that MODULE:NAME is, or makes.

    It is looked for as ``own_object`` does. What isn't a module must make one when it
    is called without arguments.

    Raises Misconfiguration: it can't be made, or isn't a torch module.
    """
    # Both load torch, which takes seconds.
    from torch import nn  # noqa: PLC0415

    from precad.client.gradients import check_processor  # noqa: PLC0415

    model = own_object("model", place, folder)
    if not isinstance(model, nn.Module):
        with _own_code("model", place, "made"):
            model = model()
    if not isinstance(model, nn.Module):
        raise Misconfiguration(
            "model",
            place,
            f"gives a {type(model).__name__}: give a torch.nn.Module, or what makes"
            " one",
        )
    check_processor(model)
    return model


FINISHED = "finished training"
"""What a finding is about where the owner has the task's final model already."""


def look_at_settings(path: Path, within_s: float = WITHIN_S) -> Findings:
    """Return all that may keep an owner with this settings file from taking part.

    That is what ``DataOwner`` refuses and what ``DataOwner.check`` finds. Nothing is
    enrolled, and no folder is made. The servers are asked first, for ``within_s``
    seconds, and the same whatever the records are.
    """
    findings = Findings()
    attempt = findings.attempt
    settings = attempt("settings", lambda: JoinSettings.load(path))
    if settings is None:
        return findings
    # On Windows every file's mode says that all may read it.
    if (settings.token or settings.proxy) and sys.platform != "win32":
        if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            findings.note(
                "settings", f"others can read what it holds: run chmod 600 {path}"
            )
    task = attempt("task", lambda: Task.load(settings.task))
    client = attempt("settings", lambda: ClientId(settings.client))
    identity = attempt(
        "identity",
        lambda: Identity.load(settings.identity, settings.key_passphrase_file),
    )
    findings_of_servers = None
    if identity is not None and client is not None:
        token = settings.token
        findings_of_servers = look_at_servers(
            task,
            client,
            identity,
            {Role.SERVER_A: settings.server_a, Role.SERVER_B: settings.server_b},
            within_s,
            None if token is None else Secret(token.get_secret_value().encode()),
        )
        if findings.passes("identity", lambda: check_name(client, identity)):
            findings.good(
                "identity", f"{settings.identity} holds a valid certificate of {client}"
            )
    if task is not None:
        findings.good("task", f"{task.name}, digest {task.digest}")
        if client is not None:
            _look_at_training(findings, settings, task, client)
            account = attempt("limit", lambda: _account(settings, task, client))
            if account is not None:
                findings.extend(look_at_limit(task, account))
                findings.extend(look_at_earlier_task(task, account, settings.state))
        findings.extend(look_at_state(task, settings.state, settings.account))
    of_servers = Findings()
    if findings_of_servers is not None:
        of_servers = findings_of_servers()
    if identity is not None:
        # Of the servers' certificates too, which they have shown by now.
        for sentence in ends_soon(identity):
            findings.note("identity", sentence)
    final_model = None
    if task is not None:
        final_model = kept_model(task, settings.state, task.mechanism.releases)
    if final_model is not None:
        findings.note(
            FINISHED,
            f"{final_model} is its final model: nothing is left to take part in",
        )
        # Servers that have left, or take nobody any more, are no mistake then.
        of_servers = Findings(
            replace(finding, kind=Kind.NOTE) if finding.kind is Kind.BAD else finding
            for finding in of_servers
        )
    findings.extend(of_servers)
    return findings


def _look_at_training(
    findings: Findings,
    settings: JoinSettings,
    task: Task,
    client: ClientId,
) -> None:
    """Add what comes of reading the records and trying them with model and loss.

    The records are tried only where all that this needs could be loaded. Those that
    answer a question are read, and nothing else.
    """
    attempt = findings.attempt
    if task.query is not None:
        _look_at_answer(findings, settings, task, client)
        return
    from precad.client.gradients import build, loss_in  # noqa: PLC0415
    from precad.client.records import records_in_task, require_others  # noqa: PLC0415

    def read(path: Path, notes: list[ColumnNotes] | None = None) -> "Records":
        return records_in_task(path, task, settings.columns, notes=notes)

    notes: list[ColumnNotes] = []
    records = attempt("data", lambda: read(settings.data, notes))
    findings.extend(look_at_columns(notes))
    model = attempt("model", lambda: settings.own_model() or build(task.model))
    loss = attempt("loss", lambda: loss_in(task, settings.own_loss()))
    rate = attempt("settings", lambda: on_grid(task, settings.record_rate))
    if records is None or model is None or loss is None or rate is None:
        return
    held_out = None
    path = settings.held_out
    if path is not None:
        about = "held-out records"
        held_out = attempt(about, lambda: read(path))
        if held_out is not None:
            apart = held_out
            findings.passes(about, lambda: require_others(apart, records))
    findings.extend(
        look_at_owner(
            task,
            client,
            records,
            rate,
            model=model,
            loss=loss,
            held_out=held_out,
        )
    )


def _look_at_answer(
    findings: Findings,
    settings: JoinSettings,
    task: Task,
    client: ClientId,
) -> None:
    """Add what comes of reading records that answer a question, and of the claim."""
    records = findings.attempt(
        "data",
        lambda: asked_records(
            settings.data,
            task,
            settings.columns,
            evaluated=settings.evaluated(),
            module=settings.own_model(),
        ),
    )
    if records is None:
        return
    findings.extend(look_at_columns(records.notes))
    claim = Enrolment(client, len(records), task.mechanism.unit_rate)
    if findings.passes("data", lambda: claim.check(task)):
        findings.good("data", f"{len(records):,} records answer")


def _account(settings: JoinSettings, task: Task, client: ClientId) -> OwnAccount:
    """Return the owner's account as it stands, without making its folder or file."""
    folder = settings.state if settings.account is None else settings.account
    path = folder / ACCOUNT_FILE
    return OwnAccount(
        task,
        on_grid(task, settings.record_rate),
        settings.epsilon_limit,
        path if path.exists() else None,
        client,
        plan=settings.plan,
    )
