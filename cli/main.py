"""`precad`: one command line for everybody who takes part, and options from annotations."""

import functools
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from importlib import import_module
from inspect import Parameter, signature
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import click
from pydantic_core import to_jsonable_python

from precad import __version__
from precad.cli.start import said
from precad.common.errors import Misconfiguration, PrecadError, without_logins
from precad.common.identifiers import Digest

COMMANDS = {
    "demo": ("demo", "A private training on real data, every part its own process."),
    "simulate": (
        "simulate_command",
        "Play a task's whole training in one process: no servers.",
    ),
    "plan": (
        "task_command",
        "What σ gives an ε, what ε a σ gives, and how many may be bad.",
    ),
    "task": (
        "task_command",
        "Make a task from what is wanted; check it; say what it promises.",
    ),
    "account": ("account", "What a run costs in privacy, against whom."),
    "certify": ("certify", "What bad owners, records or inputs can't change."),
    "keys": ("keys", "Make, renew, revoke and show keys and certificates."),
    "enrol": ("operate", "Who may enrol in a task."),
    "setup": ("kit", "Keys and settings of every party, all on one machine."),
    "serve": ("operate", "Run server A, server B or the dealer."),
    "doctor": ("owner_commands", "Find a data owner's mistakes before it enrols."),
    "join": (
        "owner_commands",
        "Take part in a training as a data owner, until it ends.",
    ),
    "predict": (
        "owner_commands",
        "What a trained model says of records, on this machine.",
    ),
    "evaluate": (
        "owner_commands",
        "How well a trained model does on records of your own.",
    ),
    "status": ("operate", "Where a server's training stands: for operators."),
    "health": ("operate", "Whether the server or dealer of this machine serves."),
    "allow": ("operate", "Let a training go on that waits for both operators."),
    "ledger": (
        "ledger_command",
        "Privacy ledgers: a server's, and a data owner's own.",
    ),
    "backup": (
        "ledger_command",
        "Copy a server's state while it runs, and check the copy.",
    ),
    "kit": ("kit", "One archive for a party: task, settings, how to start."),
    "report": ("report", "One document of a training for an auditor."),
    "audit": (
        "simulate_command",
        "Attack trainings as adversaries may, and bound ε from below.",
    ),
}
"""In the order of a newcomer's interest; each with its module, and what the list says
of it."""
EXTRAS = {
    "demo": "demo",
    "report": "report",
    "join": "client",
    **dict.fromkeys(("simulate", "audit"), "simulation"),
    **dict.fromkeys(("serve", "backup"), "server"),
}
"""The extra of a whole command; what another one lacks may be less."""


class ErrorsInOneLine(click.Group):
    """Commands whose errors are one line for a person, and an exit status."""

    def invoke(self, ctx: click.Context) -> object:
        """Run the command.

        A PrecadError is one line, and exit 2 for a wrong value, else 1.
        """
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            shown = without_logins(error.format_message())
            if shown == error.format_message():
                raise
            raise click.UsageError(shown, error.ctx) from None
        except (PrecadError, ModuleNotFoundError) as error:
            name = ctx.invoked_subcommand or ""
            sys.exit(said(error, f"precad {name}", EXTRAS.get(name)))


class _OnDemand(ErrorsInOneLine):
    """Loads a command when it is asked for: a dealer's process holds no accountant, no database."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 -- click's
        """All commands."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """One command."""
        if cmd_name not in COMMANDS:
            return None
        command = getattr(
            import_module(f"precad.cli.{COMMANDS[cmd_name][0]}"), cmd_name
        )
        assert isinstance(command, click.Command)
        return command

    def format_commands(
        self,
        ctx: click.Context,  # noqa: ARG002
        formatter: click.HelpFormatter,
    ) -> None:
        """List the commands without loading any."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, said) for name, (_, said) in COMMANDS.items()])


@click.group(name="precad", cls=_OnDemand, context_settings={"show_default": True})
@click.version_option(
    __version__, message=f"precad {__version__}", help="Print the version and end."
)
def app() -> None:
    """Train one model together without showing anyone your records."""


PATH = click.Path(path_type=Path)
_JSON = "One JSON document on stdout, nothing else."
json_option = click.option("--json", "as_json", is_flag=True, help=_JSON)
AsJson = Annotated[bool, _JSON, "--json"]
ARGUMENT = "argument"
"""Marks a parameter that isn't an option."""
REQUIRED = {"required": True}
"""Marks an option that may be repeated and has to be given."""


