"""A recipe's centres, scales, fills and levels from what questions answered.

Answers are released, so constants made of them are public. A column that says its own
keeps them; so does one that nobody asked about. Levels that noise may have made go to
the input of all others.
"""

from pathlib import Path
from typing import Any

from pydantic import ValidationError

from precad.client.answers import Answered
from precad.common import Column, DataSection, Misconfiguration

_QUARTILES = 1.349
"""Standard deviations between a normal distribution's quartiles."""
_DIGITS = 3
"""Of a centre and a scale, of which the scale's last decimals say nothing."""
_ASKED = "ask again with a larger ε, or write it into the recipe"


class Statistics:
    """The answers in a file, by column.

    Raises Misconfiguration: the file can't be read, or isn't such a one.
    """

    def __init__(self, path: Path) -> None:
        try:
            found = Answered.model_validate_json(path.read_bytes())
        except (OSError, ValidationError):
            raise Misconfiguration(
                "--from-statistics",
                path,
                "must be what precad ask answer --json prints, written to a file",
            ) from None
        # Of some records alone an answer isn't the column's.
        columns = {
            query.name: query.column
            for query in found.queries
            if not (query.where or query.by or query.across)
        }
        self._said = {
            (columns[each.query], each.of): each
            for each in found.answers
            if each.query in columns and each.measure in ("count", "value")
        }

    def recipe(self, written: DataSection) -> DataSection:
        """Return the recipe with what the answers say of its columns.

        Raises Misconfiguration: noise hides a column's scale, or all of its levels.
        """
        columns = tuple(
            column.model_copy(
                update=self._levels(column) if column.levels else self._numbers(column)
            )
            for column in written.columns
        )
        return written.model_copy(update={"columns": columns})

    def counts(self, column: Column) -> str:
        """Return how often each level was counted, as ``class_weights`` takes it."""
        known = {level: self._value(column, level) for level in column.levels}
        return ",".join(
            f"{level}={max(1.0, value or 0.0):.0f}" for level, value in known.items()
        )

    def _value(self, column: Column, of: str) -> float | None:
        answer = self._said.get((column.name, of))
        return None if answer is None else answer.value

    def _numbers(self, column: Column) -> dict[str, Any]:
        """Return centre, scale and fill of a numeric column."""
        centre, scale = (
            self._value(column, of) for of in ("mean", "standard deviation")
        )
        if centre is None:
            centre, low, high = (
                self._value(column, f"quantile {rank}") for rank in (0.5, 0.25, 0.75)
            )
            if low is not None and high is not None:
                scale = (high - low) / _QUARTILES
        if centre is None or scale is None:
            return {}
        if scale <= 0.0:
            raise Misconfiguration(f"column {column.name}, scale", scale, _ASKED)
        scale = float(f"{scale:.{_DIGITS}g}")
        known: dict[str, Any] = {"fill": float(f"{centre:.{_DIGITS + 3}g}")}
        if (column.centre, column.scale) == (0.0, 1.0):
            known |= {"centre": known["fill"], "scale": scale}
        if column.fill is not None:
            del known["fill"]
        return known

    def _levels(self, column: Column) -> dict[str, Any]:
        """Return a categorical column's levels that noise alone wouldn't have made."""
        counts = {level: self._said.get((column.name, level)) for level in column.levels}
        if not any(counts.values()):
            return {}
        kept = [level for level, each in counts.items() if each is None or each.low > 0.0]
        if not kept:
            raise Misconfiguration(f"column {column.name}, levels", [], _ASKED)
        most = max(kept, key=lambda level: self._value(column, level) or 0.0)
        return {"levels": tuple(kept), "fill_level": column.fill_level or most}
