"""What a server keeps through a crash: roster, rounds, ledger, spent triples."""

from precad.common.store.database import ReleaseRecord, RoundState, Store, open_store

__all__ = ["ReleaseRecord", "RoundState", "Store", "open_store"]
