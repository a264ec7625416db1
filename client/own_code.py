"""A person's own code, as settings and commands name it: MODULE:NAME, from this folder too."""

import importlib
import sys
from pathlib import Path
from typing import Any

from precad.common.errors import Misconfiguration


def own_object(field: str, place: str, folder: Path | None = None) -> Any:
    """What MODULE:NAME names.

    Args:
        field: for the error.
        place: MODULE:NAME.
        folder: where modules are looked for before the current folder.

    Raises:
        Misconfiguration: there is no such module, or no such name in it.
    """
    module, _, attribute = place.partition(":")
    usual = list(sys.path)
    sys.path[:0] = [str(each) for each in (folder, Path.cwd()) if each is not None]
    try:
        return getattr(importlib.import_module(module), attribute)
    except Exception as error:  # whatever a module does when it is imported
        raise Misconfiguration(
            field,
            place,
            f"can't be loaded ({type(error).__name__}: {error}): give MODULE:NAME, found from this "
            "folder",
        ) from error
    finally:
        sys.path[:] = usual


def own_model(place: str, folder: Path | None = None) -> Any:
    """The torch module that MODULE:NAME makes, called without arguments; see ``own_object``.

    Raises:
        Misconfiguration: it can't be made, or isn't a torch module.
    """
    from torch import nn  # noqa: PLC0415 -- seconds

    made = own_object("model", place, folder)
    if not isinstance(made, nn.Module):
        try:
            made = made()
        except Exception as error:  # whatever it does
            raise Misconfiguration(
                "model",
                place,
                f"can't be made ({type(error).__name__}: {error}): give MODULE:NAME, callable "
                "without arguments",
            ) from error
    if not isinstance(made, nn.Module):
        raise Misconfiguration(
            "model",
            place,
            f"gives a {type(made).__name__}: give a torch.nn.Module, or what makes one",
        )
    return made
