"""Questions: what a task asks of records instead of training, and each answer's place.

A question is a task whose owners add one vector a record. Each query has a *block* of
that vector, a row of cells for each of its groups. In a block a record has norm u at
most: all of it in one cell for counts and levels, or x and 1 − x² for a mean, since
x² + (1 − x²)² ≤ 1. A query's share of R is by its weight. What a record's vector is
depends on that record, its place in the table, and public constants alone.
"""

import math
from collections.abc import Mapping
from fractions import Fraction
from itertools import pairwise
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from precad.common import (
    Column,
    Misconfiguration,
    Name,
    Parameter,
    frozen_kw_only_dataclass,
)
from precad.common import task_schema as schema

Kind = Literal["count", "shares", "histogram", "mean"]
"""What a query may ask."""
OTHER = "other"
"""The cell of levels that aren't listed."""
MISSING = "missing"
"""The cell of records without a value."""
LEAST_UNIT = 4
"""Least u: a coarser block would mostly hold rounding."""
_USES: Mapping[str, tuple[str, ...]] = {
    "count": (),
    "shares": ("column",),
    "histogram": ("column", "edges"),
    "mean": ("column", "lower", "upper"),
}
"""The fields that a query of each kind has, and no other's."""


class Query(schema.Section):
    """One query; all of a task are answered by one release."""

    name: Name
    """What its answers are called."""
    kind: Kind
    """`count`: how many records; `shares`: of a categorical column's levels, of all
    others and of missing values; `histogram`: of a numeric column, by edges; `mean`: of
    a numeric column, with its standard deviation and how many values are missing."""
    column: Name | None = None
    """What it is of; a categorical one is listed in `columns` or `[data]`."""
    edges: Annotated[
        tuple[schema.Finite, ...], Field(strict=False, max_length=10_000)
    ] = ()
    """`histogram`: ascending; a bin has its lower edge, not its upper one. Values below
    the first, or at or above the last, have bins of their own."""
    lower: schema.Finite | None = None
    """`mean`: what smaller values count as; a constant from public knowledge."""
    upper: schema.Finite | None = None
    """`mean`: what larger values count as."""
    where: dict[Name, Name] | None = None
    """Levels that a record must have to count, by their columns."""
    by: Name | None = None
    """A listed categorical column: an answer for each of its levels. Records of other
    levels count in none."""
    weight: Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)] = 1.0
    """Its share of R² over the others': twice the weight, an error of .71 of it."""


