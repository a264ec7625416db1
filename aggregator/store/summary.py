"""What a server's database says of a training, read while the server may be running."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from sqlalchemy import Connection, func, select

from precad.aggregator import ModelBody, read_body
from precad.aggregator.store import (
    CHARGED,
    AnyRow,
    AttemptState,
    Enrolments,
    Head,
    JournalFile,
    Ledger,
    Transaction,
    Versions,
    copy_of_older,
    parse_url,
    reading_engine,
    revision_to_read,
    schema,
)
from precad.common import (
    ClientId,
    Digest,
    Enrolment,
    Misconfiguration,
    Role,
    StorageFailure,
    Task,
    frozen_kw_only_dataclass,
)

_MAY_LEAVE = (*CHARGED, AttemptState.OPEN)
"""States of attempts whose share has left, or may while this is read."""


Charges = Mapping[tuple[int, int], frozenset[ClientId]]
"""By version and attempt: whom each charge that counts names."""


@frozen_kw_only_dataclass
class ClientCharges:
    """What the ledger says of one client."""

    client: ClientId
    participations: int
    """In how many versions it was charged; those that only a statement of its own still
    names count too."""
    record_rate: float
    """The highest rate p_i that it was charged at, or its claim where it never was."""
    again: Mapping[int, int]
    """How many of these versions may have been released 1 + m times, by m ≥ 1."""


@frozen_kw_only_dataclass
class VersionSummary:
    """One released version: how often it was tried, and whom its sum holds."""

    attempts: int
    counted: int
    """How many clients are in the sum; where the version was learned again, how many
    its newest charge names."""
    rejected: dict[str, int] | None
    """How many submissions to the attempt that was released weren't counted, by
    reason. None where this database has forgotten the release: it learned the charge
    again, and nothing else."""


@frozen_kw_only_dataclass
class TrainingSummary:
    """A server's training at one moment."""

    task: Task
    role: Role
    clients: tuple[ClientCharges, ...]
    """Clients that are enrolled or were charged, in the order of names."""
    claims: tuple[Enrolment, ...]
    """What the owners in the frozen roster claimed, in the order of names; they may
    hold fewer records."""
    model: Digest | None
    """The model of the newest version; None before the first release, or where this
    database was put back and hasn't heard of the model since."""
    attempts: int
    written_off: int
    """Attempts whose charge stands and that were never used."""
    redrawn_coins: int
    """How often operators had a version's coin drawn again."""
    most_participations: int
    """The most versions that any client was charged for, unreleased and forgotten ones
    included."""
    most_repeats: int
    """The most further releases that any version may have had."""
    charges: Charges
    """By version and attempt: whom each charge that counts names. Its share may have
    left, whatever became of the attempt."""
    rounds: int
    """How many versions may have left: up to the newest that is charged or open."""
    versions: tuple[VersionSummary, ...]
    """The versions that are over, from version 0 on, learned ones included."""
    entries: int
    """How many entries the ledger has."""
    head: Digest
    """The hash of its newest entry."""

    def participations_by_version(self) -> list[int]:
        """Return, after each version that is over, the most that any client had."""
        charged: dict[int, set[ClientId]] = defaultdict(set)
        for (version, _), clients in self.charges.items():
            # Further attempts of a version cost a client no further participation.
            charged[version] |= clients
        participations: Counter[ClientId] = Counter()
        most = []
        for version in range(len(self.versions)):
            participations.update(charged[version])
            most.append(max(participations.values(), default=0))
        return most


