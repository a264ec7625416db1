"""What a person wrote in a TOML file, and what is wrong with it."""

import tomllib
from collections.abc import Mapping
from pathlib import Path

from pydantic import ValidationError

from precad.common.errors import Misconfiguration


def read_toml(field: str, path: Path) -> dict[str, object]:
    """The file's values. Raises Misconfiguration naming ``field`` and the file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        # Integers of thousands of digits are a plain ValueError.
        raise Misconfiguration(field, str(path), f"can't be read: {error}") from None


def refusal(error: ValidationError, remedies: Mapping[str, str]) -> Misconfiguration:
    """The first of pydantic's findings, in this project's form.

    Args:
        error: what pydantic raised.
        remedies: by pydantic's type of finding; for any other, pydantic's own words.
    """
    first = error.errors(include_url=False)[0]
    value = None if first["type"] == "missing" else first["input"]
    field = ".".join(str(part) for part in first["loc"]) or error.title.lower()
    return Misconfiguration(field, value, remedies.get(first["type"], first["msg"]))
