"""What a server keeps through a crash: roster, rounds, ledger, spent triples, keys."""

from precad.common.store.database import RoundRecord, Store, open_store

__all__ = ["RoundRecord", "Store", "open_store"]
