# Where each name of the package is at home: __init__.py reads this file.
# ruff: noqa: I001 -- one import a module.

from precad.aggregator.store.attempts import (
    Attempts as Attempts,
    ReleaseRecord as ReleaseRecord,
    SHARE_OF as SHARE_OF,
)
from precad.aggregator.store.audit import (
    Audit as Audit,
    TOKENS as TOKENS,
    audit_ledger as audit_ledger,
    back_up as back_up,
    compare_ledgers as compare_ledgers,
)
from precad.aggregator.store.database import (
    NEWEST as NEWEST,
    Store as Store,
    open_store as open_store,
    revision_to_read as revision_to_read,
    upgrade as upgrade,
)
from precad.aggregator.store.journal_file import (
    JournalFile as JournalFile,
)
from precad.aggregator.store.ledger import (
    Head as Head,
    Ledger as Ledger,
    LedgerCharge as LedgerCharge,
    LedgerEntry as LedgerEntry,
    history_after as history_after,
    history_start as history_start,
    ledger_start as ledger_start,
)
from precad.aggregator.store.old_schema import (
    copy_of_older as copy_of_older,
)
from precad.aggregator.store.owners import (
    Enrolments as Enrolments,
    Statements as Statements,
)
from precad.aggregator.store.postgres import (
    STOP_IT_FIRST as STOP_IT_FIRST,
    connection_options as connection_options,
    hold_session as hold_session,
    require_own_tables as require_own_tables,
)
from precad.aggregator.store.schema import (
    AttemptState as AttemptState,
    BOUND as BOUND,
    CHARGED as CHARGED,
    PENDING as PENDING,
    Permission as Permission,
    metadata as metadata,
)
from precad.aggregator.store.summary import (
    Snapshot as Snapshot,
    TrainingSummary as TrainingSummary,
    both_servers as both_servers,
    read_training as read_training,
    snapshot as snapshot,
)
from precad.aggregator.store.transaction import (
    AnyRow as AnyRow,
    AnyValue as AnyValue,
    Transaction as Transaction,
    file_of as file_of,
    is_in_memory as is_in_memory,
    parse_url as parse_url,
    reading_engine as reading_engine,
    require_whole as require_whole,
    storage_errors as storage_errors,
    wait_for_database as wait_for_database,
    writing_engine as writing_engine,
)
from precad.aggregator.store.versions import (
    Versions as Versions,
    set_version as set_version,
)
