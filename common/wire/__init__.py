"""Protobuf and gRPC at the edge: messages to types and back, errors to status codes."""

from precad.common.homes import shown_by

__all__, __getattr__ = shown_by(__file__)
