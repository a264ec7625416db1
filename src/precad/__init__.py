"""precad: secure two-server aggregation for private federated learning."""

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from precad.client import DataOwner
    from precad.simulation import simulate

    __version__: str

__all__ = ["DataOwner", "__version__", "simulate"]

# gRPC speaks TLS 1.2 and 1.3, and has no setting for the version: one environment
# variable lists the cipher suites of 1.2, those of 1.3 are fixed. A list of one suite
# that needs a pre-shared key, which gRPC can't be given, leaves no TLS 1.2 handshake
# that could succeed. gRPC reads it when its native module is first imported, hence here
# (docs/decisions/tls-at-import.md).
TLS13_ALONE = ("GRPC_SSL_CIPHER_SUITES", "ECDHE-PSK-AES128-CBC-SHA")
if "grpc._cython.cygrpc" not in sys.modules:
    os.environ[TLS13_ALONE[0]] = TLS13_ALONE[1]
    # What gRPC's C library would print in a format of its own (GOAWAY, in a notebook
    # too), calls raise as errors that are logged.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")

# On first use: they take seconds to import.
_HOMES = {
    "DataOwner": ("precad.client", "client"),
    "simulate": ("precad.simulation", "simulation"),
}


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    if name == "__version__":
        # A checkout asks git for it.
        from precad.common.releases import this_build  # noqa: PLC0415

        return this_build().version
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, extra = _HOMES[name]
    try:
        return getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        from precad.common.errors import missing  # noqa: PLC0415

        raise missing(error, f"precad.{name}", extra) or error from None