class Questions(schema.Section):
    """The parts of a task file that say what is asked."""

    query: Annotated[
        tuple[Query, ...], Field(strict=False, min_length=1, max_length=1000)
    ]
    columns: (
        Annotated[tuple[Column, ...], Field(strict=False, max_length=1000)] | None
    ) = None
    data: schema.DataSection | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.columns is not None and self.data is not None:
            remedy = "leave it out: [data] names the columns"
            raise Misconfiguration("columns", len(self.columns), remedy)
        wrong = schema.wrong_columns(self.recipe)
        if wrong is not None:
            raise wrong
        names = [query.name for query in self.query]
        for query in self.query:
            if names.count(query.name) > 1:
                raise Misconfiguration(
                    "query.name", query.name, "stands there twice; name each once"
                )
            self._check(query)
        return self

    @property
    def recipe(self) -> schema.DataSection:
        """How the columns are read: the task's recipe, or the listed columns.

        The latter has a target of no name, which no column is.
        """
        if self.data is not None:
            return self.data
        listed = {column.name: column for column in self.columns or ()}
        asked = {query.column or "" for query in self.query}
        asked.update(*(query.where or () for query in self.query))
        others = (Column(name=name) for name in sorted(asked - listed.keys() - {""}))
        missing = schema.DataSection.model_fields["missing"].get_default()
        return schema.DataSection.model_construct(
            target=Column.model_construct(name=""),
            columns=(*listed.values(), *others),
            missing=missing,
        )

    def levels(self, name: str) -> tuple[str, ...]:
        """Return a listed column's levels; none where it isn't categorical."""
        columns = self.columns or ()
        if self.data is not None:
            columns = (*self.data.columns, self.data.target)
        found = (column.levels for column in columns if column.name == name)
        return next(found, ())

    def blocks(self, unit_norm: int) -> tuple["Block", ...]:
        """Return each query's block where a record's whole norm is ``unit_norm``.

        That is floor(R·2^f), in units of the last place. Blocks' u are rounded down,
        exactly, after room for what rounding a mean's two cells adds: below 1 each.
        """
        means = sum(query.kind == "mean" for query in self.query)
        room = max(0, unit_norm - _rounded_up_root(2 * means))
        weights = [Fraction(query.weight) for query in self.query]
        blocks = []
        start = 0
        for query, weight in zip(self.query, weights, strict=True):
            square = weight / sum(weights) * room**2
            block = Block(
                query=query,
                groups=("",) if query.by is None else self.levels(query.by),
                cells=self._cells(query),
                unit=math.isqrt(math.floor(square)),
                start=start,
            )
            blocks.append(block)
            start += block.parameter.size
        return tuple(blocks)

    def counting(self, query: Query) -> Query | None:
        """Return the query that counts the records of each of this one's groups.

        None where there is none, or none is needed: of all records owners say it.
        """
        if query.where is None and query.by is None:
            return None
        same = (
            other
            for other in self.query
            if (other.kind, other.where, other.by) == ("count", query.where, query.by)
        )
        return next(same, None)

    def _check(self, query: Query) -> None:
        """Refuse a query that can't be asked. Raises Misconfiguration."""
        field = f"query {query.name}"
        for name in ("column", "edges", "lower", "upper"):
            given = getattr(query, name) not in (None, ())
            if given is not (name in _USES[query.kind]):
                belongs = "is required" if not given else "leave it out"
                raise Misconfiguration(
                    f"{field}, {name}", getattr(query, name), f"{belongs}: {query.kind}"
                )
        of_some = query.where or query.by
        if query.kind == "mean" and of_some and self.counting(query) is None:
            raise Misconfiguration(
                field, query.kind, "needs a query of kind count with the same where, by"
            )
        if any(low >= high for low, high in pairwise(query.edges)) or (
            query.kind == "histogram" and len(query.edges) == 1
        ):
            raise Misconfiguration(
                f"{field}, edges", list(query.edges), "give two or more that ascend"
            )
        lower = query.lower or 0.0
        upper = query.upper or 0.0
        if query.kind == "mean" and not 0.0 < upper - lower < math.inf:
            raise Misconfiguration(
                f"{field}, upper", query.upper, f"must be above {lower:g}"
            )
        of_shares = query.column if query.kind == "shares" else None
        for key, column in (("by", query.by), ("column", of_shares)):
            if column is not None and not self.levels(column):
                raise Misconfiguration(
                    f"{field}, {key}",
                    column,
                    "needs listed levels: owners' own would tell of their records; give"
                    f' columns = [{{ name = "{column}", kind = "categorical", levels ='
                    " […] }]",
                )
        named = {OTHER, MISSING}.intersection(self.levels(of_shares or ""))
        if named:
            remedy = "is what all other or missing levels are called: rename that level"
            raise Misconfiguration(f"{field}, column", min(named), remedy)
        if of_shares is None and query.column and self.levels(query.column):
            raise Misconfiguration(
                f"{field}, column", query.column, "is categorical: ask for its shares"
            )

    def _cells(self, query: Query) -> tuple[str, ...]:
        """Return the names of a group's cells, in their order."""
        match query.kind:
            case "count":
                return ("records",)
            case "shares":
                return (*self.levels(query.column or ""), OTHER, MISSING)
            case "histogram":
                between = (f"{a:.12g} to {b:.12g}" for a, b in pairwise(query.edges))
                below = f"below {query.edges[0]:.12g}"
                return (below, *between, f"{query.edges[-1]:.12g} or more", MISSING)
            case "mean":
                return ("x", "1 - x²", MISSING)


@frozen_kw_only_dataclass
class Block:
    """A query's part of the vector: a cell for each group and each of its cells."""

    query: Query
    groups: tuple[str, ...]
    """The levels of ``by``; one empty name without it."""
    cells: tuple[str, ...]
    """Names of a group's cells."""
    unit: int
    """u: a record's norm in this block, in units of the last place."""
    start: int
    """Where it begins in the vector."""

    @property
    def parameter(self) -> Parameter:
        """Its name and shape, [groups, cells]."""
        return Parameter(
            name=self.query.name, shape=(len(self.groups), len(self.cells))
        )


def _rounded_up_root(number: int) -> int:
    """Return ⌈√number⌉."""
    root = math.isqrt(number)
    return root + (root * root < number)
