"""What the database keeps of each version: facts, history, coin, seals, the operators' word.

Every function works in the caller's transaction.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

from sqlalchemy import Connection, bindparam, delete, func, insert, select, update

from precad.aggregator.rounds.history import history_after, history_start
from precad.aggregator.rounds.journal import AttemptState, Word
from precad.aggregator.rounds.server_messages import Fact, SealMessage
from precad.aggregator.store import attempts, tables
from precad.common.errors import StorageFailure
from precad.common.identifiers import ClientId, Digest
from precad.common.task import Task

_VERSION = tables.versions.c
_STAYS = {*attempts.CHARGED, AttemptState.VOIDED} - {AttemptState.PREPARED}
"""States of an attempt that another server's word on a void changes nothing of."""


def facts(connection: Connection, version: int) -> tuple[Fact, ...]:
    """What the ledger holds of ``version``, by attempt."""
    row = tables.attempts.c
    states = (*attempts.CHARGED, AttemptState.VOIDED)
    found = connection.execute(
        select(row.attempt, row.state)
        .where(row.version == version, row.state.in_(states))
        .order_by(row.attempt)
    ).all()
    return tuple(_fact(connection, version, each.attempt, each.state) for each in found)


def _fact(connection: Connection, version: int, attempt: int, state: AttemptState) -> Fact:
    if state is AttemptState.VOIDED:
        return Fact(version=version, attempt=attempt, voided=True)
    names = tuple(client.name for client in attempts.charged_clients(connection, attempt))
    return Fact(version=version, attempt=attempt, voided=False, clients=names)


def history(connection: Connection, task: Task, version: int) -> Digest:
    """Of all facts of the versions before ``version``."""
    known = connection.execute(
        select(_VERSION.version, _VERSION.history)
        .where(_VERSION.version <= version, _VERSION.history.is_not(None))
        .order_by(_VERSION.version.desc())
    ).first()
    at, digest = 0, history_start(task.digest)
    if known is not None:
        at, digest = known.version, known.history
    for each in range(at, version):
        digest = history_after(digest, facts(connection, each))
        _set(connection, each + 1, history=digest)
    return digest


def learn(connection: Connection, task: Task, found: Collection[Fact]) -> int:
    """Take facts that were forgotten into the ledger. Returns how many."""
    learned: list[int] = []
    for fact in sorted(found, key=lambda fact: (fact.attempt, fact.voided)):
        before = attempts.row_of(connection, fact.attempt)
        if before is not None and before.version != fact.version:
            raise StorageFailure(f"attempt {fact.attempt} stands here for another version")
        if not fact.voided:
            clients = [ClientId(name) for name in fact.clients]
            if attempts.learn_charge(connection, task, fact.version, fact.attempt, clients):
                learned.append(fact.version)
        elif before is None or before.state not in _STAYS:
            attempts.void(connection, task, fact.version, fact.attempt)
            learned.append(fact.version)
    if learned:
        _forget_history(connection, min(learned))
    return len(learned)


def _forget_history(connection: Connection, version: int) -> None:
    connection.execute(
        update(tables.versions).where(_VERSION.version > version).values(history=None)
    )


def uncharged(connection: Connection, version: int) -> tuple[int, ...]:
    """Versions before ``version`` without any attempt that stands as charged."""
    row = tables.attempts.c
    query = select(row.version).where(row.state.in_(attempts.CHARGED)).distinct()
    charged = set(connection.scalars(query))
    return tuple(each for each in range(version) if each not in charged)


def heard(connection: Connection) -> int:
    """The newest attempt that anybody else has named; -1 before the first."""
    found = connection.scalar(select(tables.task.c.heard))
    return -1 if found is None else int(found)


def charges_in(connection: Connection, version: int) -> dict[ClientId, int]:
    """How many releases of ``version`` may have left with each client in the counted set."""
    row, charge = tables.attempts.c, tables.charge.c
    query = (
        select(charge.client, func.count())
        .select_from(_charges())
        .where(row.version == version, row.state.in_(attempts.CHARGED))
        .group_by(charge.client)
    )
    return {row[0]: row[1] for row in connection.execute(query)}


def charges_of_one(connection: Connection, client: ClientId, before: int) -> Counter[int]:
    """Releases that a client was charged for, by version below ``before``."""
    found = connection.execute(_OF_ONE, {"client": client, "before": before})
    return Counter({row[0]: row[1] for row in found})


