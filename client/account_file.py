"""The lines of a data set's account: what its records took part in, over all tasks.

Lines are appended and never changed, and each says all that its privacy cost depends
on, so that the file can be added up without any task. Several processes may append at
once, on one machine's disk: who reads a line knows all that stood before it, so
everybody comes to the same verdict on which lines were within the limit.
"""

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from precad.accounting.events import SampledGaussian, poisson_gaussian
from precad.accounting.filter import RenyiLimit
from precad.common.errors import Misconfiguration
from precad.common.files import append_line, writing
from precad.common.identifiers import Digest

ACCOUNT_FILE = "participations.log"
"""In the account's folder."""
_CUT = "~"
"""Ends a line that may have been cut short by a crash, so that the next one stands on
its own."""
_NONE = "-"
_MALICIOUS = ("proof", "fss")
"""Checks whose cost holds against a server that departs from the protocol; the latter
is of older versions."""
_CHECKS = ("crypten", *_MALICIOUS, "")
_CHARGE = "charge2"


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountCharge:
    """One version of one task, before its update was first shared, or when it costs more."""

    task: Digest
    client: str
    """Under which name; empty where the account has one."""
    version: int
    re_releases: int
    """m: releases of the same update that may have left besides the one that is
    charged."""
    noise_multiplier: float
    """σ of one server."""
    record_rate: float
    """p_i."""
    delta: float
    """δ of this task's own statements."""
    validation: str = ""
    """The task's check of norms, which says of what server a statement holds. Empty in
    lines that don't say it: then the weaker one is meant."""

    @property
    def malicious_server(self) -> bool:
        """Whether its cost holds against one server that departs from the protocol."""
        return self.validation in _MALICIOUS

    @property
    def step(self) -> tuple[Digest, str, int, float]:
        """What it is that is charged; a later line with a larger m takes this one's place."""
        return self.task, self.client, self.version, self.record_rate

    @property
    def alike(self) -> tuple[Digest, str, float, float]:
        """What a task's charges have in common at one rate."""
        return self.task, self.client, self.noise_multiplier, self.record_rate

    @property
    def event(self) -> SampledGaussian:
        """A step with σ/√(1+m): the same update seen 1 + m times under independent noise."""
        return poisson_gaussian(
            rate=self.record_rate,
            noise_multiplier=self.noise_multiplier / math.sqrt(1 + self.re_releases),
        )


@dataclass(frozen=True, slots=True)
class Covered:
    """A version that this owner was drawn for and sent zeros in: servers charge it, and it is free.

    They can't tell it from others; so what they charged isn't taken for what is missing
    here.
    """

    task: Digest
    client: str
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeLimit:
    """The account's limit where all of it goes to one task, whose exact ε is counted."""

    epsilon: float
    delta: float
    task: Digest
    client: str
    noise_multiplier: float
    record_rate: float

    def covers(self, charge: AccountCharge) -> bool:
        """Whether this is one of that task's equal steps, at the rate that it was opened with.

        A further release is none: who cuts a link chooses where there is one, by what
        it has seen, and the exact number holds of a list that was fixed beforehand.
        """
        mine = self.task, self.client, self.noise_multiplier, self.record_rate
        return charge.alike == mine and charge.re_releases == 0


class RaisedLimit(RenyiLimit):
    """Takes a lower limit's place, by the owner's word, with all that was charged before."""


class RaisedWholeLimit(WholeLimit):
    """As ``RaisedLimit``."""


Limit = RenyiLimit | WholeLimit
Entry = AccountCharge | Covered | Limit
_FORMS: dict[str, type[Entry]] = {
    _CHARGE: AccountCharge,
    "covered": Covered,
    "limit": RenyiLimit,
    "whole": WholeLimit,
    "raised-limit": RaisedLimit,
    "raised-whole": RaisedWholeLimit,
}
_READ: dict[Any, Callable[[str], Any]] = {
    Digest: lambda word: Digest(bytes.fromhex(word)),
    str: lambda word: "" if word == _NONE else word,
    int: int,
    float: float,
}
"""A field from its word, by its type."""


class AccountFile:
    """An account's file, read as it grows; without a path, its entries are kept in memory."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._read_to = 0
        self._unread: list[Entry] = []

    def append(self, entry: Entry) -> None:
        """Add ``entry``, durably, before this returns. Raises StorageFailure."""
        if self.path is None:
            self._unread.append(entry)
            return
        rest = self._rest()
        # Its kind, its fields in their order, and a check of both.
        kind = next(kind for kind, form in _FORMS.items() if type(entry) is form)
        words = [str(getattr(entry, field.name)) or _NONE for field in fields(entry)]
        text = " ".join([kind, *words])
        with writing(self.path):
            whole = not rest or rest.endswith(b"\n")
            append_line(
                self.path, ("" if whole else f"{_CUT}\n") + f"{text} {_check(text)}"
            )

    def new_entries(self) -> list[Entry]:
        """What was appended since the last call, by whomever.

        Raises Misconfiguration: the file can't be read; it is refused rather than
        forgotten.
        """
        if self.path is None:
            found = self._unread
            self._unread = []
            return found
        rest = self._rest()
        whole = rest[: rest.rfind(b"\n") + 1]
        self._read_to += len(whole)
        entries = [_from_line(line, self.path) for line in whole.splitlines()]
        return [entry for entry in entries if entry is not None]

    def _rest(self) -> bytes:
        assert self.path is not None
        try:
            with self.path.open("rb") as file:
                file.seek(self._read_to)
                return file.read()
        except FileNotFoundError:
            return b""


def _from_line(line: bytes, path: Path) -> Entry | None:
    """The entry; None for a line that a crash cut short: nothing was sent for it."""
    try:
        text = line.decode("ascii")
        cut = text.endswith(_CUT)
        text, _, check = text.removesuffix(_CUT).rpartition(" ")
        if check != _check(text):
            if cut:
                return None
            raise ValueError(check)
        kind, *words = text.split(" ")
        # A field without a value is a dash.
        if not all(words):
            raise ValueError(words)
        if kind == "charge":  # as versions before wrote it: without the check of norms
            kind = _CHARGE
            words = [*words, _NONE]
        form = _FORMS[kind]
        entry = form(
            **{
                field.name: _READ[field.type](word)
                for field, word in zip(fields(form), words, strict=True)
            }
        )
        if isinstance(entry, AccountCharge) and (
            entry.re_releases < 0 or entry.validation not in _CHECKS
        ):
            raise ValueError(entry)
    except (KeyError, ValueError, Misconfiguration):
        raise Misconfiguration(
            "account",
            str(path),
            f"can't be read at {line[:100]!r}; restore this owner's account from a copy"
            " that is not older",
        ) from None
    return entry


def _check(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]
