"""The form of the system's values: dataclasses that are frozen and have slots.

A misspelt field is an error, a value can be shared by threads, and what was validated
on construction stays so.
"""

from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

_Value = TypeVar("_Value")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen_dataclass(cls: type[_Value]) -> type[_Value]:
    """Return ``@dataclass(frozen=True, slots=True)`` of a class."""
    return dataclass(frozen=True, slots=True)(cls)


@dataclass_transform(
    frozen_default=True, kw_only_default=True, field_specifiers=(field,)
)
def frozen_kw_only_dataclass(cls: type[_Value]) -> type[_Value]:
    """Return ``@dataclass(frozen=True, slots=True, kw_only=True)`` of a class."""
    return dataclass(frozen=True, slots=True, kw_only=True)(cls)
