"""Evidence in pieces: each is measured once and kept, so that a run goes on."""

import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from precad.common.errors import Misconfiguration
from precad.common.files import write_file

Measure = Callable[..., Mapping[str, Any]]
"""A piece's values of its settings, given by name; both are plain values."""


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What one claim rests on.

    Attributes:
        claim: It, in a sentence.
        measure: Measures a piece.
        pieces: The settings of every piece.
    """

    claim: str
    measure: Measure
    pieces: tuple[Mapping[str, Any], ...]

    def settings(self, draws: int | None) -> list[dict[str, Any]]:
        """Return every piece's settings, with another number of draws if it is given."""
        other = {} if draws is None else {"draws": draws}
        return [{**piece, **other} for piece in self.pieces]


def run(
    evidence: Evidence, path: Path, *, draws: int | None = None
) -> Iterable[dict[str, Any]]:
    """Yield all pieces, those measured now too; the file is whole after each.

    Args:
        evidence: What to measure.
        path: Its file; what it has isn't measured again.
        draws: In place of the pieces' own number.

    Raises:
        Misconfiguration: the file holds something else.
    """
    kept = _kept(path, evidence.claim)
    for settings in evidence.settings(draws):
        found = next((one for one in kept if one["settings"] == settings), None)
        if found is None:
            start = time.perf_counter()
            values = dict(evidence.measure(**settings))
            seconds = round(time.perf_counter() - start, 1)
            found = {"settings": settings, "values": values, "seconds": seconds}
            # What another number of draws gave for the same piece gives way.
            kept = [one for one in kept if not _same(one["settings"], settings)]
            kept.append(found)
            _write(path, evidence.claim, kept)
        yield found


def _same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether two pieces differ in their number of draws at most."""
    return {**one, "draws": 0} == {**other, "draws": 0}


def _kept(path: Path, claim: str) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    try:
        document = json.loads(path.read_text("utf-8"))
        if document["claim"] == claim:
            return list(document["pieces"])
    except (OSError, ValueError, LookupError, TypeError):
        pass
    raise Misconfiguration("--output", str(path), "holds other results: move it away")


def _write(path: Path, claim: str, pieces: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ",\n  ".join(json.dumps(piece, allow_nan=False) for piece in pieces)
    text = f'{{\n "claim": {json.dumps(claim)},\n "pieces": [\n  {lines}\n ]\n}}\n'
    write_file(path, text.encode(), mode=0o644)
