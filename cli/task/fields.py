"""Every field of a task file, read from the schema: the one source of comments and reference."""

import ast
import inspect
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from precad.common import task_schema
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
        inner = _table(field.annotation)
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


def _table(annotation: Any) -> type[BaseModel] | None:
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
        kind = "list of tables" if _table(annotation) else plain
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
