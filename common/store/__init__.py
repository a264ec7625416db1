"""What a server keeps through a crash: roster, rounds, ledger, spent triples."""

from precad.common.store.audit import (
    Audit,
    ClientCharges,
    Finding,
    LedgerView,
    audit_ledger,
    read_ledger,
)
from precad.common.store.database import Store, open_store
from precad.common.store.ledger import Charge, LedgerEntry

__all__ = [
    "Audit",
    "Charge",
    "ClientCharges",
    "Finding",
    "LedgerEntry",
    "LedgerView",
    "Store",
    "audit_ledger",
    "open_store",
    "read_ledger",
]
