"""Checks of what people give: Misconfiguration names the field, the value and the remedy.

Each check returns the value in its own type, since one from a file may be of any. What
a person wrote in a TOML file is read here too, and pydantic's findings become errors of
the same form.
"""

import math
import tomllib
from collections.abc import Mapping
from numbers import Integral, Real
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from precad.common.errors import Misconfiguration
from precad.common.files import read_regular

Model = TypeVar("Model", bound=BaseModel)
_CONFIDENTIAL = ("database", "proxy", "token")
"""Settings that no error repeats: logs and tickets have other readers."""
_LARGEST = 2**53
"""Whole numbers beyond it aren't floats any more."""


def _is_number(value: object) -> bool:
    """A float, or an integer that is one."""
    if isinstance(value, Integral):
        return abs(int(value)) <= _LARGEST
    return isinstance(value, Real)


def positive(field: str, value: float, what: str = "") -> float:
    """Return ``value``, which must be finite and above 0; ``what`` begins the refusal."""
    if not (_is_number(value) and math.isfinite(value) and value > 0):
        remedy = f"{what}: give a finite number above 0".removeprefix(": ")
        raise Misconfiguration(field, value, remedy)
    return float(value)


def noise_multiplier(value: float) -> float:
    """Return a noise multiplier (standard deviation over sensitivity), finite and above 0."""
    return positive("noise_multiplier", value, "without noise there is no guarantee")


def rate(field: str, value: float) -> float:
    """Return a sampling rate, which must lie in [0, 1]."""
    if not (_is_number(value) and 0 <= value <= 1):
        raise Misconfiguration(field, value, "a rate is a probability: give 0 to 1")
    return float(value)


def inside_unit_interval(field: str, value: float) -> float:
    """Return ``value``, strictly between 0 and 1 as a confidence or a δ must be."""
    if not (_is_number(value) and 0 < value < 1):
        raise Misconfiguration(field, value, "give a number above 0 and below 1")
    return float(value)


def epsilon(value: float, field: str = "epsilon") -> float:
    """Return ε, which must be finite and not negative."""
    if not (_is_number(value) and math.isfinite(value) and value >= 0):
        raise Misconfiguration(field, value, "epsilon is a finite number, 0 or above")
    return float(value)


def count(field: str, value: int, least: int = 0) -> int:
    """Return a count, which must be a whole number, ``least`` or more."""
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    if not (whole and least <= int(value) <= _LARGEST):
        raise Misconfiguration(field, value, f"give a whole number, {least} or more")
    return int(value)


def read_toml(field: str, path: Path) -> dict[str, object]:
    """Return the file's values.

    Raises Misconfiguration naming ``field`` and the file.
    """
    try:
        return tomllib.loads(read_regular(path).decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise Misconfiguration(
            field, str(path), "isn't UTF-8 text: save it as UTF-8"
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        # Integers of thousands of digits are a plain ValueError.
        raise Misconfiguration(field, str(path), f"can't be read: {error}") from None


def parsed(model: type[Model], values: object, remedies: Mapping[str, str]) -> Model:
    """Return plain values as a pydantic model.

    Raises Misconfiguration as ``refusal`` has it.
    """
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise refusal(error, remedies) from None


def parsed_toml(model: type[Model], field: str, path: Path) -> Model:
    """Return a TOML file as a pydantic model.

    Raises Misconfiguration, which names the file.
    """
    remedies = {
        "extra_forbidden": f"unknown key in {path}; remove it or mend its name",
        "missing": f"is required in {path}",
    }
    return parsed(model, read_toml(field, path), remedies)


def refusal(error: ValidationError, remedies: Mapping[str, str]) -> Misconfiguration:
    """Return the first of pydantic's findings as one of our errors.

    ``remedies`` are by pydantic's type of finding; any other keeps pydantic's own
    words.
    """
    first = error.errors(include_url=False)[0]
    kind = first["type"]
    value = first["input"]
    field = ".".join(str(part) for part in first["loc"]) or error.title.lower()
    if kind == "missing":
        value = None
    elif field in _CONFIDENTIAL or (
        kind == "extra_forbidden" and isinstance(value, str | list)
    ):
        # A secret's name, misspelt, is an unknown key.
        value = "…"
    said = str(first["ctx"]["error"]) if kind == "value_error" else first["msg"]
    return Misconfiguration(field, value, remedies.get(kind, said))