def read_training(url: str) -> TrainingSummary:
    """Return what the database at a SQLAlchemy URL says, and change nothing.

    The server may be running: everything is as of one moment.

    Raises Misconfiguration: there is no such database, or a newer version wrote it;
    StorageFailure: it can't be read.
    """
    attempt = schema.attempts.c
    charge = schema.charge.c
    attempt_query = select(
        attempt.attempt, attempt.version, attempt.state, attempt.next_model
    ).order_by(attempt.attempt)
    highest_rate_query = select(charge.client, func.max(charge.record_rate)).group_by(
        charge.client
    )
    with snapshot(url) as server:
        connection = server.connection
        claims = server.enrolment.claims()
        frozen = server.enrolment.roster()
        attempts = connection.execute(attempt_query).all()
        highest_rates = connection.execute(highest_rate_query).all()
        participations = server.ledger.participations()
        re_releases = server.ledger.re_releases()
        redrawn_coins = server.versions.redrawn_coins()
        models = {
            row.version + 1: row.next_model
            for row in attempts
            if row.state is AttemptState.DONE
        }
        # A version is over when the next one has begun. Where this database was put
        # back, its attempts are learned and nothing else tells.
        over = max(
            server.versions.confirmed(), *models, *(row.version for row in attempts), 0
        )
        seal = server.versions.model_seal(over)
        charges = _charges(connection, attempts)
        versions = tuple(_versions(connection, attempts, charges, over))
    if seal is not None:
        # The other server's signature is kept with a model that it gave back, too.
        models.setdefault(over, Digest(read_body(seal.body, ModelBody).digest))
    rates = {client: claim.record_rate for client, claim in claims.items()}
    rates |= dict(highest_rates)
    clients = tuple(
        ClientCharges(
            client=client,
            participations=participations.get(client, 0),
            record_rate=rates[client],
            again=re_releases.get(client, {}),
        )
        for client in sorted(rates)
    )
    begun = [row.version + 1 for row in attempts if row.state in _MAY_LEAVE]
    return TrainingSummary(
        task=server.task,
        role=server.role,
        clients=clients,
        claims=tuple(frozen.values()) if frozen else (),
        model=models.get(over),
        attempts=len(attempts),
        written_off=sum(row.state is AttemptState.WRITTEN_OFF for row in attempts),
        redrawn_coins=redrawn_coins,
        most_participations=max(participations.values(), default=0),
        most_repeats=max((max(by_m) for by_m in re_releases.values()), default=0),
        charges=charges,
        rounds=max(over, *begun, 0),
        versions=versions,
        entries=server.head.length,
        head=server.head.head,
    )


def _charges(connection: Connection, attempts: Sequence[AnyRow]) -> Charges:
    """Return, by version and attempt, whom the charges that count name.

    For ``read_training``; ``attempts`` are the rows of all attempts.
    """
    charge = schema.charge.c
    charged: dict[int, set[ClientId]] = defaultdict(set)
    for attempt, client in connection.execute(select(charge.attempt, charge.client)):
        charged[attempt].add(client)
    return {
        (row.version, row.attempt): frozenset(charged[row.attempt])
        for row in attempts
        if row.state in CHARGED
    }


def _versions(
    connection: Connection,
    attempts: Sequence[AnyRow],
    charges: Charges,
    over: int,
) -> Iterator[VersionSummary]:
    """Yield a summary of each version before ``over``, for ``read_training``.

    ``attempts`` are the rows of all attempts, in order, ``charges`` as in the summary.
    """
    rejection = schema.rejection.c
    rejected: dict[int, Counter[str]] = defaultdict(Counter)
    rejections = connection.execute(select(rejection.attempt, rejection.reason))
    for attempt, reason in rejections:
        rejected[attempt][reason.value] += 1
    tries = Counter(row.version for row in attempts)
    # The one that is done, which ends a version, else the newest that is charged.
    releases = {
        row.version: row
        for state in (CHARGED, (AttemptState.DONE,))
        for row in attempts
        if row.state in state
    }
    for version in range(over):
        counted = 0
        reasons = None
        release = releases.get(version)
        if release is not None:
            counted = len(charges[version, release.attempt])
            if release.state is AttemptState.DONE:
                reasons = dict(rejected[release.attempt])
        yield VersionSummary(attempts=tries[version], counted=counted, rejected=reasons)


