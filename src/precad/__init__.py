"""precad: secure two-server aggregation for differentially private federated learning."""

from precad.common.tls13 import demand_tls13

__version__ = "0.1.0"

# Before anything here can import gRPC, which reads its TLS settings once.
demand_tls13()
