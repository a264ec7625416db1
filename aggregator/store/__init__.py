"""What a server keeps through a crash: roster, attempts, ledger, spent triples."""

from precad.aggregator.store.audit import audit_ledger, compare_ledgers
from precad.aggregator.store.database import Store, open_store
from precad.aggregator.store.ledger import LedgerCharge
from precad.aggregator.store.summary import TrainingSummary, read_training

__all__ = [
    "LedgerCharge",
    "Store",
    "TrainingSummary",
    "audit_ledger",
    "compare_ledgers",
    "open_store",
    "read_training",
]
