"""A task as a TOML file with a comment at each field."""

import json
import textwrap
from itertools import groupby
from typing import Any

from precad.cli.task.fields import entries
from precad.common.task import Task

_WIDTH = 98


def written(task: Task, head: str) -> str:
    """The file's text; ``Task.parse`` of it gives ``task``.

    Args:
        task: what to write.
        head: the comment above everything.
    """
    values = task.model_dump(mode="json")
    blocks = [_comment(head)]
    for section, fields in groupby(entries(), key=lambda entry: entry.section):
        table = _table(values, section)
        if table is None:
            continue
        lines = [f"[{section}]"] if section else []
        for each in fields:
            lines += [_comment(each.says), _assigned(each.name, table[each.name])]
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks) + "\n"


def _table(values: dict[str, Any], section: str) -> dict[str, Any] | None:
    """The table of this name; None for one that isn't set, and for the rows of a list."""
    table: Any = values
    for name in filter(None, section.split(".")):
        table = table[name] if isinstance(table, dict) else None
    return table if isinstance(table, dict) else None


def _comment(text: str) -> str:
    return textwrap.fill(text, _WIDTH, initial_indent="# ", subsequent_indent="# ")


def _assigned(name: str, value: Any) -> str:
    if value is None:
        return f"# {name} ="
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return "\n".join([f"{name} = [", *(f"  {_row(each)}," for each in value), "]"])
    return f"{name} = {json.dumps(value)}"


def _row(values: dict[str, Any]) -> str:
    """A table in a line; what is as it is without saying so is left out."""
    said = {key: value for key, value in values.items() if value not in (None, [])}
    return "{ " + ", ".join(f"{key} = {json.dumps(value)}" for key, value in said.items()) + " }"
