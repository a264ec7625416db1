"""Results on disk: one JSON file an experiment and scale, written anew after each cell.

Several runs may write to one file: each takes up what the others have added, and adds
to it.
"""

import json
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from precad.common.errors import Misconfiguration
from precad.common.files import waiting_lock, write_file
from research.study.experiment import Result, Scale, Settings

FORMAT = "precad-experiment-1"


class Kept:
    """The results of one experiment at one scale, as its file has them.

    Args:
        folder: made if it isn't there.
        name: the experiment's.
        scale: the scale.

    Raises:
        Misconfiguration: the file is another one, or damaged.
    """

    def __init__(self, folder: Path, name: str, scale: Scale) -> None:
        self._path = folder / f"{name}-{scale}.json"
        self._head = {"format": FORMAT, "experiment": name, "scale": str(scale)}
        self._environments: list[dict[str, Any]] = []
        self._rows: dict[str, dict[str, Any]] = {}
        self._read()

    def _read(self) -> None:
        if not self._path.exists():
            return
        try:
            document = json.loads(self._path.read_text("utf-8"))
            head = {key: document[key] for key in self._head}
            rows = {key_of(row["settings"]): row for row in document["cells"]}
            self._environments = list(document["environments"])
        except (OSError, ValueError, LookupError, TypeError):
            head, rows = {}, {}
        if head != self._head:
            raise Misconfiguration(
                "--output",
                str(self._path),
                "holds no results of this experiment: move it away",
            )
        self._rows = rows

    @property
    def path(self) -> Path:
        """The file."""
        return self._path

    def of(self, cells: list[Settings]) -> list[Result]:
        """Results of those cells that were measured, in their order."""
        found = [self._rows.get(key_of(cell)) for cell in cells]
        return [
            Result(row["settings"], row["values"], row["seconds"])
            for row in found
            if row
        ]

    def missing(self, cells: list[Settings]) -> list[Settings]:
        """Cells that weren't measured yet."""
        return [cell for cell in cells if key_of(cell) not in self._rows]

    def add(self, result: Result, environment: Mapping[str, Any]) -> None:
        """Keep one beside what other runs have added; the file appears whole or stays as it was."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        # Windows has no such lock, and a result that is there must not be lost for
        # that.
        alone = sys.platform != "win32"
        with waiting_lock(self._path.parent) if alone else nullcontext():
            self._read()
            self._write(result, environment)

    def _write(self, result: Result, environment: Mapping[str, Any]) -> None:
        if dict(environment) not in self._environments:
            self._environments.append(dict(environment))
        self._rows[key_of(result.settings)] = {
            "settings": dict(result.settings),
            "values": dict(result.values),
            "seconds": round(result.seconds, 2),
            "environment": self._environments.index(dict(environment)),
        }
        lines = ",\n  ".join(
            json.dumps(row, allow_nan=False) for row in self._rows.values()
        )
        head = json.dumps(self._head | {"environments": self._environments}, indent=1)
        text = f'{head[:-2]},\n "cells": [\n  {lines}\n ]\n}}\n'
        write_file(self._path, text.encode(), mode=0o644)


def key_of(settings: Settings) -> str:
    """What tells two cells apart."""
    return json.dumps(dict(settings), sort_keys=True, allow_nan=False)
