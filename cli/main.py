"""The `precad` command line: its commands, and options made from annotations.

Commands are functions under ``command``, in modules that are loaded when a command is
asked for. What several of them check or print is here too.
"""

import errno
import functools
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from importlib import import_module
from inspect import Parameter, signature
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import click

from precad.cli import said
from precad.common import (
    Digest,
    Misconfiguration,
    PrecadError,
    StorageFailure,
    json_of,
    this_build,
    without_logins,
)

COMMANDS = {
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
    "ask": ("ask_command", "Ask records a question in place of a training."),
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
        "backup_command",
        "Copy a server's state while it runs, and check the copy.",
    ),
    "kit": ("kit", "One archive for a party: task, settings, how to start."),
    "report": ("report", "One document of a training for an auditor."),
}
"""By name, in the order in which a newcomer wants to know them: the module in
``precad.cli`` that holds the command, and its line in the list of commands."""
EXTRAS = {
    "report": "report",
    "join": "client",
    "simulate": "simulation",
    "serve": "server",
    "backup": "server",
}
"""By command: the extra of precad that brings all packages that the command needs.
Where another command lacks a package, the error names the least extra that has it."""


_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}
"""What writing fails with where a disk is full or broken."""


class ErrorsInOneLine(click.Group):
    """A group of commands that end an error with one line and an exit status."""

    def invoke(self, ctx: click.Context) -> object:
        """Run the command.

        A PrecadError becomes one line on stderr; the exit status is 2 for a wrong
        value, else 1. Raises UsageError: click refuses the command line; the error
        shows no login of a URL.
        """
        try:
            try:
                return super().invoke(ctx)
            finally:
                sys.stdout.flush()
        except click.UsageError as error:
            message = error.format_message()
            shown = without_logins(message)
            if shown == message:
                raise
            raise click.UsageError(shown, error.ctx) from None
        except (PrecadError, ModuleNotFoundError) as error:
            name = ctx.invoked_subcommand or ""
            sys.exit(said(error, f"precad {name}", EXTRAS.get(name)))
        except OSError as error:
            # A file that can't be written is said with its name where it is written.
            if error.errno not in _FULL or error.filename is not None:
                raise
            # What is still held back would fail again as the process ends.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(
                said(StorageFailure(f"the output can't be written: {error.strerror}"))
            )


class _OptionsOnce(click.Command):
    """A command that refuses an option that is given twice."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the command line. Raises UsageError: an option is given twice."""
        _, _, given = self.make_parser(ctx).parse_args([*args])
        for option, times in Counter(given).items():
            once = isinstance(option, click.Option) and not (
                option.multiple or option.is_flag
            )
            if once and times > 1:
                raise click.UsageError(
                    f"{option.opts[0]} is given {times} times: give it once", ctx
                )
        return super().parse_args(ctx, args)