def command(
    group: click.Group | None = None, name: str | None = None
) -> Callable[[Callable[..., None]], click.Command]:
    """Make a function a command, of this group if any, with an option for each of its parameters.

    They are ``Annotated[type, help, …]``: after the help may follow the option's own
    names, a type of click's, what else click takes as a mapping, or ``ARGUMENT``. One
    whose type is a dataclass stands for that class's fields, and gets an instance.
    """

    def made(body: Callable[..., None]) -> click.Command:
        requests = {
            of: each for of, each in get_type_hints(body).items() if is_dataclass(each)
        }

        @functools.wraps(body)
        def run(**given: Any) -> None:
            for of, request in requests.items():
                own = {field.name: given.pop(field.name) for field in fields(request)}
                given[of] = request(**own)  # type: ignore[operator]
            body(**given)

        asked: Callable[..., None] = run
        for parameter, kind in reversed(list(_parameters(body))):
            asked = _option(parameter, *get_args(kind))(asked)
        return (group or click).command(name)(asked)

    return made


def _parameters(of: Callable[..., Any]) -> Iterator[tuple[Parameter, Any]]:
    """Each with what it is annotated with; those of a dataclass in its place."""
    hints = get_type_hints(of, include_extras=True)
    for parameter in signature(of).parameters.values():
        kind = hints[parameter.name]
        if is_dataclass(kind):
            yield from _parameters(kind)  # type: ignore[arg-type]
        else:
            yield parameter, kind


def _option(
    parameter: Parameter,
    kind: Any,
    text: str,
    *more: Any,
) -> Callable[..., Any]:
    names = tuple(each for each in more if isinstance(each, str))
    parts = get_args(kind)
    given = parameter.default is not Parameter.empty
    plain = kind
    if parts and get_origin(kind) is not Literal:
        plain = next(each for each in parts if each not in (NoneType, ...))
    declared: dict[str, Any] = {"help": text, "type": PATH if plain is Path else plain}
    if get_origin(plain) is Literal:
        declared["type"] = click.Choice(get_args(plain))
    if get_origin(kind) is tuple:
        declared["multiple"] = True
    elif plain is bool:
        declared = {"help": text, "is_flag": True}
    else:
        declared["required"] = not given and NoneType not in parts
    if given:
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


def digest_of(text: str) -> Digest:
    """Return the digest of 64 hexadecimal digits; a type of options.

    Raises Misconfiguration.
    """
    try:
        return Digest(bytes.fromhex(text))
    except (ValueError, Misconfiguration):
        # A token goes with a digest, and may be given in its place.
        raise Misconfiguration(
            "digest", "…", "give its 64 hexadecimal digits, as shown"
        ) from None


def require_folder(option: str, folder: Path, path: Path | None = None) -> None:
    """Refuse a folder that isn't there, or a path in it."""
    if not folder.is_dir():
        remedy = "there is no such folder; make it first"
        raise Misconfiguration(option, str(path or folder), remedy)


_PICTURES = (
    ".png",
    ".pdf",
    ".svg",
    ".jpg",
    ".jpeg",
    ".webp",
    ".eps",
    ".ps",
    ".tif",
    ".tiff",
)


def require_writable(option: str, path: Path | None) -> None:
    """Refuse a file that can't be written, before the work that it shows; --plot's is a picture."""
    if path is None:
        return
    if option == "--plot" and path.suffix.lower() not in _PICTURES:
        raise Misconfiguration(
            option, str(path), "give a file that ends with .png, .pdf or .svg"
        )
    require_folder(option, path.parent, path)
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise Misconfiguration(
            option, str(path), "can't be written; give another place"
        )


def json_of(document: object, *, indent: int | None = None) -> str:
    """The document as JSON; what JSON hasn't (NaN, infinities) is null."""
    plain = to_jsonable_python(document, inf_nan_mode="null")
    return json.dumps(plain, indent=indent, allow_nan=False)


def print_json(document: object, *, indent: int | None = None) -> None:
    """One document on stdout, as ``json_of`` writes it."""
    click.echo(json_of(document, indent=indent))


def option_of(name: str) -> str:
    """Return what the option is called that gives this word or number."""
    return "--from" if name == "weights" else "--" + name.replace("_", "-")


def require_given(given: Mapping[str, Any], names: Iterable[str]) -> None:
    """Refuse a number that is missing, where no task says it."""
    for name in names:
        if given[name] is None:
            raise Misconfiguration(
                name, None, f"give {option_of(name)}, or a task with --task"
            )


def refuse_given(
    of: Mapping[str, Any],
    names: Iterable[str],
    *,
    why: str = "the task says it",
    by: str = "--task",
) -> None:
    """Refuse a number beside the task, or another option, that says it."""
    for name in names:
        value = of[name]
        if value is not None:
            raise Misconfiguration(
                name, value, f"{why}: leave {option_of(name)} out, or {by}"
            )
