"""The types of what has no fields known to a checker: JSON, TOML, arguments by name."""

from typing import Any, TypeAlias

Document: TypeAlias = dict[str, Any]
"""A JSON or TOML document's object, or changes to a task by field."""
Arguments: TypeAlias = dict[str, Any]
"""A call's arguments by name, of many types, where several dictionaries make one."""
