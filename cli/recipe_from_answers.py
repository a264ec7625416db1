"""A recipe's centres, scales, fills and levels from what questions answered.

Answers are released, so constants made of them are public. What a column says itself
stays; so does a column that nobody asked about. Levels that noise may have made go to
the input of all others.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from precad.cli import Wishes
from precad.client.results import Answer, Answered
from precad.common import Column, DataSection, Misconfiguration

AnswersByColumn = Mapping[str | None, Mapping[str, Answer]]
"""Of a column, what was answered by what it is of."""
ANSWERED = "answers"
"""In place of --balance's shares: those of --from-statistics."""
_QUARTILES = 1.349
"""Standard deviations between a normal distribution's quartiles."""


def with_answers(
    wishes: Wishes, recipe: DataSection | None
) -> tuple[Wishes, DataSection]:
    """Return wishes and recipe with what --from-statistics says.

    Raises Misconfiguration: there is no recipe, the file can't be used, or noise hides
    a column's scale, or all of its levels.
    """
    path = wishes.from_statistics
    if path is None or recipe is None:
        remedy = "fills in a recipe: give --recipe too"
        raise Misconfiguration("--from-statistics", path, remedy)
    answers = answers_by_column(path)
    if wishes.balance == ANSWERED:
        wishes = replace(wishes, balance=counts_of(recipe.target, answers))
    return wishes, recipe_of(recipe, answers)


def answers_by_column(path: Path) -> AnswersByColumn:
    """Return the answers in a file that are of all records.

    Raises Misconfiguration: it isn't what `precad ask answer --json` prints.
    """
    try:
        found = Answered.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        remedy = "must be what precad ask answer --json prints, written to a file"
        raise Misconfiguration("--from-statistics", path, remedy) from None
    queries = {query.name: query for query in found.queries}
    answers: dict[str | None, dict[str, Answer]] = defaultdict(dict)
    for each in found.answers:
        query = queries.get(each.query)
        if query and not (
            query.where or query.by or query.across or each.measure == "share"
        ):
            answers[query.column][each.of] = each
    return answers


def recipe_of(written: DataSection, answers: AnswersByColumn) -> DataSection:
    """Return the recipe with what the answers say of its inputs.

    Raises Misconfiguration: noise hides a column's scale, or all of its levels.
    """
    columns = [
        column.model_copy(update=_constants(column, answers.get(column.name, {})))
        for column in written.columns
    ]
    return written.model_copy(update={"columns": tuple(columns)})


def counts_of(column: Column, answers: AnswersByColumn) -> str:
    """Return how often each level was counted, once at least, as --balance takes it."""
    own = answers.get(column.name, {})
    known = ((level, own[level].value) for level in column.levels if level in own)
    return ",".join(f"{level}={max(1.0, value):.0f}" for level, value in known)


def _constants(column: Column, own: Mapping[str, Answer]) -> dict[str, Any]:
    """Return what answers say of a column. Raises Misconfiguration, as ``recipe_of``."""
    hidden = "noise hides it: ask again with a larger ε, or write it into the recipe"
    if own and column.levels:
        kept = [level for level in column.levels if level in own and own[level].low > 0]
        if not kept:
            raise Misconfiguration(f"column {column.name}, levels", kept, hidden)
        most = max(kept, key=lambda level: own[level].value)
        return {"levels": tuple(kept), "fill_level": column.fill_level or most}
    if not own.keys() & {"mean", "quantile 0.5"}:
        return {}
    value = {of: float(f"{each.value:.4g}") for of, each in own.items()}
    centre = value.get("mean", value.get("quantile 0.5", 0.0))
    quartiles = value.get("quantile 0.75", 0.0) - value.get("quantile 0.25", 0.0)
    scale = value.get("standard deviation", quartiles / _QUARTILES)
    if scale <= 0.0:
        raise Misconfiguration(f"column {column.name}, scale", scale, hidden)
    known = {"fill": centre if column.fill is None else column.fill}
    if (column.centre, column.scale) != (0.0, 1.0):
        return known
    return {**known, "centre": centre, "scale": scale}
