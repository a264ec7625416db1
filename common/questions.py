"""Questions: what a task asks of records instead of training, and each answer's place.

A question is a task whose owners add one vector a record. Each query has a *block* of
that vector, a row of cells for each of its groups. In a block a record has all its norm
in one cell for counts and levels; or x and 1 − x² for a mean, since x² + (1 − x²)² ≤ 1;
or a column of prefix sums' factor for quantiles. A query's share of R is by its weight.
What a record's vector is depends on that record, its place in the table, and public
constants alone.
"""

import math
from collections.abc import Mapping
from fractions import Fraction
from itertools import pairwise
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from precad.common import task_schema as schema
from precad.common.errors import Misconfiguration
from precad.common.frozen import frozen_kw_only_dataclass
from precad.common.prefix_sums import first_column, first_entry
from precad.common.task_schema import Column, Name, Parameter

Kind = Literal["count", "shares", "histogram", "mean", "quantiles", "evaluation"]
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
    "evaluation": ("column", "model", "edges?", "lower?", "upper?"),
    "quantiles": ("column", "lower?", "upper?", "bins?", "quantiles?"),
}
"""The fields that a query of each kind has, or may have where ? is said, and no other's.
"""
BOX_PLOT = (0.05, 0.25, 0.5, 0.75, 0.95)
"""Whiskers at 5 and 95 %: the least and the greatest value are one record's own."""
_BINS = 512
_HALF = 0.5
_TENTHS = tuple(place / 10 for place in range(1, 10))
TWO = 2
"""Levels of which the second one is looked for."""
_OF_KINDS = ("column", "model", "edges", "lower", "upper", "bins", "quantiles")


