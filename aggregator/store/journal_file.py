"""A file outside the database and its backups: what this server has bound itself to.

Every entry that the server countersigns, and every attempt whose comparisons it opens,
stands in the file before the message leaves. A database that is put back from a backup
learns from it what it has forgotten (docs/durable-state.md).
"""

import json
import os
from collections.abc import Iterable
from pathlib import Path

from precad.aggregator import Bytes32, ClientName, Fact, Message, Number
from precad.common import (
    ClientId,
    Digest,
    Misconfiguration,
    PeerViolation,
    StorageGone,
    append_line,
    frozen_dataclass,
    writing,
)


@frozen_dataclass
class JournalEntries:
    """What the journal file holds of one task."""

    facts: tuple[Fact, ...] = ()
    """Charges of attempts that this server countersigned and that weren't voided
    since."""
    opened: tuple[tuple[int, int], ...] = ()
    """Version and attempt of each attempt whose comparisons this server opened."""
    voided: frozenset[int] = frozenset()
    """Attempts that cost nothing; their numbers count as used all the same."""

    @property
    def newest_attempt(self) -> int:
        """Return the highest attempt number in the file; -1 before the first."""
        countersigned = {fact.attempt for fact in self.facts}
        opened = {attempt for _, attempt in self.opened}
        return max(countersigned | opened | self.voided, default=-1)


class _Line(Message):
    """One line, on one attempt: its charge, its void, or that it was opened."""

    task: Bytes32
    version: Number
    attempt: Number
    clients: tuple[ClientName, ...] | None = None
    """The clients that a countersigned attempt charges; other lines have none."""
    voided: bool = False


class JournalFile:
    """Appends lines, each whole and on the disk before the call returns.

    ``path`` is None where nothing has to outlive the database, as in a round that is
    played in one process: nothing is written then.
    """

    def __init__(self, path: Path | None, task: Digest) -> None:
        self._path = path
        self._task = str(task)

    def read(self) -> JournalEntries:
        """Return what was written for this task; remove a line that a crash cut short.

        Raises Misconfiguration: the file holds what no server writes.
        """
        if self._path is None:
            return JournalEntries()
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return JournalEntries()
        whole_lines = data[: data.rfind(b"\n") + 1]
        if len(whole_lines) < len(data):
            os.truncate(self._path, len(whole_lines))
        try:
            # Only this task's lines are read: another version of precad may have
            # written other tasks' lines.
            lines = [
                _Line.from_json(line)
                for line in whole_lines.splitlines()
                if json.loads(line)["task"] == self._task
            ]
        except (PeerViolation, ValueError, KeyError, TypeError, RecursionError):
            raise Misconfiguration(
                "journal",
                self._path,
                "can't be read; put this server's newest file back",
            ) from None
        voided = frozenset(line.attempt for line in lines if line.voided)
        facts = (
            Fact(
                version=line.version,
                attempt=line.attempt,
                clients=line.clients,
            )
            for line in lines
            if line.clients is not None and line.attempt not in voided
        )
        opened = (
            (line.version, line.attempt)
            for line in lines
            if line.clients is None and not line.voided
        )
        return JournalEntries(tuple(facts), opened=tuple(opened), voided=voided)

    def countersigned(
        self, version: int, attempt: int, clients: Iterable[ClientId]
    ) -> None:
        """Write that this server is about to countersign the head of an attempt.

        ``clients`` are those whom the attempt charges.

        Raises StorageGone, as ``opened`` and ``voided`` do: the file can't be
        written.
        """
        names = sorted(client.name for client in clients)
        self._append(
            {
                "version": version,
                "attempt": attempt,
                "clients": names,
            }
        )

    def opened(self, version: int, attempt: int) -> None:
        """Write that an attempt's comparisons are about to be opened."""
        self._append({"version": version, "attempt": attempt})

    def voided(self, version: int, attempt: int) -> None:
        """Write that a countersigned attempt is void: both servers have signed it.

        This server's database was put back and has lost the noisy share. The other
        server, if it follows the protocol, has countersigned nothing, so nothing left.
        Without this line the next start would charge the attempt again, and the other's
        ledger doesn't have that charge.
        """
        self._append(
            {
                "version": version,
                "attempt": attempt,
                "voided": True,
            }
        )

    def _append(self, entry: dict[str, object]) -> None:
        """Write one line: JSON with the task's digest first, then ``entry``."""
        if self._path is None:
            return
        line = json.dumps({"task": self._task, **entry}, separators=(",", ":"))
        remedy = "free or mend the disk: nothing is lost"
        with writing(self._path, remedy, StorageGone):
            append_line(self._path, line)
