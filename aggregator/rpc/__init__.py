"""What a server process speaks over gRPC: with owners, operators, peer and dealer."""

from precad.common.homes import shown_by

__all__, __getattr__ = shown_by(__file__)
