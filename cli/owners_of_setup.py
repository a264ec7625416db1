"""What `precad setup` sees of owners' accounts and tables before it writes settings.

Which account goes on, and whether the records have another one, is asked of the folders
of earlier runs. A table that needs settings of its own keeps nobody from getting any:
it is said what they are.
"""

import re
from contextlib import suppress
from pathlib import Path

from precad.cli import toml_value
from precad.client.account_file import ACCOUNT_FILE
from precad.client.class_shares import unlike_weights
from precad.client.data_set_account import Account
from precad.client.owner_settings import JoinSettings
from precad.client.records import Columns, name_of, table_of
from precad.client.records.read_records import read_records
from precad.common import (
    ClientId,
    DataSection,
    Enrolment,
    Misconfiguration,
    Task,
    unlike_plan,
)


def earlier_account(run: Path | None, name: str, task: Task) -> Path | None:
    """Return the folder of an owner's account in an earlier run's settings.

    None where there is no run, or where the owner has no settings in it.

    Raises Misconfiguration: settings or account can't be read, or the account has
    rounds of this very task, which would be sat out.
    """
    if run is None or not (settings := run / f"{name}.toml").is_file():
        return None
    earlier = JoinSettings.load(settings)
    folder = earlier.account or earlier.state
    if task.digest in Account(folder / ACCOUNT_FILE).names:
        raise Misconfiguration(
            "--accounts",
            run,
            f"the account of {name} has rounds of this task already, and each of them"
            " would be sat out: go on with that training in its own folder (precad join"
            f" --config {settings}, and its servers' settings); another training needs"
            " a task of its own: precad task new with another name",
        )
    return folder


def accounts_beside(folder: Path, owners: dict[str, Path]) -> str | None:
    """Return which of the folders beside ``folder`` have settings for the same records.

    ``owners`` has each owner's file by its name. None where there are none.
    """
    runs = set()
    for name, path in owners.items():
        for settings in folder.parent.glob(f"*/{name}.toml"):
            # Whatever else can't be read is no matter of the new folder's.
            with suppress(Misconfiguration):
                if JoinSettings.load(settings).data.resolve() == path.resolve():
                    runs.add(str(settings.parent))
    if not runs:
        return None
    return (
        f"the same records have settings and an account in {', '.join(sorted(runs))}:"
        f" --accounts {min(runs)} holds both trainings in one account; otherwise each"
        " account states its own part alone"
    )


def remarks_on_records(
    task: Task, name: str, path: Path, *, settings: Path
) -> list[str]:
    """Return what an owner should know of its records before it takes part.

    ``settings`` is the file that will be written for it. Where a table needs settings
    of its own before it can be read, they alone are returned.

    Raises Misconfiguration: the file can't be read, or no such settings mend it.
    """
    asked = task.questions
    recipe = task.data if asked is None else asked.recipe
    # Without [data] an owner's own settings say the columns, later.
    if recipe is None and path.suffix.lower() != ".npz":
        return []
    try:
        if asked is None:
            _, records = read_records(path, recipe)
        else:
            records = table_of(path, Columns())
    except Misconfiguration as error:
        return [_mending(path, recipe, error, settings=settings)]
    if records is None:
        return []
    remarks = [unlike_weights(task, records)]
    mechanism = task.mechanism
    if task.privacy.unit is None:
        count = len(records)
        rate = mechanism.unit_rate
        remarks.append(unlike_plan(task, count, rate))
        try:
            Enrolment(ClientId(name), count, rate).check(task)
        except Misconfiguration as error:
            remarks.append(str(error))
    return [f"{path}: {remark}" for remark in remarks if remark]


def _mending(
    path: Path, recipe: DataSection | None, error: Misconfiguration, *, settings: Path
) -> str:
    """Return what must stand in an owner's settings before its table can be read.

    ``error`` is what was wrong without it. Raises it where no settings are seen to mend
    it.
    """
    tables = {}
    for separator in ",;\t|":
        with suppress(Misconfiguration):
            if table := table_of(path, Columns(separator=separator)):
                tables[separator] = table.columns
    if recipe is None or not tables:
        raise error
    # The first where several find as many: of a Parquet file all do.
    separator = max(tables, key=lambda each: len(tables[each]))
    found = tables[separator]
    lines = ""
    if separator != ",":
        lines += f"columns.separator = {toml_value(separator)}, "
    # A question's recipe has a target of no name.
    lacking = {
        column.name: "…"
        for column in (*recipe.columns, recipe.target)
        if column.name and name_of(column.name) not in found
    }
    if lacking:
        lines += f"columns.rename = {toml_value(lacking)}, "
    if not lines and not re.fullmatch(r"\s*-?\d+,\d+\s*", str(error.value)):
        raise error
    return (
        f"{path} (its columns are {', '.join(found)}) lacks columns that the task names,"
        f" or has a form of its own: write into {settings}, a line each: {lines}"
        'columns.decimal = "," where its numbers have such a comma; then precad doctor'
        f" --config {settings}. Its records weren't counted, nor its cells looked at"
    )
