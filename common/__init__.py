"""Code that clients, the two servers and the dealer share, one module an idea.

What stands here directly is the task, the model, the ring and a client's submission,
and what every process needs: errors, settings, files, time and its log. ``identity``
has certificates and mutual TLS, ``kernel`` the compiled arithmetic, and ``wire`` the
calls between processes.

Other parts take names from here: ``from precad.common import Task``. ``__init__.pyi``
says, to type checkers and to this file, in which module each is at home; that module
alone is loaded, when the name is asked for.
"""

import ast
from importlib import import_module
from pathlib import Path

_STUB = Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")
_HOMES = {
    name.name: imported.module
    for imported in ast.parse(_STUB).body
    if isinstance(imported, ast.ImportFrom)
    for name in imported.names
}


def __getattr__(name: str) -> object:
    """Return a name from the module that it is at home in.

    Raises AttributeError: there is no such name.
    """
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(home), name)
