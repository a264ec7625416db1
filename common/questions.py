"""Questions: what a task asks of records instead of training, and each answer's place.

A question is a task whose owners add one vector a record. Each query has a *block* of
that vector, a row of cells for each of its groups. In a block a record has all its norm
in one cell for counts and levels; or x and 1 − x² for a mean, since x² + (1 − x²)² ≤ 1;
or a row's numbers and their products, those of two times √2, of norm √(r² + r⁴) for a
row of length r; or a column of prefix sums' factor for quantiles. Of R a query
has a share a, Σ a² = 1, by its weight w and the norm Δ of such a vector: a² ∝ w·Δ makes
all squared errors together least, and a ∝ w·Δ, of ranks Δ², the greatest error. What a
record's vector is depends on that record, its place in the table, and public constants
alone.
"""

import math
from collections.abc import Mapping
from fractions import Fraction
from itertools import chain, pairwise, product
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from precad.common import (
    Column,
    Misconfiguration,
    Name,
    Parameter,
    first_column,
    first_entry,
    frozen_kw_only_dataclass,
)
from precad.common import task_schema as schema

Kind = Literal[
    "count",
    "shares",
    "cross-table",
    "histogram",
    "mean",
    "quantiles",
    "survival",
    "evaluation",
    "covariance",
    "least-squares",
    "head",
]
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
    "cross-table": ("column", "across"),
    "histogram": ("column", "edges"),
    "mean": ("column", "lower", "upper"),
    "evaluation": ("column", "model", "edges?", "lower?", "upper?"),
    "quantiles": ("column", "lower?", "upper?", "bins?", "quantiles?"),
    "survival": ("column", "event", "upper", "bins"),
    "covariance": ("inputs", "limits?", "length?"),
    "least-squares": ("column", "lower", "upper", "inputs", "limits?", "length?"),
    "head": ("column", "length?"),
}
"""The fields that a query of each kind has, or may have where ? is said, and no other's.
"""
BOX_PLOT = (0.05, 0.25, 0.5, 0.75, 0.95)
"""Whiskers at 5 and 95 %: the least and the greatest value are one record's own."""
_BINS = 512
_LEAST = 1e-6
_SIZES = 35.2
"""Of quantiles without limits: the least size, and ln of twice the largest's ratio."""
_MOST_PAIRS = 10_000
_HALF = 0.5
_TENTHS = tuple(place / 10 for place in range(1, 10))
BINARY = 2
"""How many levels a binary target has; the second one is the positive class."""
_OF_KINDS = (
    "column",
    "across",
    "edges",
    "event",
    "lower",
    "upper",
    "bins",
    "model",
    "quantiles",
    "inputs",
    "limits",
    "length",
)
_OF_ROWS = ("covariance", "least-squares", "head")
_FINE = 2**32
"""A norm so large that rounding doesn't show in u."""
_WIDE = 3 / 8
"""Length of a row whose m numbers have the deviation √(3/8), by √m."""


