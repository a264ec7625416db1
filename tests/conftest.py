"""precad is imported before any test imports gRPC, which reads its TLS settings once."""

import precad  # noqa: F401
