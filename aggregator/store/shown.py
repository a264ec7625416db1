"""Statements of this server that owners have shown it: what it may have forgotten.

Every function works in the caller's transaction.
"""

import json
from dataclasses import dataclass

from sqlalchemy import Connection, delete, func, insert, select

from precad.aggregator.store import attempts, tables, versions
from precad.common.errors import StorageFailure
from precad.common.identifiers import ClientId, Digest

_SHOWN = tables.shown.c


@dataclass(frozen=True, slots=True)
class Shown:
    """What this server once signed for one owner."""

    client: ClientId
    version: int
    """How many versions were over."""
    model: Digest
    """Of that version's model."""
    attempt: int
    """The newest attempt that this server knew."""
    charged: tuple[int, ...]
    """Versions that the client was charged for, by their further releases m."""
    opened: int


def says_more(connection: Connection, told: Shown) -> bool:
    """Whether a statement says more than this database; of servers that lost nothing none does."""
    return (
        told.version > versions.confirmed(connection)
        or told.attempt > attempts.newest(connection)
        or sum(told.charged)
        > len(versions.charges_of_one(connection, told.client, before=told.version))
    )


def keep(connection: Connection, told: Shown) -> None:
    """Keep a statement in place of an older one of its client's."""
    kept = connection.scalar(select(_SHOWN.version).where(_SHOWN.client == told.client))
    if kept is None or told.version >= kept:
        connection.execute(delete(tables.shown).where(_SHOWN.client == told.client))
        connection.execute(
            insert(tables.shown).values(
                client=told.client,
                version=told.version,
                model=told.model,
                attempt=told.attempt,
                charged=json.dumps(list(told.charged)),
                opened=told.opened,
            )
        )


def any_kept(connection: Connection) -> bool:
    """Whether any client's statement says more than this database did when it was shown."""
    return connection.scalar(select(_SHOWN.client).limit(1)) is not None


def forgotten(connection: Connection, client: ClientId | None = None) -> dict[ClientId, int]:
    """Versions that clients were charged for by this server's own word and not by its ledger."""
    query = select(_SHOWN.client, _SHOWN.version, _SHOWN.charged)
    if client is not None:
        query = query.where(_SHOWN.client == client)
    lost: dict[ClientId, int] = {}
    for row in connection.execute(query).all():
        known = versions.charges_of_one(connection, row.client, before=row.version)
        missing = sum(_counts(row.charged)) - len(known)
        if missing > 0:
            lost[row.client] = missing
    return lost


def participations(connection: Connection) -> dict[ClientId, int]:
    """T_i so far: how many versions each client was charged for, forgotten ones included."""
    counts = versions.participations(connection)
    for client, missing in forgotten(connection).items():
        counts[client] = counts.get(client, 0) + missing
    return counts


def promised_version(connection: Connection) -> int:
    """The newest version that owners may have heard of: stated, or held by both servers."""
    stated = connection.scalar(select(func.max(_SHOWN.version)))
    return max(int(stated or 0), versions.confirmed(connection))


def newest_attempt(connection: Connection) -> int:
    """The newest attempt that a statement names; -1 without any."""
    found = connection.scalar(select(func.max(_SHOWN.attempt)))
    return -1 if found is None else int(found)


def _counts(charged: str) -> list[int]:
    try:
        return [int(count) for count in json.loads(charged)]
    except (ValueError, TypeError):
        raise StorageFailure("a statement that an owner showed can't be read") from None
