"""`precad backup`: copies of a server's state, made and checked."""

from pathlib import Path
from typing import Annotated

import click

from precad.cli import ARGUMENT, command, end_with, url_of
from precad.common import load_model


class _CopiesUnlessTold(click.Group):
    """Takes ``backup STATE COPY`` for ``backup copy STATE COPY``."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command's name, the command and its arguments."""
        if args[0] not in self.commands:
            args = ["copy", *args]
        return super().resolve_command(ctx, args)


@click.group(cls=_CopiesUnlessTold)
def backup() -> None:
    """Copy a server's state, or check a copy.

    \b
        precad backup server-a/state backup/server-a-monday
        precad backup check backup/server-a-monday
    """  # noqa: D301 -- click reads the control character


@command(backup)
def check(
    copy: Annotated[str, "The copy's folder, its state.db, or a URL.", ARGUMENT],
) -> None:
    """Say what a copy of a server's state holds, and whether its ledger is sound.

    A copy of any schema, of any age; nothing of it is changed. A model beside it may be
    a round newer. Exit 1 where the ledger is broken.
    """
    from precad.aggregator.store import audit_ledger, read_training  # noqa: PLC0415

    training = read_training(url_of(copy))
    task = training.task
    audit = audit_ledger(url_of(copy))
    click.echo(
        f"{training.role.value} of task {task.name}, digest {task.digest}; schema"
        f" {audit.schema}\n{len(training.claims)} owners, {len(training.versions)} of"
        f" {task.mechanism.releases} rounds released, {training.attempts} attempts;"
        f" newest model {training.model or 'unknown'}"
    )
    model_file = Path(copy) / "model.safetensors"
    if model_file.is_file():
        saved = load_model(model_file, task)
        click.echo(f"{model_file.name}: model {saved.version}, {saved.digest}")
    end_with(audit)


@command(backup, "copy")
def back_up_state(
    state: Annotated[Path, "The server's state folder.", ARGUMENT],
    copy: Annotated[Path, "The folder to make; it must not exist.", ARGUMENT],
) -> None:
    """Copy a server's state, while it runs, and look whether the copy is sound.

    Database, model, its seal and enrolment tokens, as of one moment. Never the journal
    file: put back, it would forget what left. docs/runbooks/backup.md says how a copy
    is put back.

        precad backup server-a/state backup/server-a-monday
    """
    from precad.aggregator.store import back_up  # noqa: PLC0415

    end_with(back_up(state, copy))
