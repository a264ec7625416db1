"""A task as a TOML file with a comment at each field, and the reference of every field."""

import ast
import inspect
import json
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Annotated, Any, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from precad.common import task_schema
from precad.common.task import Task
from precad.common.task_schema import Description

_NAMES = {float: "number", int: "whole number", str: "text", bool: "true or false"}
_BOUNDS = {"gt": "above", "ge": "at least", "lt": "below", "le": "at most"}
_LENGTHS = {"min_length": "at least", "max_length": "at most"}


@dataclass(frozen=True, slots=True)
class Entry:
    """One field.

    Attributes:
        section: its table, with dots; empty for the top.
        name: its key.
        kind: what it takes, in words.
        default: as TOML; None where it is required.
        says: what it means.
    """

    section: str
    name: str
    kind: str
    default: str | None
    says: str


def entries() -> list[Entry]:
    """All fields, top first, then table by table in the schema's order."""
    return list(_of(Description, "", _written()))


def _of(model: type[BaseModel], section: str, said: dict[str, str]) -> Iterator[Entry]:
    tables = {}
    for name, field in model.model_fields.items():
        inner = _table_of(field.annotation)
        if inner is not None:
            tables[f"{section}.{name}".lstrip(".")] = inner
        if inner is None or get_origin(field.annotation) is tuple:
            default = None if field.is_required() else _toml(field.get_default())
            yield Entry(section, name, _kind(field), default, said[f"{model.__name__}.{name}"])
    for whole, inner in tables.items():
        yield from _of(inner, whole, said)


def _written() -> dict[str, str]:
    """The text under each field of the schema's source, by class and field."""
    found = {}
    for node in ast.parse(inspect.getsource(task_schema)).body:
        if not isinstance(node, ast.ClassDef):
            continue
        for here, after in zip(node.body, [*node.body[1:], None], strict=True):
            if not isinstance(here, ast.AnnAssign) or not isinstance(here.target, ast.Name):
                continue
            text = after.value if isinstance(after, ast.Expr) else None
            said = text.value if isinstance(text, ast.Constant) else ""
            found[f"{node.name}.{here.target.id}"] = " ".join(str(said).split())
    return found


def _table_of(annotation: Any) -> type[BaseModel] | None:
    """The table that a field is, or holds many of."""
    for each in (annotation, *get_args(annotation)):
        if isinstance(each, type) and issubclass(each, BaseModel):
            return each
    return None


def _kind(field: FieldInfo) -> str:
    annotation, args = field.annotation, get_args(field.annotation)
    bounds = [str(each) for each in field.metadata]
    if get_origin(annotation) is tuple:
        text = get_origin(args[0]) is Annotated and get_args(args[0])[0] is str
        plain = "list of texts" if text else "list of whole numbers"
        kind = "list of tables" if _table_of(annotation) else plain
    elif annotation in _NAMES:
        kind = _NAMES[annotation]
    elif all(isinstance(each, str) for each in args):
        kind = " or ".join(f'`"{each}"`' for each in args)
    else:
        inner = next(each for each in args if each is not type(None))
        kind = _NAMES[get_args(inner)[0] if get_args(inner) else inner]
        bounds += [str(each) for part in get_args(inner)[1:] for each in part.metadata]
    return ", ".join([kind, *_limits(bounds)])


def _limits(bounds: list[str]) -> Iterator[str]:
    for name, words in (_BOUNDS | _LENGTHS).items():
        for bound in bounds:
            found = re.search(rf"\b{name}=([-0-9.e]+)", bound)
            if found:
                what = " long" if name in _LENGTHS else ""
                value = float(found[1])
                exact = f"{value:,.0f}" if value == int(value) else f"{value:g}"
                yield f"{words} {exact}{what}"


def _toml(value: Any) -> str:
    """A plain value as TOML; "none" for what can be left out alone."""
    if value is None or value is PydanticUndefined:
        return "none"
    return json.dumps(value, ensure_ascii=False)


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


_HEAD = """# Every field of a task file

Generated by `precad task reference` from the schema (`common/task_schema.py`): change it there. A
task is one TOML file that owners, both servers and the dealer hold alike; its digest is in every
message. `precad task new` writes one that fits, `precad task check` says what is wrong with one,
`precad task show` what one guarantees. Unknown keys are refused. The symbols are the papers'.
"""


def reference() -> str:
    """The document, as Markdown."""
    parts = [_HEAD]
    for section, fields in groupby(entries(), key=lambda entry: entry.section):
        title = f"`[{section}]`" if section else "At the top"
        parts.append(f"## {title}\n")
        parts.append("| field | takes | without it | means |\n| --- | --- | --- | --- |")
        for each in fields:
            default = "required" if each.default is None else f"`{each.default}`"
            says = each.says.replace("|", "\\|")
            parts[-1] += f"\n| `{each.name}` | {each.kind} | {default} | {says} |"
        parts[-1] += "\n"
    return "\n".join(parts)
