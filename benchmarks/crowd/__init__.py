"""Many light clients in one process, honest and bad, against a deployment's real servers."""

import precad  # noqa: F401 -- before gRPC, which then speaks TLS 1.3 alone