class _OnDemand(ErrorsInOneLine):
    """Loads a command's module only when that command is asked for.

    So the process of a dealer holds no accountant and no database.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 -- click's
        """Return the names of all commands."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Load and return the command of that name; None if there is none.

        Raises UsageError: the demo is asked for, which a wheel doesn't have.
        """
        if cmd_name == "demo":
            raise click.UsageError(
                "run `make demo` in a clone of the repository; installed alone, try"
                " `precad simulate` or `precad setup`"
            )
        if cmd_name not in COMMANDS:
            return None
        module, _ = COMMANDS[cmd_name]
        loaded = getattr(import_module(f"precad.cli.{module}"), cmd_name)
        assert isinstance(loaded, click.Command)
        return loaded

    def format_commands(
        self,
        ctx: click.Context,  # noqa: ARG002
        formatter: click.HelpFormatter,
    ) -> None:
        """Write the list of commands without loading any of them."""
        rows = [(name, summary) for name, (_, summary) in COMMANDS.items()]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def _print_version(
    context: click.Context, _option: click.Parameter, asked: bool
) -> None:
    """Print which build this is and end, for ``precad --version``."""
    if asked:
        click.echo(this_build())
        context.exit()


@click.group(name="precad", cls=_OnDemand, context_settings={"show_default": True})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Print version and commit, and end.",
)
def app() -> None:
    """Train one model together without showing anyone your records."""


PATH = click.Path(path_type=Path)
"""The type of options whose value is a path."""
AsJson = Annotated[bool, "One JSON document on stdout, nothing else.", "--json"]
"""The option ``--json``."""
ARGUMENT = "argument"
"""Marks a parameter that is an argument of the command line and no option."""
REQUIRED = {"required": True}
"""Marks an option that may be repeated and has to be given."""

JsonObject = dict[str, Any]
"""Plain values by name."""
_Body = Callable[..., None]
"""The function that a command runs."""


def command(
    group: click.Group | None = None, name: str | None = None
) -> Callable[[_Body], click.Command]:
    """Return a decorator that makes a function a command, of ``group`` if it is given.

    The command has an option for each parameter of the function. Each parameter is
    annotated ``Annotated[type, help, …]``: after the help may follow the option's own
    names, a type of click's, what else click takes as a mapping, or ``ARGUMENT``. A
    parameter whose type is a dataclass stands for that class's fields, and gets an
    instance of it. ``name`` is the command's; the function's own unless given. The
    function's docstring is the command's help.
    """

    def make_command(body: _Body) -> click.Command:
        """Make ``body`` a command: what ``command`` returns."""
        # By parameter that stands for a dataclass: that class.
        request_classes = {
            parameter: hint
            for parameter, hint in get_type_hints(body).items()
            if isinstance(hint, type) and is_dataclass(hint)
        }

        @functools.wraps(body)
        def run(**values: object) -> None:
            # Click gives the value of every option by its parameter's name.
            for parameter, request_class in request_classes.items():
                field_values = {
                    field.name: values.pop(field.name)
                    for field in fields(request_class)
                }
                values[parameter] = request_class(**field_values)
            body(**values)

        with_options: _Body = run
        # The first decorator that is written is applied last.
        for parameter, annotation in reversed(list(_parameters(body))):
            with_options = _option(parameter, *get_args(annotation))(with_options)
        return (group or click).command(name, _OptionsOnce)(with_options)

    return make_command


def _parameters(
    annotated: Callable[..., object],
) -> Iterator[tuple[Parameter, object]]:
    """Yield each parameter of a function with its annotation.

    A parameter whose type is a dataclass is replaced by the fields of that class.
    """
    hints = get_type_hints(annotated, include_extras=True)
    for parameter in signature(annotated).parameters.values():
        annotation = hints[parameter.name]
        if isinstance(annotation, type) and is_dataclass(annotation):
            yield from _parameters(annotation)
        else:
            yield parameter, annotation


def _option(
    parameter: Parameter,
    value_type: object,
    text: str,
    *extras: object,
) -> Callable[[_Body], _Body]:
    """Return the click decorator for one parameter of a command.

    ``value_type``, ``text`` and ``extras`` are the parts of its ``Annotated``: the
    type, the help, and what may follow it (see ``command``). By its type an option is

    - ``tuple[T, ...]``: one that may be repeated, or left out;
    - ``bool``: a flag;
    - ``T | None``: one that may be left out;
    - ``Literal``: a choice;
    - anything else: one that has to be given, if it has no default.

    Extras have the last word.
    """
    names = [extra for extra in extras if isinstance(extra, str)]
    parts = get_args(value_type)
    has_default = parameter.default is not Parameter.empty
    # T, where the type is T | None or tuple[T, ...].
    plain_type = value_type
    if parts and get_origin(value_type) is not Literal:
        plain_type = next(part for part in parts if part not in (NoneType, ...))
    settings: JsonObject = {"help": text, "type": plain_type}
    if plain_type is Path:
        settings["type"] = PATH
    elif get_origin(plain_type) is Literal:
        settings["type"] = click.Choice(get_args(plain_type))
    if get_origin(value_type) is tuple:
        settings["multiple"] = True
    elif plain_type is bool:
        settings = {"help": text, "is_flag": True}
    else:
        settings["required"] = not has_default and NoneType not in parts
    if has_default:
        settings["default"] = parameter.default
    for extra in extras:
        if isinstance(extra, Mapping):
            settings |= extra
        elif not isinstance(extra, str):
            settings["type"] = extra
    if names == [ARGUMENT]:
        if settings.pop("multiple", False):
            settings["nargs"] = -1
        return click.argument(parameter.name, **settings)
    if not names:
        names = ["--" + parameter.name.replace("_", "-")]
    return click.option(*names, parameter.name, **settings)


def digest_of(text: str) -> Digest:
    """Return the digest that 64 hexadecimal digits write; serves as a type of options.

    Raises Misconfiguration: the text is no such digits; the error doesn't quote it.
    """
    try:
        return Digest(bytes.fromhex(text))
    except (ValueError, Misconfiguration):
        # People pass tokens and digests together, and may give one for the other: a
        # token must not be shown.
        raise Misconfiguration(
            "digest", "…", "give its 64 hexadecimal digits, as shown"
        ) from None


def lacking(
    folder: Path,
    file: str,
    *,
    lacks: str,
) -> Misconfiguration:
    """Return the error of a folder without a file (a pattern of its name).

    It names the folders one or two below that have it, where there are any.
    """
    found = (*folder.glob(f"*/{file}"), *folder.glob(f"*/*/{file}"))
    below = " or ".join(sorted({str(path.parent) for path in found}))
    return Misconfiguration(
        "FOLDER",
        folder,
        f"{lacks}; give {below or 'the folder that the settings name'}",
    )


def require_folder(option: str, folder: Path, path: Path | None = None) -> None:
    """Check that a folder is there before something is written into it.

    ``path`` is what the person gave, where that isn't the folder itself. Raises
    Misconfiguration, of ``option``: there is no such folder.
    """
    if not folder.is_dir():
        raise Misconfiguration(
            option, path or folder, "there is no such folder; make it first"
        )


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
"""Ends of the names of files that a plot can be written to."""


def require_writable(option: str, path: Path | None, *, replaced: bool = False) -> None:
    """Check that a new file can be written, before the work whose result it gets.

    ``replaced`` takes one that exists already. The file of ``--plot`` must be a picture
    too. Raises Misconfiguration, of ``option``: it can't be written, exists already, or
    isn't a picture.
    """
    if path is None:
        return
    if option == "--plot" and path.suffix.lower() not in _PICTURES:
        raise Misconfiguration(
            option, path, "give a file that ends with .png, .pdf or .svg"
        )
    require_folder(option, path.parent, path)
    if path.is_file() and not replaced:
        raise Misconfiguration(
            option, path, "exists already: name a new file, or remove it"
        )
    changed = path if path.exists() else path.parent
    if path.is_dir() or not os.access(changed, os.W_OK):
        raise Misconfiguration(option, path, "can't be written; give another place")


def print_json(document: object, *, indent: int | None = None) -> None:
    """Print one document on stdout, as ``json_of`` writes it."""
    click.echo(json_of(document, indent=indent))


def option_of(name: str) -> str:
    """Return the name of the option that sets the field ``name`` of a request."""
    return "--continue" if name == "weights" else "--" + name.replace("_", "-")


def require_given(
    request: object,
    names: Iterable[str],
    *,
    instead: str = "a task with --task",
) -> None:
    """Check that each of a request's options is given, where nothing else says them.

    ``instead`` says what could. Raises Misconfiguration: one is None.
    """
    for name in names:
        if getattr(request, name) is None:
            raise Misconfiguration(name, None, f"give {option_of(name)}, or {instead}")


def refuse_given(
    request: object,
    names: Iterable[str],
    *,
    why: str = "the task says it",
    by: str = "--task",
) -> None:
    """Check that none of a request's options is given beside ``by``, which sets it.

    ``why`` begins the error's remedy. Raises Misconfiguration: one isn't None.
    """
    for name in names:
        value = getattr(request, name)
        if value is not None:
            raise Misconfiguration(
                name, value, f"{why}: leave {option_of(name)} out, or {by}"
            )
