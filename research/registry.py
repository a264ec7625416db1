"""Parts by name: what an experiment is made of, and what a user's own file adds to it."""

from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TypeVar

from precad.common.errors import Misconfiguration

Part = TypeVar("Part")


class Registry(Mapping[str, Part]):
    """All parts of one kind, in the order of their registration.

    Args:
        kind: what they are, in an error's words: ``attack``.
        modules: those that register the parts that come with precad; loaded when first
            asked.
    """

    def __init__(self, kind: str, *modules: str) -> None:
        self._kind, self._modules = kind, list(modules)
        self._parts: dict[str, Part] = {}

    def register(self, name: str) -> Callable[[Part], Part]:
        """Makes what it decorates, a function or a class, the part of this name.

        Raises:
            Misconfiguration: another part has the name.
        """

        def keep(part: Part) -> Part:
            if name in self._parts:
                raise Misconfiguration(
                    self._kind, name, "is registered already: choose another"
                )
            self._parts[name] = part
            return part

        return keep

    def __getitem__(self, name: str) -> Part:
        """The part.

        Raises:
            Misconfiguration: there is none of this name.
        """
        parts = self._loaded()
        if name not in parts:
            raise Misconfiguration(self._kind, name, f"use one of {', '.join(parts)}")
        return parts[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._loaded())

    def __len__(self) -> int:
        return len(self._loaded())

    def _loaded(self) -> dict[str, Part]:
        while self._modules:
            import_module(self._modules.pop(0))
        return self._parts


_loaded_files: set[Path] = set()


def load_plugins(files: tuple[Path, ...]) -> None:
    """Run the files of one's own, each once a process, so that they register what they define.

    Raises:
        Misconfiguration: there is no such file.
    """
    for file in files:
        if file.resolve() in _loaded_files:
            continue
        spec = spec_from_file_location(f"precad_plugin_{len(_loaded_files)}", file)
        if not file.is_file() or spec is None or spec.loader is None:
            raise Misconfiguration(
                "--plugin", str(file), "give a Python file of your own"
            )
        spec.loader.exec_module(module_from_spec(spec))
        _loaded_files.add(file.resolve())
