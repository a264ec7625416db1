"""A file beside the database and its backups: what this server has bound itself to.

Every entry that it countersigns and every attempt whose comparisons it opens stands
here before the word leaves. A database that is put back from a backup learns from it
what it has forgotten (docs/durable-state.md).
"""

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from precad.aggregator.server_messages import ClientName, Fact, Hex32, Message, Number
from precad.common.errors import Misconfiguration, PeerViolation, StorageFailure
from precad.common.files import append_line
from precad.common.identifiers import ClientId, Digest


@dataclass(frozen=True, slots=True)
class JournalEntries:
    """What the file holds of one task."""

    facts: tuple[Fact, ...] = ()
    """Attempts that this server countersigned, but for those that were voided since."""
    opened: tuple[tuple[int, int], ...] = ()
    """(version, attempt) whose comparisons it opened."""
    voided: frozenset[int] = frozenset()
    """Attempts that cost nothing; their numbers are used all the same."""

    @property
    def newest_attempt(self) -> int:
        """-1 before the first."""
        attempts = {fact.attempt for fact in self.facts} | {
            attempt for _, attempt in self.opened
        }
        return max(attempts | self.voided, default=-1)


class _Line(Message):
    """What the file holds of one attempt: its charge, its void, or that it was opened."""

    task: Hex32
    version: Number
    attempt: Number
    clients: tuple[ClientName, ...] | None = None
    voided: bool = False


class JournalFile:
    """Appends lines, each whole and on the disk before the call returns.

    The path is None where nothing has to outlive the database, as in a round in one
    process.
    """

    def __init__(self, path: Path | None, task: Digest) -> None:
        self._path = path
        self._task = str(task)

    def read(self) -> JournalEntries:
        """Return what was written for this task.

        Raises Misconfiguration: it can't be read.
        """
        if self._path is None:
            return JournalEntries()
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return JournalEntries()
        # A crash may have cut the last line short: it is removed.
        whole = data[: data.rfind(b"\n") + 1]
        if len(whole) < len(data):
            os.truncate(self._path, len(whole))
        try:
            # Another task's lines aren't looked at: they may be of another precad's
            # making.
            lines = whole.splitlines()
            own = [
                _Line.from_json(x) for x in lines if json.loads(x)["task"] == self._task
            ]
        except (PeerViolation, ValueError, KeyError, TypeError, RecursionError):
            remedy = "can't be read; put this server's newest file back"
            raise Misconfiguration("journal", str(self._path), remedy) from None
        voided = frozenset(line.attempt for line in own if line.voided)
        facts = (
            Fact(
                version=line.version,
                attempt=line.attempt,
                voided=False,
                clients=line.clients,
            )
            for line in own
            if line.clients is not None and line.attempt not in voided
        )
        begun = (line for line in own if line.clients is None and not line.voided)
        opened = ((line.version, line.attempt) for line in begun)
        return JournalEntries(tuple(facts), tuple(opened), voided)

    def countersigned(
        self, version: int, attempt: int, clients: Iterable[ClientId]
    ) -> None:
        """This server is about to countersign the other's head over this attempt."""
        names = sorted(client.name for client in clients)
        self._append(
            {
                "version": version,
                "attempt": attempt,
                "clients": names,
            }
        )

    def opened(self, version: int, attempt: int) -> None:
        """An attempt's comparisons are about to be opened."""
        self._append({"version": version, "attempt": attempt})

    def voided(self, version: int, attempt: int) -> None:
        """Both servers have signed that a countersigned attempt isn't prepared on both.

        This server's database was put back and has lost the share; the other, if it
        follows the protocol, has countersigned nothing, so nothing left. Without this
        line a next start would make it a charge again, which the other's ledger doesn't
        have.
        """
        self._append(
            {
                "version": version,
                "attempt": attempt,
                "voided": True,
            }
        )

    def _append(self, entry: dict[str, Any]) -> None:
        if self._path is None:
            return
        line = json.dumps({"task": self._task, **entry}, separators=(",", ":"))
        try:
            append_line(self._path, line)
        except OSError as error:
            remedy = (
                "free or mend the disk, then start this server again: nothing is lost"
            )
            said = f"{self._path} can't be written ({error.strerror})"
            raise StorageFailure(f"{said}; {remedy}") from None
