"""Which columns of an owner's table are what: the part of the description that is the owner's."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from precad.common.description import Column, DataSection
from precad.common.errors import Misconfiguration
from precad.common.parsed import refusal

_RECIPE = (
    "the task's [data] names the columns and what their values become; leave it out, and give the "
    "columns' own names in rename where they differ"
)


class Columns(BaseModel):
    """An owner's columns; `[columns]` in the settings file.

    Where the task has a `[data]` section, that decides, and only names and form are the owner's.

    Raises:
        Misconfiguration: an unknown key, or a value of another type.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    inputs: Annotated[tuple[str, ...], Field(strict=False)] = ()
    """Without `[data]`: the inputs' columns in the model's order; numbers, none missing."""
    target: str | None = None
    """Without `[data]`: the column that is learned; labels as whole numbers, or numbers."""
    rename: dict[str, str] = {}
    """With `[data]`: a column's name in the task, and its name in this table."""
    separator: Annotated[str, Field(min_length=1, max_length=1)] = ","
    """CSV: between cells."""
    decimal: Annotated[str, Field(min_length=1, max_length=1)] = "."
    """CSV: before the fraction of a number."""

    def __init__(self, **values: object) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise refusal(error, {"extra_forbidden": "unknown key; remove it"}) from None

    def section(self, recipe: DataSection | None) -> DataSection:
        """How these columns become numbers: the task's recipe, or numbers as they are.

        Raises:
            Misconfiguration: neither says which columns there are, or both do.
        """
        if recipe is not None:
            for field, value in (("inputs", self.inputs), ("target", self.target)):
                if value:
                    raise Misconfiguration(f"columns.{field}", value, _RECIPE)
            known = {column.name for column in (*recipe.columns, recipe.target)}
            for name in self.rename:
                if name not in known:
                    raise Misconfiguration(
                        "columns.rename", name, f"the task has no such column: {_listed(known)}"
                    )
            return recipe
        if self.rename:
            raise Misconfiguration(
                "columns.rename",
                dict(self.rename),
                "the task has no [data] whose names could differ; give inputs and target",
            )
        if not self.inputs or self.target is None:
            missing = "inputs" if not self.inputs else "target"
            raise Misconfiguration(
                f"columns.{missing}",
                None,
                "a table needs to say what is what: give columns.inputs and columns.target in the "
                "settings (numbers alone), or a [data] section in the task",
            )
        return DataSection(
            target=Column(name=self.target),
            columns=tuple(Column(name=name) for name in self.inputs),
        )


def _listed(names: set[str]) -> str:
    some = sorted(names)[:8]
    return ", ".join(some) + (", …" if len(names) > len(some) else "")
