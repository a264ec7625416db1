"""Options from annotations; options of several commands; `--task` or all its numbers."""

import functools
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, fields, is_dataclass
from inspect import Parameter, signature
from pathlib import Path
from types import NoneType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    TypeAlias,
    get_args,
    get_origin,
    get_type_hints,
)

import click

from precad.common.addresses import by_proxy
from precad.common.errors import Misconfiguration
from precad.common.identifiers import Digest, Role
from precad.common.terminal import say

if TYPE_CHECKING:
    from precad.common.task import Task
    from precad.common.wire.operator_connection import OperatorConnection

PATH = click.Path(path_type=Path)

json_option = click.option(
    "--json", "as_json", is_flag=True, help="One JSON document on stdout, nothing else."
)
AsJson: TypeAlias = Annotated[bool, "One JSON document on stdout, nothing else.", "--json"]
ARGUMENT = "argument"
"""Marks a parameter that isn't an option."""
REQUIRED = {"required": True}
"""Marks an option that may be repeated and has to be given."""


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command an option for each of its parameters.

    They are ``Annotated[type, help, …]``: after the help may follow the option's own names, a type
    of click's, what else click takes as a mapping, or ``ARGUMENT``. One whose type is a dataclass
    stands for that class's fields, and gets an instance.
    """
    hints = get_type_hints(command)
    requests = {name: each for name, each in hints.items() if is_dataclass(each)}

    @functools.wraps(command)
    def run(**given: Any) -> None:
        for name, request in requests.items():
            own = {field.name: given.pop(field.name) for field in fields(request)}
            given[name] = request(**own)  # type: ignore[operator]
        command(**given)

    asked: Callable[..., None] = run
    for parameter, kind in reversed(list(_parameters(command))):
        asked = _option(parameter, *get_args(kind))(asked)
    return asked


def _parameters(of: Callable[..., Any]) -> Iterator[tuple[Parameter, Any]]:
    """Each with what it is annotated with; those of a dataclass in its place."""
    hints = get_type_hints(of, include_extras=True)
    for parameter in signature(of).parameters.values():
        kind = hints[parameter.name]
        if is_dataclass(kind):
            yield from _parameters(kind)  # type: ignore[arg-type]
        else:
            yield parameter, kind


def _option(parameter: Parameter, kind: Any, text: str, *more: Any) -> Callable[..., Any]:
    """The option, or the argument."""
    names = tuple(each for each in more if isinstance(each, str))
    several, parts = get_origin(kind) is tuple, get_args(kind)
    plain = kind
    if parts and get_origin(kind) is not Literal:
        plain = next(each for each in parts if each not in (NoneType, ...))
    declared: dict[str, Any] = {"help": text, "type": plain}
    if get_origin(plain) is Literal:
        declared["type"] = click.Choice(get_args(plain))
    elif plain is Path:
        declared["type"] = PATH
    if several:
        declared["multiple"] = True
    elif plain is bool:
        declared = {"help": text, "is_flag": True}
    else:
        unsaid = parameter.default is Parameter.empty
        declared["required"] = unsaid and NoneType not in parts
    if parameter.default is not Parameter.empty:
        declared["default"] = parameter.default
    for each in more:
        if isinstance(each, Mapping):
            declared |= each
        elif not isinstance(each, str):
            declared["type"] = each
    if names == (ARGUMENT,):
        if declared.pop("multiple", False):
            declared["nargs"] = -1
        return click.argument(parameter.name, **declared)
    named = names or ("--" + parameter.name.replace("_", "-"),)
    return click.option(*named, parameter.name, **declared)


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedServer:
    """The server that an operator's command asks."""

    address: Annotated[str, "The server, as host:port.", ARGUMENT]
    server: Annotated[Literal["a", "b"], "Which one it must be."] = "a"
    identity: Annotated[Path, "The operator's folder, as `precad keys` writes it."]
    proxy: Annotated[
        str | None, "Of HTTP, http://[user:password@]host:port.", {"envvar": "PRECAD_PROXY"}
    ]

    def connection(self) -> "AbstractContextManager[OperatorConnection]":
        """Return the connection until the block ends. Raises Misconfiguration."""
        from precad.common.identity.credentials import Identity  # noqa: PLC0415
        from precad.common.wire.operator_connection import OperatorConnection  # noqa: PLC0415

        address, role = by_proxy(self.address, self.proxy), Role(f"server-{self.server}")
        return closing(OperatorConnection(address, role, Identity.load(self.identity)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """What a training is to be: the words that `precad plan` and `precad task new` share."""

    records: Annotated[str | None, "m: records of each owner, like 10x6000 or 3x500,1200,6x40."]
    owners: Annotated[int | None, "n, where --records gives one size for all."]
    epsilon: Annotated[float | None, "ε of a record against one curious server: gives σ."]
    noise_multiplier: Annotated[float | None, "σ, in place of --epsilon: gives ε."]
    delta: Annotated[float | None, "δ; with --records 1e-5 unless given."]
    rounds: Annotated[int | None, "T: rounds; with --records 200 unless given."]
    record_rate: Annotated[
        float | None,
        "p: a record is drawn with it; with --records 1/|D| of the largest, and .05 at least.",
    ]
    client_rate: Annotated[
        float | None, "q: an owner is drawn with it; with --records so that about 20 are."
    ]
    record_clip: Annotated[
        float | None, "R: bound on a record's gradient; with --records 1 unless given."
    ]
    client_clip: Annotated[
        float | None, "C: bound on an owner's update; with --records by what owners can sample."
    ]
    recipe: Annotated[
        Path | None, "How owners' tables become numbers: a file with the task's [data] section."
    ]
    architecture: Annotated[Literal["logistic", "mlp"] | None, "A built-in model."]
    features: Annotated[
        str | None, "Numbers in one record's input; with --model its shape, like 3x32x32."
    ]
    classes: Annotated[int | None, "How many labels there are; 1 for a number (regression)."]
    hidden: Annotated[int, "Hidden units of an mlp."] = 32
    model: Annotated[
        str | None, "Or a model of your own, MODULE:NAME, which is called without arguments."
    ]
    weights: Annotated[
        Path | None,
        "Public weights to start from (safetensors), for everybody to have beside the task's file.",
        "--from",
    ]
    validation: Annotated[
        Literal["crypten", "proof"],
        "How norms are checked: crypten needs a dealer, a third organisation, and holds against "
        "servers that follow the protocol; proof needs the two servers alone, and one that cheats "
        "learns no more of a record (docs/cheating-server.md).",
    ] = "crypten"


def digest_of(text: str) -> Digest:
    """Return the digest of 64 hexadecimal digits; a type of options. Raises Misconfiguration."""
    try:
        return Digest(bytes.fromhex(text))
    except (ValueError, Misconfiguration):
        # A token goes with a digest, and may be given in its place.
        raise Misconfiguration("digest", "…", "give its 64 hexadecimal digits, as shown") from None


_PICTURES = (".png", ".pdf", ".svg", ".jpg", ".jpeg", ".webp", ".eps", ".ps", ".tif", ".tiff")


def writable_picture(path: Path, option: str = "--plot") -> None:
    """Refuse a picture that can't be written, before the work that it is to show."""
    if path.suffix.lower() not in _PICTURES:
        raise Misconfiguration(option, str(path), "give a file that ends with .png, .pdf or .svg")
    folder = path.parent
    if not folder.is_dir():
        raise Misconfiguration(option, str(path), "there is no such folder; make it first")
    if path.is_dir() or not os.access(path if path.exists() else folder, os.W_OK):
        raise Misconfiguration(option, str(path), "can't be written; give another place")


def warn_of_clip(task: "Task", records: int | None = None) -> None:
    """Say on stderr where C arms attackers alone; an owner may hold as many ``records``."""
    from precad.common.roster import excess_of_clip  # noqa: PLC0415 -- NumPy

    if (text := excess_of_clip(task, records)) is not None:
        say(sys.stderr, f"! {text}", style="yellow")


def print_json(document: object, *, indent: int | None = None) -> None:
    """One document on stdout; what JSON hasn't (NaN, infinities) is null."""
    click.echo(json_of(document, indent=indent))


def json_of(document: object, *, indent: int | None = None) -> str:
    """The document as JSON; what JSON hasn't (NaN, infinities) is null."""
    from pydantic_core import to_jsonable_python  # noqa: PLC0415 -- `precad --help` needs none

    plain = to_jsonable_python(document, inf_nan_mode="null")
    return json.dumps(plain, indent=indent, allow_nan=False)


def option_of(name: str) -> str:
    """Return what an option is called that gives this word or number."""
    return "--from" if name == "weights" else "--" + name.replace("_", "-")


def require_given(given: Mapping[str, Any], names: Iterable[str]) -> None:
    """Refuse a number that is missing, where no task says it."""
    for name in names:
        if given[name] is None:
            raise Misconfiguration(name, None, f"give {option_of(name)}, or a task with --task")


def refuse_given(given: Mapping[str, Any], names: Iterable[str]) -> None:
    """Refuse a number beside the task that says it."""
    for name in names:
        if (value := given[name]) is not None:
            remedy = f"the task says it: leave {option_of(name)} out, or --task"
            raise Misconfiguration(name, value, remedy)
