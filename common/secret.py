"""Bytes that must not be seen: hidden in ``repr`` and logs, compared in constant time."""

import hmac
import secrets
from typing import Self


class Secret:
    """Secret bytes. ``reveal()`` is the one way to read them.

    ``repr`` and ``str`` show the length only; equality takes constant time; pickling is refused.
    """

    __slots__ = ("_data",)

    def __init__(self, data: bytes) -> None:
        self._data = bytes(data)

    @classmethod
    def random(cls, length: int = 32) -> Self:
        """Fresh bytes from the operating system's CSPRNG."""
        return cls(secrets.token_bytes(length))

    def reveal(self) -> bytes:
        """The bytes themselves."""
        return self._data

    def __len__(self) -> int:
        return len(self._data)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self._data)} bytes>"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        return hmac.compare_digest(self._data, other._data)

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> str:
        raise TypeError(f"{type(self).__name__} is never pickled")