class Query(schema.Section):
    """One query; all of a task are answered by one release."""

    name: Name
    """What its answers are called."""
    kind: Kind
    """`count`: how many records; `shares`: of a categorical column's levels, of all
    others and of missing values; `cross-table`: of each pair of two such columns'
    levels, with χ²; of a numeric column `histogram`, by edges; `mean`, with standard
    deviation and how many values are missing; `quantiles`, with the latter;
    `survival`: Kaplan–Meier with the median, and of two groups the log-rank test;
    `evaluation`: how well a model does, whose target the column is: accuracy, recalls,
    and of two levels AUC, log loss and calibration; of a number R² and the root mean
    squared error; `covariance` and correlation of each pair of inputs, with their means
    and deviations; `least-squares`: what inputs explain of the column, with R²; `head`:
    a linear classifier of `[data]`'s target by all its inputs, such as an encoder's
    features, by ridge."""
    column: Name | None = None
    """What it is of; a categorical one is listed in `columns` or `[data]`."""
    across: Name | None = None
    """`cross-table`: the other column, listed too."""
    event: dict[Name, Name] | None = None
    """`survival`: levels, by their columns, of whom it happened to; others left."""
    edges: Annotated[
        tuple[schema.Finite, ...], Field(strict=False, max_length=10_000)
    ] = ()
    """`histogram`: ascending; a bin has its lower edge, not its upper one. Values below
    the first, or at or above the last, have bins of their own. `evaluation` of two
    levels: of the second one's probability, .5 among them; tenths unless given. Where a
    level is rare, put more of them around its share: two records of one bin are ties."""
    lower: schema.Finite | None = None
    """What smaller values count as; a constant from public knowledge. Without it and
    `upper`, quantiles search ±1e-6 to ±1e9."""
    upper: schema.Finite | None = None
    """What larger values count as."""
    bins: Annotated[int, Field(ge=4, le=1024)] | None = None
    """`quantiles`: 512 unless given; `survival`: of 0 to `upper`."""
    model: schema.Sha256 | None = None
    """`evaluation`: the trained model's digest, as `precad evaluate` says it."""
    quantiles: Annotated[
        tuple[Annotated[float, Field(gt=0, lt=1)], ...],
        Field(strict=False, max_length=100),
    ] = ()
    """Which; without it .05, .25, .5, .75, .95."""
    inputs: Annotated[tuple[Name, ...], Field(strict=False, max_length=30)] = ()
    """`covariance`, `least-squares`: columns. Of a listed one each level but the first
    is an input: 1 or 0. Records without one of them count as missing."""
    limits: (
        dict[Name, Annotated[tuple[schema.Finite, schema.Finite], Field(strict=False)]]
        | None
    ) = None
    """Lower and upper ones of numeric inputs, from public knowledge: what is beyond
    counts as these."""
    length: Annotated[float, Field(ge=0.01, le=100)] | None = None
    """A record's m numbers, −1 to 1 between their limits, and 0 or 1 of a level, are a
    row; a longer one is cut to that length. √(3m/8) unless given: a greater one has
    less bias and more noise."""
    where: dict[Name, Name] | None = None
    """Levels that a record must have to count, by their columns."""
    by: Name | None = None
    """A listed categorical column: an answer for each of its levels. Records of other
    levels count in none."""
    weight: Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)] = 1.0
    """How much its error counts: twice the weight, an error of .71 of it, and of half
    with `equal_errors`."""

    @property
    def counted(self) -> tuple[str, ...]:
        """Columns whose levels are counted."""
        evaluated = self.kind == "evaluation" and not self.evaluates_number
        if self.kind not in ("shares", "cross-table", "head") and not evaluated:
            return ()
        return tuple(filter(None, (self.column, self.across)))

    @property
    def evaluates_number(self) -> bool:
        """Whether it evaluates a model of a number."""
        return self.kind == "evaluation" and self.upper is not None

    @property
    def has_numbers(self) -> bool:
        """Whether a record's cells aren't whole, but the last; then it needs a count."""
        return self.kind in ("mean", *_OF_ROWS) or self.evaluates_number

    @property
    def limited(self) -> tuple[float, float]:
        """What less and more than that count as, where both are said."""
        return self.lower or 0.0, self.upper or 0.0

    @property
    def score_edges(self) -> tuple[float, ...]:
        """`evaluation` of two levels: edges of what a model says, without 0 and 1."""
        return self.edges or _TENTHS

    @property
    def bounds(self) -> tuple[float, ...]:
        """Edges of equal bins; values beyond the outer ones count as these."""
        bins = self.bins or _BINS
        places = range(bins + 1)
        if self.upper is None:
            # Both signs, by the same factor but around 0; 15 % with 512 bins.
            return tuple(
                _LEAST * math.sinh(_SIZES * (2 * place / bins - 1)) for place in places
            )
        lower = self.lower or 0.0
        width = (self.upper - lower) / bins
        return tuple(lower + width * place for place in places)


