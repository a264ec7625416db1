"""Checks of values that people give: options, settings files and task files.

A wrong value raises Misconfiguration, which names the field, the value and the remedy.
Each check returns the value in its own type, because a value from a file may be of any
type. TOML files are read here too, and pydantic's findings become errors of the same
form.
"""

import math
import tomllib
from collections.abc import Mapping
from numbers import Integral, Real
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from precad.common import Misconfiguration, read_regular

Model = TypeVar("Model", bound=BaseModel)
"""The pydantic model that a file or a dictionary is parsed as."""
_CONFIDENTIAL = ("database", "proxy", "token")
"""Settings whose value no error repeats: others read logs and tickets."""
_LARGEST = 2**53
"""Largest whole number up to which every one is exactly a float."""


def _number(value: object) -> float:
    """Return a float, or an integer that a float holds exactly; NaN for all else."""
    too_large = isinstance(value, Integral) and abs(int(value)) > _LARGEST
    return float(value) if isinstance(value, Real) and not too_large else math.nan


def positive(field: str, value: float, meaning: str = "") -> float:
    """Return ``value`` as a float that is finite and above 0.

    ``meaning`` says what the value is; the error's remedy begins with it.

    Raises Misconfiguration: the value is no number, infinite, NaN, or not above 0.
    """
    number = _number(value)
    if not 0 < number < math.inf:
        remedy = f"{meaning}: give a finite number above 0".removeprefix(": ")
        raise Misconfiguration(field, value, remedy)
    return number


def noise_multiplier(value: float) -> float:
    """Return a noise multiplier, the noise's standard deviation over the sensitivity.

    Raises Misconfiguration: the value isn't finite and above 0.
    """
    return positive("noise_multiplier", value, "without noise there is no guarantee")


def rate(field: str, value: float) -> float:
    """Return a sampling rate, a probability in [0, 1].

    Raises Misconfiguration: the value is no number or outside the interval.
    """
    number = _number(value)
    if not 0 <= number <= 1:
        raise Misconfiguration(field, value, "a rate is a probability: give 0 to 1")
    return number


def inside_unit_interval(field: str, value: float) -> float:
    """Return ``value``, strictly between 0 and 1 as a confidence or a δ must be.

    Raises Misconfiguration: the value is no number or outside the interval.
    """
    number = _number(value)
    if not 0 < number < 1:
        raise Misconfiguration(field, value, "give a number above 0 and below 1")
    return number


def epsilon(value: float, field: str = "epsilon") -> float:
    """Return a privacy loss ε, which must be finite and not negative.

    Raises Misconfiguration: the value is no number, infinite, NaN or negative.
    """
    number = _number(value)
    if not 0 <= number < math.inf:
        raise Misconfiguration(field, value, "epsilon is a finite number, 0 or above")
    return number


def count(field: str, value: int, least: int = 0) -> int:
    """Return a count, a whole number from ``least`` to 2^53.

    Raises Misconfiguration: the value is of another type (bool too) or out of range.
    """
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    if not (whole and least <= int(value) <= _LARGEST):
        raise Misconfiguration(field, value, f"give a whole number, {least} or more")
    return int(value)


def read_toml(field: str, path: Path) -> dict[str, object]:
    """Return the values of a TOML file, by key.

    Raises Misconfiguration, which names ``field`` and the file: it can't be read, isn't
    UTF-8 text or isn't TOML.
    """
    try:
        return tomllib.loads(read_regular(path).decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise Misconfiguration(
            field, path, "isn't UTF-8 text: save it as UTF-8"
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        # Integers of thousands of digits raise a plain ValueError.
        raise Misconfiguration(field, path, f"can't be read: {error}") from None


def parsed(model: type[Model], values: object, remedies: Mapping[str, str]) -> Model:
    """Return plain values, as from a file, as a pydantic model.

    Raises Misconfiguration: pydantic refuses the values; ``refusal`` says how
    ``remedies`` are used.
    """
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise refusal(error, remedies) from None


_PART = "if these are another part's settings, name the right file"
"""Advice on a file whose keys don't fit."""


def parsed_toml(model: type[Model], field: str, path: Path) -> Model:
    """Return the values of a TOML file as a pydantic model.

    Raises Misconfiguration, which names the file: it can't be read, or pydantic refuses
    its values.
    """
    remedies = {
        "extra_forbidden": f"unknown key in {path}: {_PART}; else remove or mend it",
        "missing": f"is required in {path}: {_PART}; else add it",
    }
    return parsed(model, read_toml(field, path), remedies)


def refusal(error: ValidationError, remedies: Mapping[str, str]) -> Misconfiguration:
    """Return the first of pydantic's findings as an error of precad's, not raised yet.

    ``remedies`` has the remedy for each of pydantic's types of finding; a finding of
    another type keeps pydantic's own words. A confidential value is left out.
    """
    first = error.errors(include_url=False)[0]
    kind = first["type"]
    value = first["input"]
    field = ".".join(str(part) for part in first["loc"]) or error.title.lower()
    # A secret whose name is misspelt is an unknown key.
    may_be_secret = kind == "extra_forbidden" and isinstance(value, str | list)
    if kind == "missing":
        value = None
    elif field in _CONFIDENTIAL or may_be_secret:
        value = "…"
    finding = str(first["ctx"]["error"]) if kind == "value_error" else first["msg"]
    return Misconfiguration(field, value, remedies.get(kind, finding))