class Query(schema.Section):
    """One query; all of a task are answered by one release."""

    name: Name
    """What its answers are called."""
    kind: Kind
    """`count`: how many records; `shares`: of a categorical column's levels, of all
    others and of missing values; `histogram`: of a numeric column, by edges; `mean`: of
    a numeric column, with its standard deviation and how many values are missing;
    `quantiles`: of a numeric column, with the latter; `evaluation`: how well a model
    does, whose target the column is: accuracy, recalls, and of two levels AUC, log loss
    and calibration; or of a numeric one R² and the root mean squared error."""
    column: Name | None = None
    """What it is of; a categorical one is listed in `columns` or `[data]`."""
    edges: Annotated[
        tuple[schema.Finite, ...], Field(strict=False, max_length=10_000)
    ] = ()
    """`histogram`: ascending; a bin has its lower edge, not its upper one. Values below
    the first, or at or above the last, have bins of their own. `evaluation` of two
    levels: of the second one's probability, .5 among them; tenths unless given. Where a
    level is rare, put more of them around its share: two records of one bin are ties."""
    lower: schema.Finite | None = None
    """`mean`, `quantiles`: what smaller values count as; a constant from public
    knowledge. Without it and `upper`, quantiles find an unknown scale from 1e-6 to 1e9
    of either sign."""
    upper: schema.Finite | None = None
    """What larger values count as."""
    bins: Annotated[int, Field(ge=4, le=1024)] | None = None
    """`quantiles`: how many equal bins `lower` to `upper` has, or the unknown scale's
    decades; 512 unless given."""
    model: schema.Sha256 | None = None
    """`evaluation`: the trained model's digest, as `precad evaluate` says it."""
    quantiles: Annotated[
        tuple[Annotated[float, Field(gt=0, lt=1)], ...],
        Field(strict=False, max_length=100),
    ] = ()
    """`quantiles`: which; a box plot's without it: .05, .25, .5, .75, .95."""
    where: dict[Name, Name] | None = None
    """Levels that a record must have to count, by their columns."""
    by: Name | None = None
    """A listed categorical column: an answer for each of its levels. Records of other
    levels count in none."""
    weight: Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)] = 1.0
    """Its share of R² over the others': twice the weight, an error of .71 of it."""

    @field_validator("kind", mode="before")
    @classmethod
    def _of_many_records(cls, kind: object) -> object:
        if kind in ("minimum", "maximum", "min", "max"):
            remedy = "would tell of one record: ask for quantiles, such as .05 or .95"
            raise Misconfiguration("query.kind", kind, remedy)
        return kind

    @property
    def of_errors(self) -> bool:
        """Whether it evaluates a model of a number."""
        return self.kind == "evaluation" and self.upper is not None

    @property
    def of_levels(self) -> bool:
        """Whether its column is categorical."""
        return self.kind == "shares" or (
            self.kind == "evaluation" and not self.of_errors
        )

    @property
    def rounded_cells(self) -> int:
        """Return how many cells of a record aren't whole; then it needs a count."""
        if self.of_errors:
            return 3
        return 2 * (self.kind == "mean")

    @property
    def scores(self) -> tuple[float, ...]:
        """`evaluation` of two levels: edges of what a model says, without 0 and 1."""
        return self.edges or _TENTHS

    @property
    def bounds(self) -> tuple[float, ...]:
        """Edges of equal bins; values beyond the outer ones count as these."""
        bins = self.bins or _BINS
        if self.upper is None:
            half = bins // 2
            # From 1e-6 to 1e9: neighbours differ by 15 % where there are 512 bins.
            sizes = [10.0 ** (15 * place / (half - 1) - 6) for place in range(half)]
            return (*(-size for size in reversed(sizes)), 0.0, *sizes)
        lower = self.lower or 0.0
        width = (self.upper - lower) / bins
        return tuple(lower + width * place for place in range(bins + 1))


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
        exactly, after room for what rounding cells of means and errors adds: below 1 each.
        """
        rounded = sum(query.rounded_cells for query in self.query)
        room = max(0, unit_norm - _rounded_up_root(rounded))
        weights = [Fraction(query.weight) for query in self.query]
        blocks = []
        start = 0
        for query, weight in zip(self.query, weights, strict=True):
            square = weight / sum(weights) * room**2
            block = Block(
                query=query,
                groups=("",) if query.by is None else self.levels(query.by),
                levels=self.levels(query.column or ""),
                cells=self._cells(query),
                norm=math.isqrt(math.floor(square)),
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
        for name in _OF_KINDS:
            given = getattr(query, name) not in (None, ())
            uses = _USES[query.kind]
            if f"{name}?" not in uses and given is not (name in uses):
                belongs = "is required" if not given else "leave it out"
                raise Misconfiguration(
                    f"{field}, {name}", getattr(query, name), f"{belongs}: {query.kind}"
                )
        of_some = query.where or query.by
        if query.rounded_cells and of_some and self.counting(query) is None:
            raise Misconfiguration(
                field, query.kind, "needs a query of kind count with the same where, by"
            )
        if any(low >= high for low, high in pairwise(query.edges)) or (
            len(query.edges) == 1
        ):
            raise Misconfiguration(
                f"{field}, edges", list(query.edges), "give two or more that ascend"
            )
        lower = query.lower or 0.0
        upper = query.upper or 0.0
        limited = (query.lower, query.upper) != (None, None)
        if limited and not 0.0 < upper - lower < math.inf:
            raise Misconfiguration(
                f"{field}, upper", query.upper, f"must be above {lower:g}"
            )
        levels = self.levels(query.column or "")
        of_levels = query.column if query.of_levels else None
        for key, column in (("by", query.by), ("column", of_levels)):
            if column is not None and not self.levels(column):
                raise Misconfiguration(
                    f"{field}, {key}",
                    column,
                    "needs listed levels: owners' own would tell of their records; give"
                    f' columns = [{{ name = "{column}", kind = "categorical", levels ='
                    " […] }]",
                )
        named = {OTHER, MISSING}.intersection(levels)
        if named and query.kind == "shares":
            remedy = "is what all other or missing levels are called: rename that level"
            raise Misconfiguration(f"{field}, column", min(named), remedy)
        if of_levels is None and levels:
            remedy = "is categorical: ask for its shares"
            if query.of_errors:
                remedy = "is categorical: leave out lower and upper"
            raise Misconfiguration(f"{field}, column", query.column, remedy)
        if query.kind == "evaluation" and query.edges:
            first, *_, last = query.edges
            if not (
                len(levels) == TWO and _HALF in query.edges and 0 < first < last < 1
            ):
                remedy = (
                    "give them between 0 and 1, 0.5 among them, of two levels alone"
                )
                raise Misconfiguration(f"{field}, edges", list(query.edges), remedy)

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
            case "evaluation" if query.of_errors:
                return ("x", "1 - x²", "e²", MISSING)
            case "evaluation":
                levels = self.levels(query.column or "")
                said = levels
                if len(levels) == TWO:
                    said = tuple(map(str, (0, *query.scores)))
                return (*(f"{a} as {b}" for a in levels for b in said), MISSING)
            case "quantiles":
                return (*map(str, range(len(query.bounds) - 1)), MISSING)


@frozen_kw_only_dataclass
class Block:
    """A query's part of the vector: a cell for each group and each of its cells."""

    query: Query
    groups: tuple[str, ...]
    """The levels of ``by``; one empty name without it."""
    levels: tuple[str, ...]
    """Its column's, where that is categorical."""
    cells: tuple[str, ...]
    """Names of a group's cells."""
    norm: int
    """A record's norm in this block is at most that, in units of the last place."""
    start: int
    """Where it begins in the vector."""

    @property
    def runs(self) -> tuple[int, ...]:
        """Lengths of a group's runs of cells in which a record adds a whole column."""
        return (len(self.cells),) if self.query.kind == "quantiles" else ()

    @property
    def column(self) -> tuple[int, ...]:
        """What a record in a run's first cell adds; in others, from there on."""
        longest = max(self.runs)
        return first_column(first_entry(self.norm, longest), longest)

    @property
    def unit(self) -> int:
        """u: what a record adds to one cell, in units of the last place."""
        if self.query.of_errors:
            # x² + (1 − x²)² ≤ 1 and e⁴ ≤ 1.
            return math.isqrt(self.norm**2 // 2)
        return self.column[0] if self.runs else self.norm

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