def both_servers(courses: Sequence[TrainingSummary]) -> TrainingSummary:
    """Return one training as its servers' databases, one or two, have it together.

    Either may have been put back, and know of less. What either charges counts, attempt
    by attempt. Of a version, the server that released it itself says the rest; of all
    else, the server that knows of more versions, the first of two that know of as many.
    """
    newest = max(courses, key=lambda course: len(course.versions))
    charges: dict[tuple[int, int], frozenset[ClientId]] = defaultdict(frozenset)
    versions = list(newest.versions)
    for course in courses:
        for attempt, clients in course.charges.items():
            charges[attempt] |= clients
        for version, summary in enumerate(course.versions):
            if versions[version].rejected is None:
                versions[version] = summary
    releases = Counter(
        (client, version)
        for (version, _), clients in charges.items()
        for client in clients
    )
    taken = Counter(client for client, _ in releases)
    stated = (course.most_participations for course in courses)
    repeats = (course.most_repeats for course in courses)
    return replace(
        newest,
        attempts=max(course.attempts for course in courses),
        most_participations=max(*stated, *taken.values(), 0),
        most_repeats=max(*repeats, *(count - 1 for count in releases.values()), 0),
        charges=charges,
        rounds=max(course.rounds for course in courses),
        versions=tuple(versions),
    )


def read_task(canonical: bytes) -> Task:
    """Return the task with these canonical bytes, which are JSON; its digest is theirs.

    A task with the removed check ``fss`` is for readers alone: it can't be served.

    Raises Misconfiguration: they are no task.
    """
    try:
        values = json.loads(canonical)
        removed = {"validation": "fss"}
        was_removed = isinstance(values, dict) and removed.items() <= values.items()
        if was_removed:
            # It had the same bounds.
            values["validation"] = "crypten"
        task = Task.parse(values)
        if was_removed:
            task = task.model_copy(update=removed)
    except (ValueError, RecursionError) as error:
        raise Misconfiguration("task", "JSON", f"can't be read: {error}") from None
    # A version that knew fewer fields wrote fewer: the digest is of what it wrote.
    vars(task)["canonical"] = canonical
    return task


@frozen_kw_only_dataclass
class Snapshot:
    """One server's database at one moment, within its reading transaction."""

    connection: Connection
    schema: str
    """The revision that the database has on its disk."""
    task: Task
    role: Role
    head: Head
    """Where the ledger ended at that moment."""
    enrolment: Enrolments
    ledger: Ledger
    versions: Versions


@contextmanager
def snapshot(url: str) -> Iterator[Snapshot]:
    """Yield a server's database at one moment; the server may be running.

    Of an older schema it is a copy in memory that was brought up to date.

    Raises Misconfiguration and StorageFailure, as ``read_training`` does.
    """
    with ExitStack() as opened:
        transaction = Transaction(reading_engine(parse_url(url)))
        opened.callback(transaction.close)
        connection = opened.enter_context(transaction.read())
        own_schema = revision_to_read(connection)
        copy = copy_of_older(connection)
        if copy is not None:
            transaction = Transaction(copy)
            opened.callback(transaction.close)
            connection = opened.enter_context(transaction.read())
        row = connection.execute(select(schema.task)).one_or_none()
        if row is None:
            raise StorageFailure("the database names no task; its table was emptied")
        task = read_task(row.canonical)
        if str(task.digest) != row.digest:
            raise StorageFailure(
                "the task in the database isn't the one that its digest names"
            )
        ledger = Ledger(transaction, task)
        yield Snapshot(
            connection=connection,
            schema=own_schema,
            task=task,
            role=row.role,
            head=ledger.head(),
            enrolment=Enrolments(transaction),
            ledger=ledger,
            versions=Versions(transaction, JournalFile(None, task.digest)),
        )
