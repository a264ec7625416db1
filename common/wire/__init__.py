"""Protobuf and gRPC at the edge: messages to types and back, errors to status codes."""
