"""What a server keeps through a crash: roster, attempts, ledger, spent triples."""

from precad.common.homes import shown_by

__all__, __getattr__ = shown_by(__file__)
