"""precad: secure two-server aggregation for differentially private federated learning."""

from typing import TYPE_CHECKING, Any

from precad.common.tls13 import demand_tls13

if TYPE_CHECKING:
    from precad.simulation import simulate

__all__ = ["__version__", "simulate"]
__version__ = "0.1.0"

# Before anything here can import gRPC, which reads its TLS settings once.
demand_tls13()


def __getattr__(name: str) -> Any:
    """What takes seconds to import, on its first use."""
    if name == "simulate":
        try:
            from precad.simulation import simulate  # noqa: PLC0415
        except ModuleNotFoundError as error:
            from precad.common.errors import missing  # noqa: PLC0415

            raise missing(error, "precad.simulate", "simulation") or error from None

        return simulate
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