def participations(connection: Connection) -> dict[ClientId, int]:
    """T_i: how many versions each client was charged for."""
    row, charge = tables.attempts.c, tables.charge.c
    query = (
        select(charge.client, func.count(row.version.distinct()))
        .select_from(_charges())
        .where(row.state.in_(attempts.CHARGED))
        .group_by(charge.client)
    )
    return {row[0]: row[1] for row in connection.execute(query)}


def upgrades(connection: Connection) -> dict[ClientId, Mapping[int, int]]:
    """Of clients with a version that was released again: versions by m ≥ 1."""
    row, charge = tables.attempts.c, tables.charge.c
    query = (
        select(charge.client, func.count())
        .select_from(_charges())
        .where(row.state.in_(attempts.CHARGED))
        .group_by(charge.client, row.version)
        .having(func.count() > 1)
    )
    found: dict[ClientId, Counter[int]] = {}
    for name, count in connection.execute(query):
        found.setdefault(name, Counter())[count - 1] += 1
    return dict(found)


def _charges() -> Any:
    return tables.charge.join(tables.attempts, tables.charge.c.attempt == tables.attempts.c.attempt)


# Asked by every owner after every round: put together once.
_OF_ONE = (
    select(tables.attempts.c.version, func.count())
    .select_from(_charges())
    .where(
        tables.charge.c.client == bindparam("client"),
        tables.attempts.c.version < bindparam("before"),
        tables.attempts.c.state.in_(attempts.CHARGED),
    )
    .group_by(tables.attempts.c.version)
)


def opened(connection: Connection, version: int) -> int:
    """How many of the version's attempts had their comparisons opened."""
    return int(connection.scalar(select(_VERSION.opened).where(_VERSION.version == version)) or 0)


def raise_opened(connection: Connection, version: int, at_least: int) -> None:
    """The other server, or the file outside, has counted that many."""
    if at_least > opened(connection, version):
        _set(connection, version, opened=at_least)


def all_opened(connection: Connection) -> int:
    """Over all versions."""
    return int(connection.scalar(select(func.sum(_VERSION.opened))) or 0)


def seal_of(connection: Connection, version: int, column: str) -> SealMessage | None:
    """A seal that is kept of ``version``."""
    found = connection.scalar(select(_VERSION[column]).where(_VERSION.version == version))
    return None if found is None else SealMessage.from_json(found)


def keep_seal(connection: Connection, version: int, column: str, sealed: SealMessage) -> None:
    """Keep a seal of ``version``."""
    _set(connection, version, **{column: sealed.to_json()})


def confirm(connection: Connection, version: int) -> None:
    """Both servers hold model ``version``."""
    if version > confirmed(connection):
        _set(connection, version, confirmed=True)


def confirmed(connection: Connection) -> int:
    """The newest version whose model both servers are known to hold; the first needs no word."""
    query = select(func.max(_VERSION.version)).where(_VERSION.confirmed)
    return int(connection.scalar(query) or 0)


def discard_coin(connection: Connection, version: int) -> None:
    """Forget the version's coin: both operators want new ones, once. It is counted."""
    before = redrawn_of(connection, version)
    _set(
        connection,
        version,
        commitment=None,
        opening=None,
        own_opening=None,
        redrawn=before + 1,
    )
    table = tables.word.c
    used = (table.word == Word.COIN, table.version == version)
    connection.execute(delete(tables.word).where(*used))


def redrawn_of(connection: Connection, version: int) -> int:
    """How often this version's coin was drawn again."""
    found = connection.scalar(select(_VERSION.redrawn).where(_VERSION.version == version))
    return int(found or 0)


def redrawn(connection: Connection) -> int:
    """How often a version's coin was drawn again, over all versions."""
    return int(connection.scalar(select(func.sum(_VERSION.redrawn))) or 0)


def allowed(connection: Connection, word: Word, version: int) -> int:
    """Up to which attempt the operators' word reaches; -1 without one."""
    table = tables.word.c
    found = connection.scalar(
        select(table.until).where(table.word == word, table.version == version)
    )
    return -1 if found is None else int(found)


def allow(connection: Connection, word: Word, version: int, until: int) -> None:
    """Keep the operators' word."""
    table = tables.word
    where = (table.c.word == word, table.c.version == version)
    if not connection.execute(update(table).where(*where).values(until=until)).rowcount:
        connection.execute(insert(table).values(word=word, version=version, until=until))


def _set(connection: Connection, version: int, **values: object) -> None:
    table = tables.versions
    changed = connection.execute(
        update(table).where(_VERSION.version == version).values(**values)
    ).rowcount
    if not changed:
        connection.execute(insert(table).values({"opened": 0} | values | {"version": version}))
