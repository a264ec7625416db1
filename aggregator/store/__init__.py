"""What a server keeps through a crash: roster, rounds, ledger, spent triples."""

from precad.aggregator.store.audit import (
    Audit,
    ClientCharges,
    Finding,
    LedgerView,
    audit_ledger,
    compare_ledgers,
    read_ledger,
)
from precad.aggregator.store.database import Store, open_store
from precad.aggregator.store.ledger import Charge, LedgerEntry
from precad.aggregator.store.statements import ShownStatement

__all__ = [
    "Audit",
    "Charge",
    "ClientCharges",
    "Finding",
    "LedgerEntry",
    "LedgerView",
    "ShownStatement",
    "Store",
    "audit_ledger",
    "compare_ledgers",
    "open_store",
    "read_ledger",
]
