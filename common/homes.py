"""The names that a package shows, each loaded from its own module when it is asked for.

The package's ``__init__.pyi`` says where each name is at home, once, for type checkers
and for this module. So to take one name loads no other module: neither torch nor NumPy
where nothing is computed.
"""

import ast
from collections.abc import Callable
from importlib import import_module
from pathlib import Path


def shown_by(file: str) -> tuple[list[str], Callable[[str], object]]:
    """Return ``__all__`` and ``__getattr__`` of the package whose ``__file__`` is given.

    ``__getattr__`` raises AttributeError: there is no such name.
    """
    stub = Path(file).with_suffix(".pyi").read_text(encoding="utf-8")
    homes = {
        name.name: str(imported.module)
        for imported in ast.parse(stub).body
        if isinstance(imported, ast.ImportFrom)
        for name in imported.names
    }

    def shown(name: str) -> object:
        """Return the package's attribute of this name."""
        if name not in homes:
            raise AttributeError(f"{file} shows no {name}")
        return getattr(import_module(homes[name]), name)

    return list(homes), shown