class Questions(schema.Section):
    """The parts of a task file that say what is asked."""

    query: Annotated[
        tuple[Query, ...], Field(strict=False, min_length=1, max_length=1000)
    ]
    equal_errors: bool | None = None
    """As of the task."""
    columns: (
        Annotated[tuple[Column, ...], Field(strict=False, max_length=1000)] | None
    ) = None
    # An empty one would have no digest of its own.
    missing: Annotated[schema.Marks, Field(min_length=1)] | None = None
    data: schema.DataSection | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for key in ("columns", "missing"):
            value = getattr(self, key)
            if value is not None and self.data is not None:
                remedy = (
                    "leave it out: [data] names the columns, and has its own missing"
                )
                raise Misconfiguration(key, len(value), remedy)
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
        for query in self.query:
            asked.update(query.where or (), query.event or (), query.inputs)
        others = (Column(name=name) for name in sorted(asked - listed.keys() - {""}))
        usual = schema.DataSection.model_fields["missing"].get_default()
        return schema.DataSection.model_construct(
            target=Column.model_construct(name=""),
            columns=(*listed.values(), *others),
            missing=self.missing or usual,
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
        exactly, after room for what rounding cells of means and errors adds, below 1
        each.
        """
        rounded = sum(
            len(self._cells(query)) - 1 for query in self.query if query.has_numbers
        )
        room = max(0, unit_norm - _rounded_up_root(rounded))
        squares = [self._square(query) for query in self.query]
        scale = room**2 / sum(squares)
        blocks = []
        start = 0
        for query, square in zip(self.query, squares, strict=True):
            norm = math.isqrt(math.floor(square * scale))
            block = self._block(query, norm, start)
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

    def _square(self, query: Query) -> Fraction:
        """Return what a query's share is by, squared."""
        block = self._block(query, _FINE)
        # By a power of two: a thousand queries' sum has no long denominator.
        norm = Fraction(_FINE**2 // block.unit, _FINE)
        need = norm * Fraction(query.weight)
        if self.equal_errors:
            # A rank is a sum of cells, whose factors have that norm once more.
            return (need * norm if block.runs else need) ** 2
        return need

    def _block(self, query: Query, norm: int, start: int = 0) -> "Block":
        """Return a query's block of that norm."""
        return Block(
            query=query,
            groups=("",) if query.by is None else self.levels(query.by),
            cells=self._cells(query),
            levels={column: self.levels(column) for column in query.counted},
            row=self._row(query),
            norm=norm,
            start=start,
        )

    def _check(self, query: Query) -> None:
        """Refuse a query that can't be asked. Raises Misconfiguration."""
        field = f"query {query.name}"
        for name in _OF_KINDS:
            given = getattr(query, name) not in (None, ())
            uses = _USES[query.kind]
            if f"{name}?" not in uses and given is not (name in uses):
                belongs = "is required" if not given else "leave it out"
                raise Misconfiguration(
                    f"{field}, {name}",
                    getattr(query, name),
                    f"{belongs} of a query of kind {query.kind}",
                )
        if query.kind == "head" and (
            query.by or query.column != self.recipe.target.name
        ):
            raise Misconfiguration(
                f"{field}, column",
                query.column,
                "of a head it is the target of [data], whose inputs it has; by isn't",
            )
        of_some = query.where or query.by
        if query.has_numbers and of_some and self.counting(query) is None:
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
        upper = -math.inf if query.upper is None else query.upper
        limited = (query.lower, query.upper) != (None, None)
        if limited and not 0.0 < upper - lower < math.inf:
            raise Misconfiguration(
                f"{field}, upper", query.upper, f"must be above {lower:g}"
            )
        for column in filter(None, (query.by, *query.counted)):
            if not self.levels(column):
                raise Misconfiguration(
                    field,
                    column,
                    "needs listed levels: owners' own would tell of their records; give"
                    f' columns = [{{ name = "{column}", kind = "categorical", levels ='
                    " […] }]",
                )
        self._check_inputs(query, field)
        counted = {column: self.levels(column) for column in query.counted}
        named = {OTHER, MISSING}.intersection(chain(*counted.values()))
        if named and query.kind in ("shares", "cross-table"):
            remedy = "is what all other or missing levels are called: rename that level"
            raise Misconfiguration(f"{field}, column", min(named), remedy)
        cells = math.prod(map(len, counted.values()))
        if query.across and (cells > _MOST_PAIRS or query.across == query.column):
            remedy = f"must be another column; {_MOST_PAIRS:,} pairs of levels fit"
            raise Misconfiguration(f"{field}, across", query.across, remedy)
        levels = self.levels(query.column or "")
        if levels and not counted:
            raise Misconfiguration(
                f"{field}, column",
                query.column,
                "is categorical: ask for its shares, or leave out lower and upper",
            )
        if query.kind == "evaluation" and query.edges:
            first, *_, last = query.edges
            of_two = len(levels) == BINARY
            if not (of_two and _HALF in query.edges and 0 < first < last < 1):
                raise Misconfiguration(
                    f"{field}, edges",
                    list(query.edges),
                    "give them between 0 and 1, 0.5 among them, of two levels alone",
                )

    def _check_inputs(self, query: Query, field: str) -> None:
        """Refuse inputs that can't be. Raises Misconfiguration."""
        inputs = query.inputs
        if len({*inputs, query.column}) <= len(inputs):
            raise Misconfiguration(
                f"{field}, inputs", list(inputs), "name each column once"
            )
        limits = query.limits or {}
        wrong = {name for name in inputs if not self.levels(name)} ^ limits.keys()
        for name, (low, high) in limits.items():
            if not 0.0 < high - low < math.inf:
                wrong.add(name)
        for name in wrong:
            raise Misconfiguration(
                f"{field}, limits",
                limits.get(name),
                f"give limits = {{ {name} = [LOW, HIGH] }}, ascending, of each input"
                " without listed levels and of no other",
            )

    def _row(self, query: Query) -> tuple["Number", ...]:
        """Return a row's numbers, what they explain last; none of another kind."""
        if query.kind not in _OF_ROWS:
            return ()
        if query.kind == "head":
            # A constant, then all inputs.
            return (Number(column=""),) * (1 + self.recipe.features)
        found: list[Number] = []
        for name in query.inputs:
            levels = self.levels(name)
            found.extend(
                Number(column=name, levels=levels, level=place)
                for place in range(1, len(levels))
            )
            if not levels:
                limits = (query.limits or {})[name]
                found.append(Number(column=name, limits=limits))
        if query.column is not None:
            found.append(Number(column=query.column, limits=query.limited))
        return tuple(found)

    def _cells(self, query: Query) -> tuple[str, ...]:
        """Return the names of a group's cells, in their order."""
        match query.kind:
            case "count":
                return ("records",)
            case "shares" | "cross-table":
                names = (
                    (*self.levels(column), OTHER, MISSING) for column in query.counted
                )
                return tuple(map(" × ".join, product(*names)))
            case "histogram":
                between = (f"{a:.12g} to {b:.12g}" for a, b in pairwise(query.edges))
                below = f"below {query.edges[0]:.12g}"
                return (below, *between, f"{query.edges[-1]:.12g} or more", MISSING)
            case "mean":
                return ("x", "1 - x²", MISSING)
            case "covariance" | "least-squares" | "head":
                # Rows, by level of a head's target, then products from the diagonal up.
                size = len(self._row(query))
                rows = len(self.levels(query.column or "")) or 1
                return ("",) * (size * rows + math.comb(size + 1, 2)) + (MISSING,)
            case "evaluation" if query.evaluates_number:
                return ("x", "1 - x²", "e²", MISSING)
            case "evaluation":
                levels = self.levels(query.column or "")
                outcomes = levels
                if len(levels) == BINARY:
                    outcomes = tuple(map(str, (0, *query.score_edges)))
                return (*(f"{a} as {b}" for a in levels for b in outcomes), MISSING)
            case "quantiles" | "survival":
                bins = len(query.bounds) - 1
                numbered = bins if query.event is None else 2 * bins + 1
                return (*map(str, range(numbered)), MISSING)


@frozen_kw_only_dataclass
class Number:
    """One number of a row: a column's, or whether it has a level, 1 or 0."""

    column: str
    levels: tuple[str, ...] = ()
    """All of the column's; none where it is numeric."""
    level: int = 0
    """Which of them."""
    limits: tuple[float, float] = (-1.0, 1.0)
    """They become −1 and 1."""

    @property
    def name(self) -> str:
        """Return what answers call it."""
        of = f" = {self.levels[self.level]}" if self.levels else ""
        return f"{self.column}{of}"

    @property
    def centre(self) -> float:
        """Return what becomes 0."""
        return self.limits[0] + self.half

    @property
    def half(self) -> float:
        """Return half of what lies between its limits."""
        low, high = self.limits
        return (high - low) / 2.0


@frozen_kw_only_dataclass
class Block:
    """A query's part of the vector: a cell for each group and each of its cells."""

    query: Query
    groups: tuple[str, ...]
    """The levels of ``by``; one empty name without it."""
    cells: tuple[str, ...]
    """Names of a group's cells, without those of rows."""
    levels: Mapping[str, tuple[str, ...]]
    """Of each column whose levels, others and missing values are counted."""
    row: tuple[Number, ...]
    """A record's numbers, whose products it adds; none of another kind."""
    norm: int
    """A record's norm in this block is at most that, in units of the last place."""
    start: int
    """Where it begins in the vector."""

    @property
    def runs(self) -> tuple[int, ...]:
        """Lengths of a group's runs of cells in which a record adds a whole column."""
        size = len(self.cells)
        match self.query.kind:
            case "quantiles":
                return (size,)
            case "survival":
                # Events, then those who left: in each bin, after the last, unknown.
                return (size // 2 - 1, size // 2 + 1)
            case _:
                return ()

    @property
    def column(self) -> tuple[int, ...]:
        """What a record in a run's first cell adds; in others, from there on."""
        longest = max(self.runs)
        return first_column(first_entry(self.norm, longest), longest)

    @property
    def length(self) -> float:
        """r: a longer row is cut to it."""
        return self.query.length or math.sqrt(_WIDE * len(self.row))

    @property
    def longest(self) -> float:
        """The norm that the longest row is added with: ``length``, or 1 of a head's."""
        return 1.0 if self.levels else self.length

    @property
    def unit(self) -> int:
        """u: what a record adds to one cell, in units of the last place."""
        if self.query.evaluates_number:
            # x² + (1 − x²)² ≤ 1 and e⁴ ≤ 1.
            return math.isqrt(self.norm**2 // 2)
        if self.row:
            # The row's own norm, and r⁴ of its products; a missing one's is 1.
            square = Fraction(self.longest) ** 2
            longest = max(Fraction(1), square + square**2)
            return math.isqrt(math.floor(self.norm**2 / longest))
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
